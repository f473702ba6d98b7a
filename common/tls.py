"""TLS of our own ports, and of the services' connections to each other. Engines and tool servers have their own.

A service with a certificate serves TLS alone on all its ports. Who connects to another service uses TLS where it has a
certificate itself, or names the authorities; so one set of settings for all services is enough.
"""

from __future__ import annotations

import pathlib
import ssl
from dataclasses import dataclass
from typing import Any

import grpc


class TlsError(ValueError):
    """A file is missing or wrong; the text names the setting, in one line."""


@dataclass(frozen=True, slots=True)
class Tls:
    """What is configured; without anything, all is plain."""

    certificate: pathlib.Path | None = None
    """PEM: the certificate that is shown, and those between it and its authority."""
    key: pathlib.Path | None = None
    """PEM: its private key, without a passphrase."""
    authorities: pathlib.Path | None = None
    """PEM: the authorities that the services' certificates come from; None: those of the system."""

    @property
    def is_used(self) -> bool:
        """Whether the services speak TLS with each other."""
        return self.certificate is not None or self.authorities is not None

    def check(self) -> None:
        """Raises TlsError where the settings do not fit, or a file cannot be used."""
        if (self.certificate is None) != (self.key is None):
            raise TlsError("settings LUFTPAUSE_TLS_CERT and LUFTPAUSE_TLS_KEY: expected both or neither")
        for name, path, use in (
            ("CERT (or LUFTPAUSE_TLS_KEY)", self.certificate, self.server_context),
            ("CA", self.authorities, self.client_context),
        ):
            if path is None:
                continue
            try:
                use()
            except OSError as error:  # SSLError is one
                reason = getattr(error, "reason", None) or error.strerror or str(error)
                raise TlsError(f"setting LUFTPAUSE_TLS_{name}: {path} cannot be used: {reason}") from None

    def server_context(self) -> ssl.SSLContext | None:
        """For ports of HTTP; None: they are plain."""
        if self.certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def client_context(self) -> ssl.SSLContext:
        """For https to another service."""
        return ssl.create_default_context(cafile=self.authorities)

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        """Lets a gRPC server listen; its port. Raises RuntimeError where it cannot."""
        if self.certificate is None or self.key is None:
            return server.add_insecure_port(address)
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return server.add_secure_port(address, grpc.ssl_server_credentials([pair]))

    def channel(self, target: str, options: tuple[tuple[str, Any], ...]) -> grpc.aio.Channel:
        """A channel to another service's gRPC."""
        if not self.is_used:
            return grpc.aio.insecure_channel(target, options=options)
        roots = None if self.authorities is None else self.authorities.read_bytes()
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(roots), options=options)


PLAIN = Tls()

"""One frozen configuration a service, read once from the environment; the pool file is in `pool`."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from common import variables
from common.auth import Guard
from common.secret import SECRET_SHAPE, is_secret
from common.tls import Tls, TlsError
from common.tokens import TokensError, load


def _is_shown_in_headers(secret: SecretStr) -> SecretStr:
    if not is_secret(secret.get_secret_value()):
        raise ValueError(f"expected {SECRET_SHAPE}")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_is_shown_in_headers)]
"""What clients show as `Authorization: Bearer …`."""


class ServiceConfig(BaseSettings):
    """Base of the services' configurations.

    A subclass sets `env_prefix="LUFTPAUSE_<SERVICE>_"` and adds fields with a default and a description that names the
    unit. `read` fails on a variable that begins with `LUFTPAUSE_` and that nothing knows (`variables`), so that a
    misspelt one is not silently ignored. A variable that is empty counts as unset.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_ignore_empty=True, validate_by_name=True)

    token: Secret | None = Field(
        default=None,
        validation_alias="LUFTPAUSE_TOKEN",
        description="Token that every client and service must show; unset: everybody is let in",
    )
    tokens: pathlib.Path | None = Field(
        default=None,
        validation_alias="LUFTPAUSE_TOKENS",
        description="File of further tokens (TOML), each bound to a caller or to classes; needs LUFTPAUSE_TOKEN too",
    )
    tls_cert: pathlib.Path | None = Field(
        default=None,
        validation_alias="LUFTPAUSE_TLS_CERT",
        description="Certificate (PEM) of scheduler, dataplane and runtime; unset: their ports are plain",
    )
    tls_key: pathlib.Path | None = Field(
        default=None, validation_alias="LUFTPAUSE_TLS_KEY", description="Its private key (PEM), without a passphrase"
    )
    tls_ca: pathlib.Path | None = Field(
        default=None,
        validation_alias="LUFTPAUSE_TLS_CA",
        description="Authorities (PEM) of the services' certificates; set, they are spoken to over TLS; "
        "unset: those of the system",
    )
    pool: pathlib.Path | None = Field(
        default=None, validation_alias="LUFTPAUSE_POOL", description="Pool file (TOML): the replicas"
    )
    state: pathlib.Path = Field(
        default=pathlib.Path(".luftpause"),
        validation_alias="LUFTPAUSE_STATE",
        description="Folder for what the services keep",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        validation_alias="LUFTPAUSE_LOG_LEVEL",
        description="Least level of what is logged: debug (a line for every turn), info, warning or error",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/]",
        validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT",
        description="URL of an OpenTelemetry collector, which then gets a span for every run, turn, admission and tool "
        "call; unset: nothing is traced",
    )
    otlp_protocol: Literal["grpc", "http/protobuf"] | None = Field(
        default=None,
        validation_alias="OTEL_EXPORTER_OTLP_PROTOCOL",
        description="Protocol of the collector, grpc or http/protobuf; unset: grpc at port 4317, else http/protobuf",
    )

    @property
    def token_text(self) -> str | None:
        """The token itself, for comparing and sending; never for printing."""
        return self.token.get_secret_value() if self.token else None

    def guard(self) -> Guard:
        """Who is let in. Ends the process with one line where the tokens file is wrong."""
        if self.tokens is None:
            return Guard(self.token_text)
        if self.token is None:
            sys.exit("setting LUFTPAUSE_TOKENS: expected LUFTPAUSE_TOKEN too, which the services show each other")
        try:
            return Guard(self.token_text, load(self.tokens, self.token_text))
        except TokensError as error:
            sys.exit(str(error))

    def tls(self) -> Tls:
        """TLS of our ports and to each other. Ends the process with one line where it cannot be used."""
        found = Tls(self.tls_cert, self.tls_key, self.tls_ca)
        try:
            found.check()
        except TlsError as error:
            sys.exit(str(error))
        return found

    @classmethod
    def variable(cls, field: str) -> str:
        """The environment variable that sets `field`."""
        alias = cls.model_fields[field].validation_alias
        return alias if isinstance(alias, str) else str(cls.model_config["env_prefix"]) + field.upper()

    @classmethod
    def arguments(cls, module: str, doc: str | None) -> argparse.ArgumentParser:
        """What `python -m module` takes: nothing yet but `--help`, which tells `doc` and the settings."""
        settings = [f"  {cls.variable(name)}\n        {field.description}" for name, field in cls.model_fields.items()]
        return argparse.ArgumentParser(
            prog=f"python -m {module}",
            description=doc,
            epilog="\n".join(["Settings are environment variables (docs/reference.md has their defaults):", *settings]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    @classmethod
    def read(cls) -> Self:
        """The configuration from the environment. Ends the process with one line a fault where it is wrong."""
        unknown = variables.faults(os.environ, map(cls.variable, cls.model_fields))
        if unknown:
            sys.exit("\n".join(unknown))
        try:
            return cls()
        except ValidationError as error:
            sys.exit("\n".join(f"setting {cls._fault(each)}" for each in error.errors()))

    @classmethod
    def _fault(cls, error: ErrorDetails) -> str:
        """Variable and what was expected; never the value, which may be a secret."""
        message = error["msg"].removeprefix("Value error, ")
        if not error["loc"]:
            return message
        first, *inner = error["loc"]
        # An alias is told as the variable that it is.
        name = cls.variable(str(first)) if first in cls.model_fields else str(first)
        return f"{name}{''.join(f'[{part}]' for part in inner)}: {message}"

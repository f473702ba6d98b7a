"""What connections to engines need of sockets: TLS, errors in words, what TCP knows of delivery. Knows no HTTP."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import socket
import ssl
import struct

_ACKED_AT = 120
"""Where Linux tells in its tcp_info how many bytes the other side has acknowledged (tcpi_bytes_acked, 64 bits)."""


SHORTAGE_TOLD_EVERY_S = 60.0

log = logging.getLogger(__name__)
_told_at: dict[int, float] = {}
"""When the log last had a shortage, by its error number."""


@functools.cache
def tls_context() -> ssl.SSLContext:
    """One context for all: loading the certificates takes tens of milliseconds."""
    return ssl.create_default_context()


def reason(error: BaseException) -> str:
    """A few words, without addresses."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'verify_message', None) or error.reason or 'handshake failed'}"
    if isinstance(error, socket.gaierror):
        return "its host name is not known"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def log_shortage(error: OSError) -> None:
    """Logs, each minute at most, that it is this process or its system that may open nothing more, and not the engine
    that refuses: clients are told of each failure, and nobody else would be."""
    now = asyncio.get_running_loop().time()
    if error.errno in (errno.EMFILE, errno.ENFILE) and now - _told_at.get(error.errno, -1e9) >= SHORTAGE_TOLD_EVERY_S:
        _told_at[error.errno] = now
        text = "event=no_files_left error='%s' no engine can be reached: raise the limit (ulimit -n)"
        log.warning(text, reason(error))


def acked_bytes(transport: asyncio.Transport | None) -> int | None:
    """Bytes that the other side's TCP has acknowledged so far; None where the system does not tell."""
    if transport is None:
        return None
    plug = transport.get_extra_info("socket")
    try:
        told = plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + 8)
        return int(struct.unpack_from("=Q", told, _ACKED_AT)[0]) or None
    except (AttributeError, OSError, struct.error):  # not Linux, an old kernel, or not TCP
        return None

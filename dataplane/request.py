"""One HTTP request as it is parsed: what we read of it, and what an engine is shown of it. Pure.

`server` feeds it from the parser's callbacks; `routes` decides from it who answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from dataplane import errors, identity
from dataplane.coming import ComingBytes

_READ = frozenset(
    (
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"expect",
        b"host",
        b"traceparent",
        b"transfer-encoding",
        *identity.OURS,
    )
)
"""Headers that the dataplane itself looks at."""

_OURS_PREFIX = b"x-luftpause-"
_BLANKS = b" \t"
_OURS = ", ".join(sorted(name.decode() for name in identity.OURS))

_NOT_FORWARDED = frozenset(
    (
        b"accept-encoding",  # the reply must be readable on its way
        b"api-key",
        b"authorization",
        b"connection",
        b"content-length",
        b"cookie",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-api-key",
        b"x-request-id",
        *identity.OURS,
    )
)
"""Headers that no engine is shown: hop-by-hop ones, credentials, and those that luftpause sets or means for itself."""

_KNOWN = _READ | _NOT_FORWARDED

CHUNKS_MAX = 65_536
"""Most chunks of a body, the empty last one among them: each costs as much as a hundred bytes or more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    lines: bytes = b""
    """Further headers, each with its line end."""


@dataclass(frozen=True, slots=True)
class Chat:
    """The request is a chat completion."""

    identity: identity.Identity


Rare = Callable[[], Awaitable[Answer]]
"""The request is one of the rare ones; the call answers it."""

Route = Chat | Rare


class Limits(Protocol):
    """How large a request may be; the configuration has them."""

    @property
    def header_bytes_max(self) -> int:
        """Of line and headers."""

    @property
    def headers_max(self) -> int:
        """Number of headers."""

    @property
    def body_bytes_max(self) -> int:
        """Of the body."""


class Request:
    """One request, filled in as it is parsed."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_coming",
        "_counted_bytes",
        "_head_bytes",
        "_header_count",
        "caller",
        "chunk_count",
        "chunks",
        "fed_bytes",
        "headers",
        "keep_alive",
        "lines",
        "method",
        "refusal",
        "route",
        "target",
        "too_large",
    )

    def __init__(self) -> None:
        self.method = ""
        """Empty until the head is whole."""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        """Those of `_READ`, by lower-case name."""
        self.lines: list[bytes] = [b""]
        """Headers for the engine, each with its line end; the first and the last entry are left to whoever sends
        them."""
        self.caller: str | None = None
        """Whose body it is; None: nobody reads it, and it is dropped as it comes."""
        self._coming: ComingBytes | None = None
        self._counted_bytes = 0
        """What of its body counts there."""
        self.refusal: errors.ApiError | None = None
        """Why it will not be served; its body is then dropped as it comes."""
        self.keep_alive = False
        self.chunks = False
        """Whether the client understands chunked answers."""
        self.chunk_count = 0
        """Chunks of the body that came, if it comes in such."""
        self.too_large = False
        """Whether its body is larger than the limit, by its length or as it came."""
        self.fed_bytes = 0
        """Bytes read while the head was not whole; behind it, those since the last ones of the body."""
        self.route: Route | None = None
        """Who answers; set when the head is whole, unless it is refused."""
        self._body_bytes = 0
        self._head_bytes = 0
        self._header_count = 0
        self._body = bytearray()  # parts may be of a byte each

    def add_header(self, name: bytes, value: bytes) -> None:
        """Keeps a header where we read it, and makes it a line for the engine where it may see it."""
        self._head_bytes += len(name) + len(value) + 4
        self._header_count += 1
        lower = name.lower()
        if lower in _KNOWN:
            self._add_known(lower, name, value)
        elif lower.startswith(_OURS_PREFIX):
            self.refusal = errors.invalid(lower.decode("latin-1"), f"no such header; there are {_OURS}")
        else:
            self.lines.append(b"%b: %b\r\n" % (name, value))

    def _add_known(self, lower: bytes, name: bytes, value: bytes) -> None:
        if lower in _READ:
            if lower in identity.OURS and lower in self.headers:
                self.refusal = errors.invalid(lower.decode(), "expected once, it is there twice")
            value = value.strip(_BLANKS)
            # Two headers of a name are one with a list (RFC 9110, 5.3); what reads no list then reads neither.
            self.headers[lower] = self.headers[lower] + b", " + value if lower in self.headers else value
        if lower not in _NOT_FORWARDED:
            self.lines.append(b"%b: %b\r\n" % (name, value))

    def end_head(self, method: str, version: str, keep_alive: bool, limits: Limits) -> None:
        """The head is whole. HTTP/1.0 gets no chunks and one answer a connection."""
        self.method = method
        self.chunks = version == "1.1"
        self.keep_alive = keep_alive and self.chunks
        connection = self.headers.get(b"connection", b"").lower()
        if connection not in (b"", b"close", b"keep-alive"):
            named = {token.strip() for token in connection.split(b",")}
            self.lines[1:] = [line for line in self.lines[1:] if line.partition(b":")[0].lower() not in named]
        self.lines.append(b"")
        coding = self.headers.get(b"transfer-encoding")
        if coding is not None and not (self.chunks and coding.lower() == b"chunked"):
            self.refusal = errors.malformed("Transfer-Encoding: expected 'chunked', in HTTP/1.1")
            self.keep_alive = False
        host = self.headers.get(b"host")
        if (host is None and self.chunks) or b"," in (host or b""):  # RFC 9112, 3.2
            self.refusal = errors.malformed("Host: expected once")
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            self.refusal = errors.encoded_body()
        if self._header_count > limits.headers_max:
            self.refusal = errors.too_many_headers(limits.headers_max)
        if self._head_bytes + len(self.target) > limits.header_bytes_max:
            self.refusal = errors.head_too_large(limits.header_bytes_max)
        self.too_large = int(self.headers.get(b"content-length", b"0")) > limits.body_bytes_max

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for our word before it sends the body."""
        return self.headers.get(b"expect", b"").lower() == b"100-continue"

    def add_body(self, data: bytes, body_bytes_max: int) -> None:
        """Keeps a piece of the body, unless nobody reads it, or it is refused or too large."""
        self._body_bytes += len(data)
        self.too_large = self.too_large or self._body_bytes > body_bytes_max
        if self.caller is None or self.refusal is not None or self.too_large:
            self._body = bytearray()
        else:
            self._body += data

    def excess(self, limits: Limits) -> errors.ApiError | None:
        """The refusal of a body of which too much is announced, or came."""
        if self.too_large:
            return errors.body_too_large(limits.body_bytes_max)
        return errors.too_many_chunks(CHUNKS_MAX) if self.chunk_count > CHUNKS_MAX else None

    def keep_for(self, caller: str, coming: ComingBytes) -> None:
        """Keeps the body from here on; while it comes, what `count_kept` counts is in what `coming` tells of the
        caller."""
        self.caller, self._coming = caller, coming

    def count_kept(self) -> None:
        """To be called where some of the body came, but not at each piece, which may be a byte."""
        self._count(len(self._body))

    def end_body(self) -> None:
        """Nothing more comes: the body is whole, or its client has left."""
        self._count(0)
        self._coming = None

    def _count(self, kept_bytes: int) -> None:
        if self._coming is not None and self.caller is not None:
            self._coming.change(self.caller, kept_bytes - self._counted_bytes)
            self._counted_bytes = kept_bytes

    @property
    def kept_bytes(self) -> int:
        """What is kept of the body."""
        return len(self._body)

    def take_body(self) -> bytes:
        """The whole body, which is then no longer kept here."""
        body = bytes(self._body)
        self._body = bytearray()
        return body

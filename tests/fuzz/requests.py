"""What a client may send to a server of HTTP: requests that are right, nearly right and wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from tests.fuzz.fuzzing import cut, either, mutated, some, some_bytes

LINES = [
    b"host: x",
    b"authorization: Bearer secret",
    b"Authorization: Bearer wrong",
    b"x-luftpause-run-id: r1",
    b"x-luftpause-run-id: a b",
    b"x-luftpause-class: batch",
    b"x-luftpause-class: urgent",
    b"x-luftpause-caller: \xc3\xbcber",
    b"x-luftpause-caller: \xff",
    b"x-luftpause-: ",
    b"content-type: application/json",
    b"content-encoding: gzip",
    b"expect: 100-continue",
    b"connection: close",
    b"connection: keep-alive, x-private",
    b"connection: upgrade\r\nupgrade: h2c",
    b"transfer-encoding: chunked",
    b"transfer-encoding: gzip, chunked",
    b"content-length: 5",
    b"content-length: 99999999999999999999",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b" folded",
    b"name : value",
    b"no colon",
]
TARGETS = [
    b"/v1/chat/completions", b"/v1/decide", b"/v1/models", b"/v1/runs/r1", b"/v1/runs/../x", b"/health",
    b"/metrics", b"/", b"http://h/v1/models", b"//", b"*", b"/v1/%2e%2e/health", b"/v1/models?x=\xff", b"",
]  # fmt: skip
METHODS = [b"GET", b"POST", b"DELETE", b"HEAD", b"OPTIONS", b"CONNECT", b"PRI", b"get", b""]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 ", b""]


def _framed(chance: random.Random, body: bytes) -> tuple[bytes, bytes]:
    """Further lines and the body as it is sent."""
    chunk = b"%x%b\r\n%b\r\n0\r\n"
    match chance.randrange(5):
        case 0:
            return b"content-length: %d\r\n" % len(body), body
        case 1:
            return b"transfer-encoding: chunked\r\n", chunk % (len(body), b"", body) + b"\r\n"
        case 2:
            return b"transfer-encoding: chunked\r\n", chunk % (len(body), b';ext="a"', body) + b"x-trailer: 1\r\n\r\n"
        case 3:
            return b"transfer-encoding: chunked\r\n", b"ffffffffffffffff1\r\n" + body
        case _:
            return b"", body


def _request(chance: random.Random, served: Sequence[bytes], bodies: Sequence[bytes]) -> bytes:
    line = chance.choice(served)
    if chance.random() < 0.5:
        line = b" ".join((chance.choice(METHODS), either(chance, TARGETS, 12), chance.choice(VERSIONS)))
    lines = some(chance, 5, lambda one: either(one, LINES, 20))
    more, sent = _framed(chance, either(chance, bodies, 40))
    return b"".join(each + b"\r\n" for each in (line, *lines)) + more + b"\r\n" + sent


def connection(chance: random.Random, served: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
    """What a client sends, in parts: some requests with or without bytes that are wrong, or any bytes.

    `served` are the lines with which right requests begin, `bodies` some that they may have.
    """
    if chance.random() < 0.1:
        return cut(chance, some_bytes(chance, 200))
    sent = b"".join(_request(chance, served, bodies) for _ in range(chance.randint(1, 3)))
    return cut(chance, mutated(chance, sent))


def statuses(said: bytes) -> list[int]:
    """Of the answers in what a server said on a connection, which is HTTP or nothing."""
    assert not said or said.startswith(b"HTTP/")
    return [int(status) for status in re.findall(rb"HTTP/\d\.\d (\d{3}) ", said)]

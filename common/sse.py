"""Server-sent events in a stream of bytes that may be cut anywhere. Sans-I/O; who reads them knows what is in them.

Lines end with `\\n` or `\\r\\n` (no engine uses a lone `\\r`). An event ends at an empty line and is handed out with
it, so that the events joined are the bytes that came.
"""

from __future__ import annotations

import re

_END = re.compile(rb"\n\r?\n")
_LINE_END = (b"\n", b"\r")
_EVENT = re.compile(rb".*?\n\r?\n", re.DOTALL)


class EventBuffer:
    """Collects bytes until events are whole."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def __len__(self) -> int:
        """Bytes of the event that is not whole yet."""
        return len(self._rest)

    def feed(self, data: bytes) -> bytes:
        """All events that are whole with `data`; each byte is searched once, however small the parts."""
        rest = self._rest
        if not rest and data.endswith(b"\n\n") and data[-3:-2] not in _LINE_END:
            return data  # as nearly always
        start = max(0, len(rest) - 2)
        rest += data
        end = 0
        for found in _END.finditer(rest, start):  # forwards, as `split`: of three line ends the last begins an event
            end = found.end()
        if not end:
            return b""
        whole = bytes(rest[:end])
        del rest[:end]
        return whole

    def flush(self) -> bytes:
        """What is left of a stream that has ended: an event without its empty line."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def find_end(data: bytes) -> int:
    """Where the first event in `data` ends, or -1."""
    end = _END.search(data)
    return end.end() if end else -1


def split(events: bytes) -> list[bytes]:
    """The single events of `events`, which are whole."""
    if events.find(b"\r") >= 0:
        return _EVENT.findall(events)
    return [event + b"\n\n" for event in events.split(b"\n\n")[:-1]]


def data_of(event: bytes) -> bytes:
    """The data of one event: its `data` lines joined by newlines; empty for comments."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and event[-3:-2] != b"\r":
        return event[6:-2]  # as nearly always
    lines = [line.removesuffix(b"\r") for line in event.split(b"\n")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))

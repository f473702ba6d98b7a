"""A TCP proxy between two services that misbehaves when it is told to: resets, delays, drops, refuses.

Dropping is what a network does whose packets vanish: bytes are taken and go nowhere until it is over, and then all
connections are reset, since no peer could go on. It can look at what clients send, to count requests by their
`x-request-id` and by the mark of their client; it outlives the engines behind it. Must not decide when to misbehave:
`chaos_plan` does.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections import Counter, deque
from typing import cast

HOST = "127.0.0.1"
DELAY_S = 0.2
"""By how much bytes are late while a link delays."""
_REQUEST_ID = re.compile(rb"\r\nx-request-id: ([^\r\n]{1,128})\r\n", re.IGNORECASE)
MARK = "chaos-try-"
"""How the mark begins by which a client tells each of its tries; all of it stands in the body, whole."""
_MARK = re.compile(rb'"(%b[^"]{1,64})"' % MARK.encode())
_TAIL_BYTES = 160
"""An id or a mark that two reads share is found in the end of one and the beginning of the other."""


class Link:
    """One proxy. Not dropping, not delaying and listening from `start` on."""

    def __init__(self, name: str, target_port: int) -> None:
        self.name = name
        self.port = 0
        """Where it listens, once started."""
        self.request_ids: Counter[str] = Counter()
        """How often each id came."""
        self.marks: Counter[str] = Counter()
        """How often each mark came."""
        self.delays = False
        self.drops = False
        self._target_port = target_port
        self._listener: asyncio.Server | None = None
        self._sides: set[_Side] = set()

    async def start(self) -> None:
        """Listens, on the port that it had before if it had one."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Side(self, None), HOST, self.port, backlog=1024)
        self.port = self._listener.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Listens no more, as the port of a process that has ended."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def reset(self) -> None:
        """Resets every connection, on both sides."""
        for side in list(self._sides):
            side.reset()

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return sum(side.is_client for side in self._sides)

    def joined(self, side: _Side) -> None:
        """A connection was made; that of a client gets one to the target."""
        self._sides.add(side)
        if side.is_client:
            side.connecting = asyncio.get_running_loop().create_task(self._connect(side))

    def left(self, side: _Side) -> None:
        """A connection is gone."""
        self._sides.discard(side)

    async def _connect(self, client: _Side) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, peer = await loop.create_connection(lambda: _Side(self, client), HOST, self._target_port)
        except OSError:
            client.reset()
            return
        client.pair(peer)


class _Side(asyncio.Protocol):
    """One of the two connections of a pair; what it reads goes to its peer, late or never where the link says so."""

    def __init__(self, link: Link, peer: _Side | None) -> None:
        self.is_client = peer is None
        self.connecting: asyncio.Task[None] | None = None
        self._link = link
        self._peer = peer
        self.transport: asyncio.Transport | None = None
        self._late: deque[tuple[float, bytes]] = deque()
        """Read and not handed on yet, with the times when it is due."""
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for the peer, where it is the client's."""
        self.transport = cast(asyncio.Transport, transport)
        if self.is_client:
            self.transport.pause_reading()
        self._link.joined(self)

    def pair(self, peer: _Side) -> None:
        """The target answers: bytes may flow."""
        if self.transport is None:
            peer.reset()
            return
        self._peer = peer
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Hands it on, unless the link drops."""
        if self.is_client:
            self._look(data)
        if self._link.drops:
            return
        if self._link.delays or self._late:
            due = asyncio.get_running_loop().time() + (DELAY_S if self._link.delays else 0.0)
            self._late.append((due, data))
            self._schedule()
        elif self._peer is not None:
            self._peer.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the peer too, when it has got everything; at once where this one was broken."""
        self.transport = None
        self._over = True
        self._link.left(self)
        if self.connecting is not None:
            self.connecting.cancel()
        if error is not None:
            self._late.clear()
        self._schedule()

    def pause_writing(self) -> None:
        """The peer reads no further."""
        if self._peer is not None and self._peer.transport is not None:
            self._peer.transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads on."""
        if self._peer is not None and self._peer.transport is not None:
            self._peer.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Sends bytes of the peer."""
        if self.transport is not None:
            self.transport.write(data)

    def reset(self) -> None:
        """Closes it by a TCP reset."""
        if self.transport is not None:
            # Closing with no time to linger is what makes TCP send a reset.
            plug: socket.socket = self.transport.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    def _schedule(self) -> None:
        if self._timer is not None:
            return
        if self._late:
            self._timer = asyncio.get_running_loop().call_at(self._late[0][0], self._hand_on)
        elif self._over and self._peer is not None and self._peer.transport is not None and not self._link.drops:
            self._peer.transport.close()

    def _hand_on(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._late and self._late[0][0] <= now + 0.001:
            _, data = self._late.popleft()
            if self._peer is not None and not self._link.drops:
                self._peer.write(data)
        self._schedule()

    def _look(self, data: bytes) -> None:
        seen = self._tail + data
        for shape, counted in ((_REQUEST_ID, self._link.request_ids), (_MARK, self._link.marks)):
            for match in shape.finditer(seen):
                if match.end() > len(self._tail):
                    counted[match[1].decode("latin-1")] += 1
        self._tail = seen[-_TAIL_BYTES:]

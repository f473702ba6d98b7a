"""`python -m loadgen.compare.router`: a plain router, so that comparisons have one on any machine.

It knows nothing of runs: a request goes to the engine with the fewest open ones (`least-connections`; among equals, in
turn), or to the next one (`round-robin`). Bytes are relayed as they come, and a client that leaves ends its request at
the engine. A stand-in to compare with, not a router to use.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import aiohttp
from aiohttp import hdrs, web

from common.signals import serve_until_signal

_HOST = "127.0.0.1"
_BODY_BYTES_MAX = 1 << 30
_OF_ONE_HOP = {hdrs.CONNECTION, hdrs.TRANSFER_ENCODING, hdrs.CONTENT_LENGTH, hdrs.HOST, hdrs.KEEP_ALIVE}


class Router:
    """Relays requests to `engines`, their origins."""

    def __init__(self, engines: list[str], *, least: bool) -> None:
        self._engines = engines
        self._least = least
        self._open = [0] * len(engines)
        self._next = 0
        self._session: aiohttp.ClientSession

    async def serve(self, port: int, stop: asyncio.Event) -> int:
        """Serves until `stop`: the exit code."""
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", self._relay)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._session:
            await runner.setup()
            try:
                await web.TCPSite(runner, _HOST, port, backlog=4096).start()
                await stop.wait()
            except OSError as error:
                print(f"--port {port}: {error.strerror or error}", file=sys.stderr)
                return 1
            finally:
                await runner.cleanup()
        return 0

    def _choose(self) -> int:
        count = len(self._engines)
        turn = [(self._next + n) % count for n in range(count)]
        chosen = min(turn, key=lambda n: self._open[n]) if self._least else turn[0]
        self._next = (chosen + 1) % count
        return chosen

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name not in _OF_ONE_HOP}
        chosen = self._choose()
        url = self._engines[chosen] + request.path_qs
        self._open[chosen] += 1
        try:
            async with self._session.request(request.method, url, data=body, headers=headers) as answer:
                kept = {name: value for name, value in answer.headers.items() if name not in _OF_ONE_HOP}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                while data := await answer.content.readany():
                    await response.write(data)
                return response
        except aiohttp.ClientConnectorError as error:
            raise web.HTTPBadGateway(text=str(error)) from None
        finally:
            self._open[chosen] -= 1


def main() -> int:
    """Reads the command line and serves: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True, help="port on loopback")
    parser.add_argument("--policy", choices=("least-connections", "round-robin"), default="least-connections")
    parser.add_argument("engines", nargs="+", metavar="URL", help="origin of an engine, http://host:port")
    arguments = parser.parse_args()
    router = Router([url.rstrip("/") for url in arguments.engines], least=arguments.policy == "least-connections")
    return asyncio.run(serve_until_signal(lambda stop: router.serve(arguments.port, stop)))


if __name__ == "__main__":
    sys.exit(main())

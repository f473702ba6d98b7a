"""One engine on one port: listens, lets the driver run, shows health and metrics, takes scripts. Read `surface` next.

Control, for tests: `POST /fake/faults` adds a script (see `faults`), `GET` shows what is left of it, `DELETE` clears
it; `GET /fake/seen?id=…` says how often an `x-request-id` arrived; `GET /fake/stats` is the ledger. None of it asks
for a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

from aiohttp import hdrs, web

from common.auth import Guard
from fakes.engine import metrics
from fakes.engine.batch import Engine
from fakes.engine.config import EngineConfig
from fakes.engine.driver import Driver
from fakes.engine.errors import ApiError, bad_field
from fakes.engine.faults import Script, parse_script
from fakes.engine.ledger import Ledger
from fakes.engine.surface import Answer, Surface, json_response, read_body

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 64 * 2**20
FIELD_BYTES_MAX = 64 * 2**10
"""Longest header, as in vLLM's server."""
_KEYED_PATHS = ("/v1/", "/classify")
_SHUTDOWN_S = 1.0
_RELISTEN_S = 0.5
_BACKLOG = 4096
"""Floods connect all at once."""


class EngineServer:
    """`start` listens, `finish` ends it; `driving` ends only by `finish` or by a fault of the simulator itself."""

    def __init__(self, config: EngineConfig, port: int) -> None:
        self.engine = Engine(config.simulated)
        self.port = port
        """The port listened on; after `start` never 0."""
        self.driving: asyncio.Task[None] | None = None
        self._config = config
        self._driver = Driver(self.engine, config.speed)
        refusals = [fault for fault in config.faults if fault.fault == "refuse"]
        self._refuse_s = max((fault.seconds for fault in refusals), default=0.0)
        self._script = Script(config.seed, [fault for fault in config.faults if fault.fault != "refuse"])
        self._ledger = Ledger()
        self._methods: dict[str, list[str]] = {}
        """Methods of each known path."""
        self._surface = Surface(config, self._driver, self._script, self._ledger)
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_S,
            max_field_size=FIELD_BYTES_MAX,
        )
        self._listener: asyncio.Server | None = None
        self._refusing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens. Raises OSError where the port is taken."""
        await self._runner.setup()
        await self._listen()
        self.driving = asyncio.create_task(self._driver.run())
        if self._refuse_s:
            self._refuse(self._refuse_s)

    async def finish(self) -> None:
        """Stops listening, ends open requests within a second, stops the engine."""
        for task in (self._refusing, self.driving):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        answers = [
            *self._surface.answers(),
            ("GET", "/health", self._health),
            ("GET", "/metrics", self._metrics),
            ("POST", "/fake/faults", self._add_faults),
            ("GET", "/fake/faults", self._show_faults),
            ("DELETE", "/fake/faults", self._clear_faults),
            ("GET", "/fake/seen", self._seen),
            ("GET", "/fake/stats", self._stats),
        ]
        for method, path, answer in answers:
            application.router.add_route(method, path, self._guarded(answer))
            self._methods.setdefault(path, []).append(method)
        application.router.add_route("*", "/{path:.*}", self._guarded(self._unknown))
        return application

    def _guarded(self, answer: Answer) -> Answer:
        """`answer` for those who show the key, with every error in OpenAI's shape."""
        guard = Guard(self._config.key.get_secret_value() if self._config.key else None)

        async def answer_guarded(request: web.Request) -> web.StreamResponse:
            authorization = request.headers.get(hdrs.AUTHORIZATION)
            try:
                if request.path.startswith(_KEYED_PATHS) and guard.admit(authorization) is None:
                    raise ApiError(401, "Unauthorized", kind="AuthenticationError")
                return await answer(request)
            except ApiError as error:
                return json_response(error.body, error.status)

        return answer_guarded

    async def _unknown(self, request: web.Request) -> web.Response:
        methods = self._methods.get(request.path, [])
        if methods and request.method not in methods:
            error = ApiError(405, f"{request.path} does not take {request.method}", kind="MethodNotAllowedError")
            return json_response(error.body, error.status, {hdrs.ALLOW: ", ".join(methods)})
        raise ApiError(404, f"nothing answers {request.method} {request.path}", kind="NotFoundError")

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        dialect = self._config.metrics
        if dialect == "none":
            return await self._unknown(request)
        text = metrics.render(dialect, self.engine, self._config.model, self._surface.ended)
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def _add_faults(self, request: web.Request) -> web.Response:
        try:
            faults = parse_script(json.loads(await read_body(request)))
        except ValueError as error:
            raise ApiError(400, f"the body is not valid JSON: {error}") from None
        self._script.extend(fault for fault in faults if fault.fault != "refuse")
        refuse_s = max((fault.seconds for fault in faults if fault.fault == "refuse"), default=0.0)
        if refuse_s:
            self._refuse(refuse_s)
        return await self._show_faults(request)

    async def _show_faults(self, _request: web.Request) -> web.Response:
        return json_response({"faults": self._script.describe()})

    async def _clear_faults(self, request: web.Request) -> web.Response:
        self._script.clear()
        return await self._show_faults(request)

    async def _seen(self, request: web.Request) -> web.Response:
        request_id = request.query.get("id")
        if request_id is None:
            raise bad_field("id", "a query parameter with an x-request-id")
        return json_response({"id": request_id, "count": self._ledger.seen(request_id)})

    async def _stats(self, _request: web.Request) -> web.Response:
        return json_response(self._ledger.stats())

    async def _listen(self) -> None:
        server = self._runner.server
        assert server is not None, "the runner is set up"
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(server, self._config.host, self.port, backlog=_BACKLOG)
        self.port = self._listener.sockets[0].getsockname()[1]

    def _refuse(self, seconds: float) -> None:
        if self._refusing is not None:
            self._refusing.cancel()
        self._refusing = asyncio.create_task(self._refuse_for(seconds))

    async def _refuse_for(self, seconds: float) -> None:
        if self._listener is not None:
            self._listener.close()
        server = self._runner.server
        assert server is not None, "the runner is set up"
        for connection in server.connections:
            connection.close()  # those kept alive, once they are idle
        await asyncio.sleep(seconds)
        while True:
            try:
                return await self._listen()
            except OSError as error:  # somebody else took the port meanwhile
                log.warning("event=relisten_failed port=%d error=%s", self.port, error)
                await asyncio.sleep(_RELISTEN_S)

"""Which request is answered by whom, and the rare routes themselves: models, end of a run, health, metrics.

A route is found when a request's head is whole, so that a client learns of a wrong path, token or header before its
body is read. Chat completions are `proxy`'s, decisions `decide`'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from common.auth import UNAUTHENTICATED, Guard
from common.grants import Grant
from common.ids import ID_SHAPE, is_id
from dataplane import errors, forecast
from dataplane.coming import ComingBytes
from dataplane.decide import Decisions
from dataplane.exposition import CONTENT_TYPE, expose
from dataplane.held import HeldMax
from dataplane.identity import RUN_ID, Identity, identify, identify_caller
from dataplane.metrics import Snapshot
from dataplane.request import Answer, Chat, Rare, Request, Route
from dataplane.scheduler_client import SchedulerClient
from dataplane.work import as_answer
from protos import turn_pb2

MODELS_S_MAX = 5.0
"""How long a list of models waits for the scheduler."""

_CHAT = "/v1/chat/completions"
_DECIDE = "/v1/decide"
_RUNS = "/v1/runs/"
_FORECAST = "/v1/forecast"


class Routes:
    """Finds routes. `held_max` says how much of a caller may wait; `snapshot` tells the numbers of all workers."""

    def __init__(
        self,
        scheduler: SchedulerClient,
        decisions: Decisions,
        guard: Guard,
        held_max: HeldMax,
        snapshot: Callable[[], Awaitable[Snapshot]],
    ) -> None:
        self._held_max = held_max
        self.coming = ComingBytes()
        self._scheduler = scheduler
        self._decisions = decisions
        self._guard = guard
        self._snapshot = snapshot

    def find(self, request: Request) -> Route | errors.ApiError:
        """Who answers `request`, or why nobody does. Reads only its head."""
        path = _path(request.target)
        method = request.method
        if path.startswith("/v1/"):
            grant = self._guard.admit(request.headers.get(b"authorization"))
            if grant is None:
                return errors.unauthorized(UNAUTHENTICATED)
            return self._find_v1(path, request, grant)
        rare = {"/health": self._health, "/metrics": self._metrics}.get(path)
        return self._find_rare(rare, method, path)

    def crowded_out(self, caller: str) -> errors.ApiError | None:
        """The refusal of one more turn of a caller of whom too many wait. Asked when the head is whole, and again when
        the body is: others may have come meanwhile."""
        waiting = self._scheduler.held_of(caller) + self._decisions.waiting_of(caller)
        if waiting >= self._held_max.turns:
            return errors.too_many_held(self._held_max.turns)
        return self.too_much_of(caller)

    def too_much_of(self, caller: str, but_bytes: int = 0) -> errors.ApiError | None:
        """The refusal of one more body of a caller of whose bodies too much is kept, `but_bytes` of them aside."""
        kept = self._scheduler.held_bytes_of(caller) + self.coming.of(caller) - but_bytes
        return errors.too_much_held(self._held_max.bytes) if kept >= self._held_max.bytes else None

    async def _decide(self, request: Request, identity: Identity) -> Answer:
        refusal = self.crowded_out(identity.caller)
        return as_answer(refusal, "") if refusal is not None else await self._decisions.decide(request, identity)

    def _find_v1(self, path: str, request: Request, grant: Grant) -> Route | errors.ApiError:
        method = request.method
        if path in (_CHAT, _DECIDE):
            if method != "POST":
                return errors.wrong_method(method, path, "POST")
            identity = identify(request.headers, grant)
            if isinstance(identity, errors.ApiError):
                return identity
            request.keep_for(identity.caller, self.coming)
            return self.crowded_out(identity.caller) or (
                Chat(identity) if path == _CHAT else partial(self._decide, request, identity)
            )
        if path.startswith(_RUNS):
            return self._find_run(path.removeprefix(_RUNS), request, grant)
        if path == _FORECAST:
            return self._find_forecast(request, grant)
        return self._find_rare(self._models if path == "/v1/models" else None, method, path)

    def _find_forecast(self, request: Request, grant: Grant) -> Route | errors.ApiError:
        if request.method != "GET":
            return errors.wrong_method(request.method, _FORECAST, "GET")
        caller = identify_caller(request.headers, grant)
        if isinstance(caller, errors.ApiError):
            return caller
        asked = forecast.read(request.target)
        if isinstance(asked, errors.ApiError):
            return asked
        return partial(forecast.answer, self._scheduler, asked, caller)

    def _find_rare(self, rare: Rare | None, method: str, path: str) -> Route | errors.ApiError:
        if rare is None:
            return errors.no_route(path)
        return rare if method in ("GET", "HEAD") else errors.wrong_method(method, path, "GET")

    def _find_run(self, run_id: str, request: Request, grant: Grant) -> Route | errors.ApiError:
        if not is_id(run_id):
            return errors.invalid("run id in the path", f"expected {ID_SHAPE}")
        if request.method != "DELETE":
            return errors.wrong_method(request.method, _RUNS + run_id, "DELETE")
        caller = identify_caller(request.headers, grant)
        if isinstance(caller, errors.ApiError):
            return caller

        async def end_run() -> Answer:
            owner = self._scheduler.caller_of(run_id)
            if owner not in (None, caller):
                error = errors.run_of_other_caller(run_id)
                return Answer(error.status, error.body())
            # Another process may know a run that this one does not: it is told through the scheduler. So it is over
            # also where nothing of it is known here.
            self._scheduler.run_ended(run_id, caller)
            body = msgspec.json.encode({"id": run_id, "object": "run", "deleted": True})
            return Answer(200, body, lines=b"%b: %b\r\n" % (RUN_ID, run_id.encode()))

        return end_run

    async def _models(self) -> Answer:
        replicas = await self._scheduler.replicas(MODELS_S_MAX)
        if replicas is None:
            error = errors.scheduler_absent()
            return Answer(error.status, error.body())
        models = {model for each in replicas if each.kind != turn_pb2.REPLICA_KIND_ONE_SHOT for model in each.models}
        data = [{"id": model, "object": "model", "created": 0, "owned_by": "luftpause"} for model in sorted(models)]
        return Answer(200, msgspec.json.encode({"object": "list", "data": data}))

    async def _health(self) -> Answer:
        state = "connected" if self._scheduler.connected else "waiting"
        return Answer(200, msgspec.json.encode({"status": "ok", "scheduler": state}))

    async def _metrics(self) -> Answer:
        return Answer(200, expose(await self._snapshot()), CONTENT_TYPE)


def _path(target: bytes) -> str:
    """The path of a request's target, which may be a whole URL (as for a proxy), without its query."""
    path = target.partition(b"?")[0]
    if not path.startswith(b"/"):
        _, is_url, rest = path.partition(b"://")
        if is_url:
            path = b"/" + rest.partition(b"/")[2]
    return path.decode("latin-1")

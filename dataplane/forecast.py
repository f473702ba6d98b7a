"""`GET /v1/forecast?run=…&steps=…`: what a run's next steps will take, as the scheduler sees it."""

from __future__ import annotations

import urllib.parse

import grpc
import msgspec

from common.ids import ID_SHAPE, Caller, is_id
from dataplane import errors
from dataplane.identity import RUN_ID
from dataplane.request import Answer
from dataplane.scheduler_client import SchedulerClient
from protos import scheduler_pb2

ANSWER_S_MAX = 5.0
STEPS_MAX = 10_000
_STEPS = 10


class Asked(msgspec.Struct, frozen=True):
    """Which run, and how far."""

    run_id: str
    steps: int


def read(target: bytes) -> Asked | errors.ApiError:
    """What the query of `target` asks for, or a 400."""
    query = urllib.parse.parse_qs(target.partition(b"?")[2].decode("latin-1"), keep_blank_values=True)
    unknown = sorted(query.keys() - {"run", "steps"})
    if unknown:
        return errors.invalid(unknown[0][:64], "no such parameter; there are run and steps")
    run_id, steps = query.get("run", [""])[-1], query.get("steps", [str(_STEPS)])[-1]
    if not is_id(run_id):
        return errors.invalid("run", f"expected {ID_SHAPE}")
    if not (steps.isascii() and steps.isdigit() and len(steps) <= 5 and 1 <= int(steps) <= STEPS_MAX):
        return errors.invalid("steps", f"expected a whole number, 1 to {STEPS_MAX}")
    return Asked(run_id, int(steps))


async def answer(scheduler: SchedulerClient, asked: Asked, caller: Caller) -> Answer:
    """The forecast, or 404 where nothing is known of the run, 503 where the scheduler does not answer."""
    stub = scheduler.stub()
    request = scheduler_pb2.ForecastRequest(run_id=asked.run_id, caller=caller, steps=asked.steps)
    found: scheduler_pb2.ForecastResponse | None = None
    try:
        if stub is not None:
            found = await stub.Forecast(request, timeout=ANSWER_S_MAX, metadata=scheduler.metadata)
    except grpc.aio.AioRpcError as problem:
        if problem.code() is grpc.StatusCode.NOT_FOUND:
            error = errors.nothing_to_forecast(asked.run_id, caller)
            return Answer(error.status, error.body())
    if found is None:
        error = errors.scheduler_absent()
        return Answer(error.status, error.body())
    figures = {name: _figure(getattr(found, name)) for name in ("tokens", "usd", "wait_s", "suspensions")}
    body = msgspec.json.encode({"run": asked.run_id, "steps": found.steps, **figures})
    return Answer(200, body, lines=b"%b: %b\r\n" % (RUN_ID, asked.run_id.encode()))


def _figure(figure: scheduler_pb2.Figure) -> dict[str, float]:
    return {name: round(getattr(figure, name), 6) for name in ("mean", "deviation", "p95")}

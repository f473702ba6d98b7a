"""Clients of a whole stack of real processes, and what must hold of it once they are gone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import aiohttp

from loadgen.chaos_link import HOST
from loadgen.chaos_rig import MODEL, Rig, get
from tests.waiting import wait_until

TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
SLOW = "SLOW"
"""A turn that says so stalls, once `stall` was called."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    """Whether the body came to its end; a stream, to its last event."""

    @property
    def error(self) -> str:
        """The message of an error in OpenAI's shape."""
        return str(json.loads(self.body)["error"]["message"])

    @property
    def message(self) -> dict[str, Any]:
        """The message of a completion that was not streamed."""
        found: dict[str, Any] = json.loads(self.body)["choices"][0]["message"]
        return found


def base_url(rig: Rig, dataplane: int = 0) -> str:
    """Where OpenAI clients go."""
    return f"http://{HOST}:{rig.ports.dataplanes[dataplane]}/v1"


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    """A body."""
    return {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": text}], **more}


def calling(text: str = "hello") -> dict[str, Any]:
    """A body whose reply is a tool call, so that the run pauses."""
    return chat(text, tools=[TOOL], tool_choice="required", max_tokens=64)


def named(run: str, caller: str = "me", run_class: str = "interactive") -> dict[str, str]:
    """Headers of a run."""
    return {"x-luftpause-run-id": run, "x-luftpause-caller": caller, "x-luftpause-class": run_class}


class Client:
    """One client with connections of its own. `async with` closes them."""

    def __init__(self, rig: Rig, dataplane: int = 0) -> None:
        self._url = base_url(rig, dataplane)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Client:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._session.close()

    async def ask(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        """One turn to its end, whole or not."""
        async with self._session.post(f"{self._url}/chat/completions", json=body, headers=headers) as answer:
            received = bytearray()
            whole = True
            try:
                async for part in answer.content.iter_any():
                    received += part
            except aiohttp.ClientPayloadError:
                whole = False
            if body.get("stream") and answer.status == 200:
                whole = whole and received.endswith(b"data: [DONE]\n\n")
            return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, bytes(received), whole)

    def stream(self, body: dict[str, Any], headers: dict[str, str]) -> Any:
        """A streamed turn that the caller reads, and may leave."""
        url = f"{self._url}/chat/completions"
        return self._session.post(url, json={**body, "stream": True}, headers=headers)

    async def end_run(self, run: str, caller: str = "me") -> None:
        """Says that the run has ended."""
        async with self._session.delete(f"{self._url}/runs/{run}", headers={"x-luftpause-caller": caller}) as answer:
            assert answer.status == 200


async def script(rig: Rig, engine: str, *faults: dict[str, Any]) -> None:
    """Sets the faults of an engine; none: it works."""
    url = f"{rig.engine_url(engine)}/fake/faults"
    async with aiohttp.ClientSession() as session:
        await (await session.delete(url)).read()
        if faults:
            async with session.post(url, json=list(faults)) as answer:
                assert answer.status == 200, await answer.text()


async def status(rig: Rig) -> dict[str, Any]:
    """The scheduler's status; raises OSError while it is not there."""
    body = await get(f"http://{HOST}:{rig.ports.status}/status")
    if body is None:
        raise OSError("no status")
    found: dict[str, Any] = json.loads(body)
    return found


async def phases(rig: Rig) -> dict[str, int]:
    """How many runs are in each phase."""
    counts: dict[str, int] = {}
    for entry in (await status(rig))["runs"]:
        counts[entry["phase"]] = counts.get(entry["phase"], 0) + entry["runs"]
    return counts


async def in_flight(rig: Rig) -> dict[str, int]:
    """Turns in flight by replica, as the scheduler counts them."""
    return {replica["name"]: replica["in_flight"] for replica in (await status(rig))["replicas"]}


async def held(rig: Rig) -> int:
    """Held turns, as the scheduler counts them."""
    return sum(entry["turns"] for entry in (await status(rig))["held"])


async def gauge(rig: Rig, name: str, dataplane: int = 0) -> int:
    """A number of a dataplane's metrics."""
    text = (await get(f"http://{HOST}:{rig.ports.dataplanes[dataplane]}/metrics") or b"").decode()
    found = re.search(rf"^luftpause_dataplane_{name} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return int(float(found[1]))


async def open_requests(rig: Rig, engine: str) -> int:
    """Requests that an engine works on."""
    stats = json.loads(await get(f"{rig.engine_url(engine)}/fake/stats") or "{}")
    return int(stats.get("open", 0))


async def is_quiet(rig: Rig) -> bool:
    """Whether no count of the scheduler, the dataplanes or the engines says that a turn is there."""
    dataplanes = [number for number in (0, 1) if f"dataplane-{number}" in rig.processes]
    counts = [*(await in_flight(rig)).values(), await held(rig), (await phases(rig)).get("generating", 0)]
    for number in dataplanes:
        counts += [await gauge(rig, "turns_held", number), await gauge(rig, "turns_in_flight", number)]
    counts += [await open_requests(rig, engine) for engine in ("engine-0", "engine-1")]
    return not any(counts)


async def home_of(rig: Rig, client: Client, run: str, body: dict[str, Any] | None = None) -> str:
    """The engine that a turn of the run (`body`, or one without a tool call) goes to, by what came through the
    links."""
    before = {name: rig.links[f">{name}"].request_ids.total() for name in ("engine-0", "engine-1")}
    answer = await client.ask(body or chat(), named(run))
    assert answer.status == 200, answer.body
    (engine,) = (name for name, count in before.items() if rig.links[f">{name}"].request_ids.total() > count)
    return engine


def is_once(rig: Rig) -> bool:
    """Whether every turn came to engines at most once, over all that happened."""
    ids = rig.links[">engine-0"].request_ids + rig.links[">engine-1"].request_ids
    return max(ids.values(), default=0) <= 1


async def wait_healthy(rig: Rig, *engines: str) -> None:
    """Waits until the scheduler has found the named engines healthy, and no other."""

    async def found() -> bool:
        replicas = (await status(rig))["replicas"]
        return {each["name"] for each in replicas if each["healthy"] and each["models"]} == set(engines)

    await wait_until(found, what=f"exactly {engines} are healthy")

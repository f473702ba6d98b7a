"""MCP sessions of the older era: forgotten when idle, and limited per token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.runtime.test_mcp import call, connected
from tests.waiting import wait_until

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
SESSION = "mcp-session-id"
SHARED = "shared"
MAX = 3
TOKENS = """
[[token]]
name = "alice"
secret_env = "ALICE_TOKEN"
caller = "alice"
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    folder = tmp_path_factory.mktemp("sessions")
    (folder / "tokens.toml").write_text(TOKENS)
    settings = {
        "LUFTPAUSE_TOKEN": "shared",
        "LUFTPAUSE_TOKENS": str(folder / "tokens.toml"),
        "ALICE_TOKEN": "of-alice",
        "LUFTPAUSE_RUNTIME_SESSIONS_MAX": str(MAX),
        "LUFTPAUSE_RUNTIME_SESSION_IDLE_S": "4",
    }
    with running_runtime(folder, settings) as made:
        yield made


class Web:
    """Requests as a client sends them."""

    def __init__(self, runtime: RuntimeProcess, http: aiohttp.ClientSession) -> None:
        self._url = runtime.mcp_url
        self._http = http

    async def opened(self, token: str = SHARED) -> str:
        """A new session."""
        async with self._http.post(self._url, json=INITIALIZE, headers=_shown(token)) as answer:
            assert answer.status == 200
            return answer.headers[SESSION]

    async def status(self, session: str, token: str = SHARED, method: str = "POST", message: Any = PING) -> int:
        """How a request of a session is answered."""
        headers = _shown(token) | {SESSION: session}
        async with self._http.request(method, self._url, json=message, headers=headers) as answer:
            return answer.status

    @contextlib.asynccontextmanager
    async def streaming(self, session: str) -> AsyncIterator[None]:
        """A stream of the session is open."""
        async with self._http.get(self._url, headers=_shown("shared") | {SESSION: session}) as answer:
            assert answer.status == 200
            yield


def _shown(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
async def web(runtime: RuntimeProcess) -> AsyncIterator[Web]:
    async with aiohttp.ClientSession(headers={"Accept": "application/json, text/event-stream"}) as http:
        yield Web(runtime, http)


async def test_the_idlest_session_of_a_token_ends_for_a_new_one(web: Web) -> None:
    alices = await web.opened("of-alice")
    first, second, third = [await web.opened() for _ in range(MAX)]
    assert await web.status(first) == 200
    fourth = await web.opened()
    assert [await web.status(each) for each in (second, first, third, fourth)] == [404, 200, 200, 200]
    assert await web.status(alices, "of-alice") == 200


async def test_a_session_with_an_open_stream_is_not_idle_and_where_none_is_a_further_one_is_refused(
    web: Web, runtime: RuntimeProcess
) -> None:
    sessions = [await web.opened() for _ in range(MAX)]
    async with contextlib.AsyncExitStack() as streams:
        for each in sessions:
            await streams.enter_async_context(web.streaming(each))
        async with aiohttp.ClientSession(headers={"Accept": "application/json, text/event-stream"}) as http:
            for _ in range(2):
                async with http.post(runtime.mcp_url, json=INITIALIZE, headers=_shown("shared")) as answer:
                    assert answer.status == 503
                    assert "too many MCP sessions" in (await answer.json())["error"]["message"]
        await web.opened("of-alice")
        async with connected(runtime, token="shared") as client:  # the newer era has none
            await call(client, "tools")
        assert [await web.status(each) for each in sessions] == [200] * MAX
        await asyncio.sleep(5)  # idle for longer than they may be, but for their streams
        assert [await web.status(each) for each in sessions] == [200] * MAX
        assert await web.status(sessions[0], method="DELETE") == 200
        await web.opened()


async def test_a_session_is_forgotten_when_it_was_idle_and_its_run_is_not(web: Web, runtime: RuntimeProcess) -> None:
    async with connected(runtime, "legacy", token="shared") as client:
        handle = (await call(client, "spawn", task="hello"))["handle"]
    session = await web.opened()

    async def is_gone() -> bool:
        await asyncio.sleep(4.5)
        return await web.status(session) == 404

    await wait_until(is_gone, 30, "the session is forgotten")
    async with connected(runtime, "legacy", token="shared") as client:
        [told] = (await call(client, "await", handles=[handle]))["results"]
        assert told["state"] == "Completed"

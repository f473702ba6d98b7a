"""The adapters: openai and LangGraph through a real dataplane, anthropic's client at a scripted endpoint, LiteLLM with
a module of the same shape."""

from __future__ import annotations

import asyncio
import collections
import http.client
import json
import pathlib
import sys
import types
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from aiohttp import web
from anthropic import Anthropic, RateLimitError
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from luftpause_client import Luftpause, LuftpauseError, NotNowError, Reading, Window, session
from luftpause_client.adapters.anthropic import AnthropicTurn
from luftpause_client.adapters.langgraph import suspending
from luftpause_client.adapters.litellm import LiteLLMTurn
from luftpause_client.adapters.openai import OpenAITurn
from openai import OpenAI
from pydantic import SecretStr

from loadgen.ports import free_ports
from tests.servers import web_server
from tests.stack import fetched, running_stack, started, wait_healthy

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@dataclass
class Served:
    """A dataplane in front of an engine (`fake-1b`) and of a provider with a small window (`fake-hosted`)."""

    base_url: str
    provider: str

    def refused(self) -> int:
        """Answers 429 of the provider."""
        return int(json.loads(fetched(f"{self.provider}/fake/stats") or b"{}")["refused"])


@pytest.fixture
def http_client() -> Iterator[httpx2.Client]:
    """What the clients of a test speak by; left to the garbage collector, it may be found open."""
    with httpx2.Client(timeout=30) as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    engine_port, provider_port = free_ports(2)
    engine, provider = f"http://127.0.0.1:{engine_port}", f"http://127.0.0.1:{provider_port}"
    pool = folder / "limits.toml"
    pool.write_text(
        f'[[replica]]\nname = "engine"\nurl = "{engine}"\nmodels = ["fake-1b"]\n'
        f'[[replica]]\nname = "hosted"\nurl = "{provider}"\nmodels = ["fake-hosted"]\n'
        "limits = { tokens_per_minute = 600 }\n"
    )
    engine_settings = {"LUFTPAUSE_ENGINE_PORTS": str(engine_port), "LUFTPAUSE_ENGINE_SPEED": "10"}
    provider_settings = {
        "LUFTPAUSE_PROVIDER_PORT": str(provider_port),
        "LUFTPAUSE_PROVIDER_WINDOW_TOKENS": "600",
        "LUFTPAUSE_PROVIDER_TOKEN_MS": "1",
    }
    with (
        started("fakes.engine", engine_settings, folder / "engine.log") as first,
        started("fakes.provider", provider_settings, folder / "provider.log") as second,
    ):
        wait_healthy(first, (f"{engine}/health",))
        wait_healthy(second, (f"{provider}/health",))
        with running_stack(folder, 2, {"LUFTPAUSE_POOL": str(pool)}, (engine, provider)) as stack:
            yield Served(stack.base_url, provider)


def test_turns_of_an_openai_client_are_one_run_and_a_reply_without_content_goes_back(
    served: Served, http_client: httpx2.Client, tmp_path: pathlib.Path
) -> None:
    luftpause = Luftpause(served.base_url, caller="me")
    client = OpenAI(base_url=served.base_url, api_key="none", http_client=http_client)
    turn = OpenAITurn(client, "fake-1b", max_tokens=64, tools=TOOLS, extra_headers=luftpause.headers("one-run"))
    with session("one-run", turn, telemetry=luftpause, folder=tmp_path) as run:
        run.messages.append({"role": "user", "content": "CALL look {}"})
        assert run.next_action() == "continue"
        reply = run.call()
        assert reply["content"] is None
        [call] = reply["tool_calls"]
        run.messages += [reply, {"role": "tool", "tool_call_id": call["id"], "content": "nothing"}]
        run.checkpoint()
    with session("one-run", turn, telemetry=luftpause, folder=tmp_path) as run:
        spent = run.spent_tokens
        assert run.call()["role"] == "assistant"
        assert run.spent_tokens > spent > 0
        with pytest.raises(LuftpauseError, match=r"409.*one-run"):
            Luftpause(served.base_url, caller="you").end("one-run")
        run.complete()


def test_a_run_leaves_before_luftpause_would_hold_it_for_long(
    served: Served, http_client: httpx2.Client, tmp_path: pathlib.Path
) -> None:
    luftpause = Luftpause(served.base_url)
    client = OpenAI(base_url=served.base_url, api_key="none", http_client=http_client)
    turn = OpenAITurn(client, "fake-hosted", max_tokens=60, extra_headers=luftpause.headers("leaves"))
    with session("leaves", turn, telemetry=luftpause, folder=tmp_path) as run:
        run.messages.append({"role": "user", "content": "word " * 150})
        with pytest.raises(NotNowError) as refused:
            collections.deque((run.call() for _ in range(10)), maxlen=0)
        assert refused.value.outlook.action == "checkpoint"
        assert refused.value.outlook.wait_s is not None
        assert 15 < refused.value.outlook.wait_s <= 60
        assert run.turns >= 1
        run.checkpoint()
    with session("leaves", turn, telemetry=luftpause, folder=tmp_path) as run:
        assert run.should_suspend()
    assert served.refused() == 0


def test_a_graph_is_interrupted_before_the_call_and_goes_on_when_there_is_room(
    served: Served, http_client: httpx2.Client, tmp_path: pathlib.Path
) -> None:
    left: list[Reading] = [0]
    asked = 0
    headers = Luftpause(served.base_url).headers("graph")
    model = ChatOpenAI(
        base_url=served.base_url, api_key=SecretStr("none"), model="fake-1b", max_completion_tokens=32,
        default_headers=headers, max_retries=0, http_client=http_client,
    )  # fmt: skip

    def turn(state: MessagesState) -> MessagesState:
        nonlocal asked
        asked += 1
        return {"messages": [model.invoke(state["messages"])]}

    with session("graph", telemetry=lambda: left[0], folder=tmp_path) as run:
        graph = StateGraph(MessagesState)
        graph.add_node("turn", suspending(run, turn))
        graph.add_edge(START, "turn")
        agent = graph.compile(checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "graph"}}
        found: Any = agent.invoke(MessagesState(messages=[HumanMessage("Hello")]), config)
        for _ in range(2):
            [interrupt] = found["__interrupt__"]
            assert interrupt.value["action"] == "checkpoint"
            assert "0 remain" in interrupt.value["reason"]
            assert (asked, run.turns) == (0, 0)
            found = agent.invoke(Command(resume=True), config)  # too early
        left[0] = 1e6
        found = agent.invoke(Command(resume=True), config)
        assert "__interrupt__" not in found
        assert asked == run.turns == 1
        assert run.spent_tokens == found["messages"][-1].usage_metadata["total_tokens"]


def test_an_async_node_is_refused(tmp_path: pathlib.Path) -> None:
    async def node(_: object) -> None: ...

    with session("graph", folder=tmp_path) as run, pytest.raises(TypeError, match="node: expected a plain function"):
        suspending(run, node)


class Client:
    """Shaped as openai's and anthropic's: whatever is asked of it ends in `create`, which gives `answer`."""

    def __init__(self, answer: object, headers: dict[str, str]) -> None:
        self.chat = self.completions = self.messages = self.with_raw_response = self
        self.asked: dict[str, Any] = {}
        self.options: dict[str, Any] = {}
        self._raw = SimpleNamespace(headers=headers, parse=lambda: answer)

    def with_options(self, **options: Any) -> Client:
        self.options = options
        return self

    def create(self, **asked: Any) -> object:
        self.asked = asked
        return self._raw


async def test_an_anthropic_client_gives_turns_and_windows() -> None:
    """The client is the real one, the endpoint is not: it answers as the API's reference says."""
    asked: list[dict[str, Any]] = []
    headers = {
        "anthropic-ratelimit-tokens-limit": "1000",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "2999-01-01T00:00:00Z",
    }
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [
            {"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 20, "output_tokens": 5, "cache_read_input_tokens": 9},
    }

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        if len(asked) == 2:
            error = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
            return web.json_response(error, status=429, headers=headers | {"retry-after": "30"})
        return web.json_response(message, headers=headers)

    app = web.Application()
    app.router.add_post("/v1/messages", answer)
    async with web_server(app) as origin:
        with Anthropic(base_url=origin, api_key="none", max_retries=5) as client:
            turn = AnthropicTurn(client, "claude", 64, system="Be short.")
            assert turn.windows() == ()
            user = {"role": "user", "content": "Hello"}
            reply, tokens_used = await asyncio.to_thread(turn, [user])
            assert reply == {"role": "assistant", "content": message["content"]}
            assert tokens_used == 25
            [window] = turn.windows()
            assert (window.limit, round(window.remaining)) == (1000, 0)
            with pytest.raises(RateLimitError):
                await asyncio.to_thread(turn, [user, reply])
    assert asked == [
        {"model": "claude", "max_tokens": 64, "system": "Be short.", "messages": messages}
        for messages in ([user], [user, reply])
    ]


def test_litellm_gives_turns_and_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    completion = SimpleNamespace(
        choices=[SimpleNamespace(message=SimpleNamespace(content=None, tool_calls=None))],
        usage=SimpleNamespace(prompt_tokens=7, completion_tokens=2),
        _hidden_params={"additional_headers": {"llm_provider-x-ratelimit-remaining-requests": 3}},
    )
    module = types.ModuleType("litellm")
    monkeypatch.setattr(module, "completion", lambda **options: asked.update(options) or completion, raising=False)
    monkeypatch.setitem(sys.modules, "litellm", module)
    turn = LiteLLMTurn("openai/fake", api_base="http://127.0.0.1:1/v1")
    assert turn([{"role": "user", "content": "Hello"}]) == ({"role": "assistant", "content": None}, 9)
    assert turn.windows() == (Window(3.0, None, None, "requests"),)
    assert (asked["model"], asked["num_retries"]) == ("openai/fake", 0)


def test_without_litellm_its_turn_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ImportError, match="litellm"):
        LiteLLMTurn("openai/fake")


def test_an_answer_that_tells_no_usage_counts_as_what_was_likely() -> None:
    message = SimpleNamespace(content="Hi", tool_calls=None)
    for usage in (None, SimpleNamespace(prompt_tokens=None, completion_tokens=None)):
        answer = SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=usage)
        assert OpenAITurn(Client(answer, {}), "m")([{"role": "user", "content": "Hello"}])[1] > 256
    with pytest.raises(ValueError, match="no choices"):
        OpenAITurn(Client(SimpleNamespace(choices=[]), {}), "m")([])


def test_the_openai_turn_passes_a_refusal_on(
    served: Served, http_client: httpx2.Client, tmp_path: pathlib.Path
) -> None:
    parts = urllib.parse.urlsplit(served.provider)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    connection.request("POST", "/fake/failures", json.dumps({"status": 429, "count": 1}))
    assert connection.getresponse().status == 200
    connection.close()
    client = OpenAI(base_url=f"{served.provider}/v1", api_key="none", max_retries=5, http_client=http_client)
    with session("refused", OpenAITurn(client, "fake-hosted"), folder=tmp_path) as run:
        run.messages.append({"role": "user", "content": "Hello"})
        with pytest.raises(NotNowError, match="a rate limit refused the turn"):
            run.call()
        assert run.spent_tokens == 0

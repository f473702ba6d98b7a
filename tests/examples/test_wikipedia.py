"""The Wikipedia tool server, used by a toolbox, against a stand-in for Wikipedia."""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import pathlib
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from mcp.server.mcpserver.exceptions import ToolError

from examples.wikipedia import server as example
from runtime.tool_config import Server, load
from runtime.tool_specs import Done, EffectKind
from tests.runtime.tool_servers import call, opened
from tests.servers import web_server
from tests.stack import ROOT

PAGE = {
    "title": "Paris",
    "extract": "Paris is the capital of France.",
    "content_urls": {"desktop": {"page": "https://en.wikipedia.org/wiki/Paris"}},
}
FOUND = {
    "pages": [
        {"title": "Paris", "description": "Capital of France", "excerpt": ""},
        {"title": "Paris, Texas", "description": None, "excerpt": 'A <span class="m">city</span> &amp; a film'},
    ]
}
Answer = Callable[[web.Request], web.Response]


class Standin:
    """Answers with what `answers` holds, one after the other, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[web.Request] = []

    async def serve(self, request: web.Request) -> web.Response:
        """Answers one request."""
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(request)


def json_of(value: object) -> Answer:
    """An answer 200."""
    return lambda _: web.json_response(value)


def status(code: int, **headers: str) -> Answer:
    """An answer that refuses."""
    return lambda _: web.Response(status=code, headers={name.replace("_", "-"): text for name, text in headers.items()})


@contextlib.asynccontextmanager
async def standing_in(*answers: Answer) -> AsyncIterator[tuple[Standin, str]]:
    """A stand-in, and its origin."""
    standin = Standin(*answers)
    app = web.Application()
    app.router.add_route("GET", "/{path:.*}", standin.serve)
    async with web_server(app) as origin:
        yield standin, origin


async def test_a_toolbox_searches_and_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with standing_in(json_of(FOUND), json_of(PAGE)) as (standin, origin):
        monkeypatch.setenv("WIKIPEDIA_URL", origin)
        monkeypatch.setenv("WIKIPEDIA_CONTACT", "someone@example.org")
        command = (sys.executable, str(ROOT / "examples" / "wikipedia" / "server.py"))
        async with opened(Server("wikipedia", command=command, env=("WIKIPEDIA_URL", "WIKIPEDIA_CONTACT"))) as toolbox:
            assert {tool.name: tool.kind for tool in toolbox.tools()} == {
                "search": EffectKind.READ_ONLY,
                "summary": EffectKind.READ_ONLY,
            }
            found = await call(toolbox, "search", query="paris", limit=2)
            assert found == Done("Paris: Capital of France\nParis, Texas: A city & a film", is_error=False)
            read = await call(toolbox, "summary", title="Paris, Texas")
            link = "https://en.wikipedia.org/wiki/Paris"
            assert read == Done(f"Paris\nParis is the capital of France.\n{link}", is_error=False)
    asked, opened_page = standin.requests
    assert asked.query == {"q": "paris", "limit": "2"}
    assert opened_page.raw_path == "/api/rest_v1/page/summary/Paris%2C_Texas"
    assert "someone@example.org" in asked.headers["User-Agent"]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, none of which is waited for."""
    made: list[float] = []

    async def sleep(pause_s: float) -> None:
        made.append(pause_s)

    monkeypatch.setattr(example, "sleep", sleep)
    return made


async def asked(origin: str, monkeypatch: pytest.MonkeyPatch, tool: Callable[[], Awaitable[str]]) -> str:
    """What the tool answers, or the error that it raises."""
    monkeypatch.setattr(example, "BASE_URL", origin)
    try:
        return await tool()
    except ToolError as error:
        return f"Error: {error}"


async def test_a_rate_limit_is_waited_for(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    answers = (status(429, Retry_After="2"), status(503), json_of(PAGE))
    async with standing_in(*answers) as (standin, origin):
        assert (await asked(origin, monkeypatch, lambda: example.summary("Paris"))).startswith("Paris\n")
        assert len(standin.requests) == 3
    assert 2.0 <= pauses[0] <= 3.0
    assert 1.0 <= pauses[1] <= 1.5


async def test_tries_are_bounded(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    async with standing_in(status(429)) as (standin, origin):
        told = await asked(origin, monkeypatch, lambda: example.search("x"))
        assert told == "Error: Wikipedia does not answer: it answered 429"
        assert len(standin.requests) == 4
    assert len(pauses) == 3


async def test_a_long_pause_is_told_not_waited_for(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    async with standing_in(status(429, Retry_After="120")) as (standin, origin):
        told = await asked(origin, monkeypatch, lambda: example.search("x"))
        assert told == "Error: Wikipedia asks to wait 120 s before the next request"
        assert len(standin.requests) == 1
    assert pauses == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (status(404), "Error: there is no page 'x'; search for its title"),
        (status(403), "Error: Wikipedia does not answer: it answered 403"),
        (lambda _: web.Response(text="words"), "Error: Wikipedia's answer cannot be read"),
        (json_of([]), "Error: Wikipedia's answer cannot be read"),
    ],
)
async def test_what_is_final_is_not_repeated(
    answer: Answer, told: str, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    async with standing_in(answer) as (standin, origin):
        assert await asked(origin, monkeypatch, lambda: example.summary("x")) == told
        assert len(standin.requests) == 1
    assert pauses == []


async def test_nobody_there_is_told_after_the_last_try(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    async with standing_in(status(200)) as (_, origin):
        pass
    told = await asked(origin, monkeypatch, lambda: example.search("x"))
    assert told.startswith("Error: Wikipedia does not answer: ")
    assert len(pauses) == 3


def test_a_pause_is_named_in_seconds_or_as_a_date() -> None:
    now = time.time()
    assert example.retry_after_s(None, now) is None
    assert example.retry_after_s("3", now) == 3.0
    assert example.retry_after_s("0.5", now) == 0.5
    date = email.utils.formatdate(now + 5, usegmt=True)
    assert 3.9 < (example.retry_after_s(date, now) or 0) < 5.1
    assert example.retry_after_s(email.utils.formatdate(now - 5, usegmt=True), now) == 0.0
    assert example.retry_after_s("soon", now) is None


@pytest.mark.parametrize("document", ["docs/guide.md", "examples/wikipedia/README.md"])
async def test_the_tools_file_that_a_document_shows_starts_the_server(
    document: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    [shown] = [block for block in blocks if "examples/wikipedia/server.py" in block]
    (tmp_path / "tools.toml").write_text(shown)
    [server] = load(tmp_path / "tools.toml")
    monkeypatch.setenv("WIKIPEDIA_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("WIKIPEDIA_CONTACT", "me@example.org")
    async with opened(dataclasses.replace(server, folder=ROOT)) as toolbox:
        [told] = toolbox.status()
        assert told.up, told.reason
        assert len(told.tools) == 2

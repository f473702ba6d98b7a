"""Through all three services as real processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stack import Stack, running_stack

ME = {"x-luftpause-caller": "me"}


def ask(
    stack: Stack, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request."""
    parts = urllib.parse.urlsplit(stack.base_url)
    with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=30)) as connection:
        connection.request(method, parts.path + path, json.dumps(body) if body else None, headers or {})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


@pytest.fixture
def stack(tmp_path: pathlib.Path) -> Iterator[Stack]:
    with running_stack(tmp_path, replicas=2) as running:
        yield running


@pytest.mark.e2e
def test_a_run_streams_goes_on_and_ends(stack: Stack) -> None:
    model = json.loads(ask(stack, "GET", "/models")[2])["data"][0]["id"]
    body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    _, headers, first = ask(stack, "POST", "/chat/completions", {**body, "stream": True}, ME)
    run_id = headers["x-luftpause-run-id"]
    assert first.endswith(b"data: [DONE]\n\n")
    assert b'"usage":{' not in first.replace(b" ", b"")
    named = {"x-luftpause-run-id": run_id}
    _, headers, second = ask(stack, "POST", "/chat/completions", body, {**ME, **named})
    assert headers["x-luftpause-run-id"] == run_id
    assert json.loads(second)["usage"]["completion_tokens"] > 0
    status, _, refused = ask(stack, "POST", "/chat/completions", body, {**named, "x-luftpause-caller": "you"})
    assert status == 409, refused
    assert ask(stack, "DELETE", f"/runs/{run_id}", None, ME)[0] == 200

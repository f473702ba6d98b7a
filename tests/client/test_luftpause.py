"""luftpause as telemetry: what its answers mean, whatever they are."""

from __future__ import annotations

import contextlib
import http.server
import pathlib
import threading
from collections.abc import Iterator

import pytest
from luftpause_client import Action, Luftpause, LuftpauseError, session

from loadgen.ports import free_ports


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """A server that answers everything so; its base URL, and what it was asked."""
    asked: list[tuple[str, dict[str, str]]] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append((f"{self.command} {self.path}", {k.lower(): v for k, v in self.headers.items()}))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("wait_s", "action"), [(0, Action.CONTINUE), (9.5, Action.CONTINUE), (15.1, Action.CHECKPOINT)]
)
def test_a_short_wait_is_luftpauses_own_and_a_long_one_is_to_suspend_for(
    tmp_path: pathlib.Path, wait_s: float, action: Action
) -> None:
    body = b'{"run": "r", "steps": 1, "wait_s": {"mean": %r, "deviation": 0, "p95": 99}}' % wait_s
    with (
        answering(200, body) as (url, asked),
        session("r", telemetry=Luftpause(url, caller="me"), folder=tmp_path) as run,
    ):
        assert run.outlook().action is action
        [(line, headers)] = asked
        assert line == "GET /v1/forecast?run=r&steps=1"
        assert headers["x-luftpause-caller"] == "me"
        assert "authorization" not in headers


def test_a_run_that_ends_is_told(tmp_path: pathlib.Path) -> None:
    with answering(200, b"{}") as (url, asked):
        with session("a:b", telemetry=Luftpause(url, token="open-sesame"), folder=tmp_path) as run:
            run.complete()
        [(line, headers)] = asked
        assert line == "DELETE /v1/runs/a%3Ab"
        assert headers["authorization"] == "Bearer open-sesame"


@pytest.mark.parametrize("status", [404, 500, 503])
def test_luftpause_that_knows_nothing_of_the_run_holds_its_turns_by_itself(status: int, tmp_path: pathlib.Path) -> None:
    with answering(status, b"") as (url, _), session("r", telemetry=Luftpause(url), folder=tmp_path) as run:
        assert run.next_action() == "continue"


def test_luftpause_that_is_not_there_is_no_reason_to_leave(tmp_path: pathlib.Path) -> None:
    [port] = free_ports(1)
    with session("r", telemetry=Luftpause(f"http://127.0.0.1:{port}/v1"), folder=tmp_path) as run:
        assert run.next_action() == "continue"
        run.complete()


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (401, b'{"error": {"message": "the token is wrong"}}', "luftpause answered 401: the token is wrong"),
        (400, b"<html>", "luftpause answered 400: <html>"),
        (200, b"<html>", "expected JSON"),
        (200, b"[]", "expected a forecast"),
        (200, b'{"wait_s": {"mean": null}}', "expected a forecast"),
        (200, b'{"wait_s": {"mean": -1}}', "expected a forecast"),
    ],
)
def test_a_refusal_is_a_clear_error(status: int, body: bytes, problem: str) -> None:
    with answering(status, body) as (url, _), pytest.raises(LuftpauseError, match=problem):
        Luftpause(url).wait_s("r")


def test_wrong_arguments_are_named() -> None:
    for url in ("", "localhost:8080", "ftp://host/v1", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="base_url: expected"):
            Luftpause(url)
    with pytest.raises(ValueError, match="run_class: expected"):
        Luftpause(run_class="urgent")  # type: ignore[arg-type]

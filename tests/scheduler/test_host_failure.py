"""What the host does when the core is at fault."""

from __future__ import annotations

import logging

import pytest

from scheduler.events import Ticked
from tests.scheduler.running_host import running_host


async def test_a_fault_in_decide_is_logged_and_ends_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_host() as running:
        before = running.host.state

        def faulty(_state: object, _event: object) -> None:
            raise AssertionError("broken invariant")

        monkeypatch.setattr("scheduler.host.decide", faulty)
        with caplog.at_level(logging.ERROR):
            running.host.tell((Ticked(running.host.now()),))
        assert running.host.failed.is_set()
        assert "event=decide_failed kind=Ticked" in caplog.text
        monkeypatch.undo()
        running.host.tell((Ticked(running.host.now()),))
        assert running.host.state is before

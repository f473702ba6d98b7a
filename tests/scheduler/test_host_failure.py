"""What the host does when the core is at fault."""

from __future__ import annotations

import asyncio
import logging

import pytest

from common.auth import Guard
from common.ids import ReplicaName
from common.pool import Replica
from scheduler.__main__ import _serve
from scheduler.config import SchedulerConfig
from scheduler.events import Ticked
from tests.scheduler.running_host import running_host


def faulty(_state: object, _event: object) -> None:
    """A core that is at fault."""
    raise AssertionError("broken invariant")


async def test_a_fault_in_decide_is_logged_and_ends_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_host() as running:
        before = running.host.state
        monkeypatch.setattr("scheduler.host.decide", faulty)
        with caplog.at_level(logging.ERROR):
            running.host.tell((Ticked(running.host.now()),))
        assert running.host.failed.is_set()
        assert "event=decide_failed kind=Ticked" in caplog.text
        monkeypatch.undo()
        running.host.tell((Ticked(running.host.now()),))
        assert running.host.state is before


def test_a_fault_in_decide_ends_the_process_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.host.decide", faulty)
    pool = (Replica(ReplicaName("a"), "http://127.0.0.1:1"),)
    assert asyncio.run(_serve(SchedulerConfig(port=0, status_port=0), Guard(), pool, asyncio.Event())) == 1

"""What the dataplane says where it may open no more sockets."""

from __future__ import annotations

import os
import resource
import sys

import pytest

from dataplane import sockets
from dataplane.exchange import EngineError
from dataplane.pump import make_pump
from dataplane.upstream import Endpoint


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not list a process's files")
async def test_a_lack_of_files_is_logged_and_not_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sockets, "_told_at", {})
    endpoint = Endpoint("engine", "http://127.0.0.1:1", None, make_pump())
    with pytest.raises(EngineError, match="refused"):
        await endpoint.connect()
    assert caplog.messages == []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(map(int, os.listdir("/proc/self/fd"))), hard))
    try:
        for _ in range(3):
            with pytest.raises(EngineError, match="too many open files"):
                await endpoint.connect()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    said = "event=no_files_left error='too many open files' no engine can be reached: raise the limit (ulimit -n)"
    assert caplog.messages == [said]

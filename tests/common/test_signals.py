"""Every service ends with 0 on a signal, however many follow while it is ending."""

from __future__ import annotations

import pathlib
import signal

import pytest

from loadgen.ports import free_ports
from tests.stack import signal_until_ended, start
from tests.waiting import wait_until_sync

pytestmark = pytest.mark.e2e

NOTHING = "127.0.0.1:1"
SERVICES: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "scheduler": ("scheduler", {}, ("LUFTPAUSE_SCHEDULER_PORT", "LUFTPAUSE_SCHEDULER_STATUS_PORT")),
    "dataplane": ("dataplane", {"LUFTPAUSE_DATAPLANE_SCHEDULER": NOTHING}, ("LUFTPAUSE_DATAPLANE_PORT",)),
    "dataplane with workers": (
        "dataplane",
        {"LUFTPAUSE_DATAPLANE_SCHEDULER": NOTHING, "LUFTPAUSE_DATAPLANE_WORKERS": "2"},
        ("LUFTPAUSE_DATAPLANE_PORT",),
    ),
    "engine": ("fakes.engine", {}, ("LUFTPAUSE_ENGINE_PORTS",)),
    "tool server": ("fakes.toolserver", {}, ("LUFTPAUSE_TOOLS_PORT",)),
    "runtime": (
        "runtime",
        {"LUFTPAUSE_RUNTIME_DATAPLANE": f"http://{NOTHING}"},
        ("LUFTPAUSE_RUNTIME_PORT", "LUFTPAUSE_RUNTIME_GRPC_PORT"),
    ),
}


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", SERVICES)
def test_more_signals_while_it_ends_change_nothing(tmp_path: pathlib.Path, name: str, second: signal.Signals) -> None:
    module, settings, port_settings = SERVICES[name]
    pool = tmp_path / "pool.toml"
    pool.write_text(f'[[replica]]\nname = "a"\nurl = "http://{NOTHING}"\n')
    ports = dict(zip(port_settings, map(str, free_ports(len(port_settings))), strict=True))
    places = {"LUFTPAUSE_POOL": str(pool), "LUFTPAUSE_STATE": str(tmp_path / "state")}
    service = start(module, {**settings, **ports, **places}, tmp_path / "log")
    try:
        wait_until_sync(lambda: "listening" in service.text(), timeout_s=20)
        code = signal_until_ended(service.process, signal.SIGINT, second)
    finally:
        service.kill()
    assert code == 0, service.text()
    assert "Traceback" not in service.text()

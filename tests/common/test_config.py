"""What configurations read, and what they say of a wrong setting."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.config import Secret, ServiceConfig
from tests.stack import ROOT


class ExampleConfig(ServiceConfig):
    """A service's own settings."""

    model_config = SettingsConfigDict(env_prefix="LUFTPAUSE_EXAMPLE_")

    port: int = Field(default=1, ge=0)
    key: Secret | None = None


def said(monkeypatch: pytest.MonkeyPatch, **settings: str) -> str:
    """What reading wrong `settings` says."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        ExampleConfig.read()
    return str(ended.value.code)


def test_a_wrong_value_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    line = said(monkeypatch, LUFTPAUSE_EXAMPLE_PORT="-1")
    assert line == "setting LUFTPAUSE_EXAMPLE_PORT: Input should be greater than or equal to 0"


@pytest.mark.parametrize("name", ["LUFTPAUSE_TOKEN", "LUFTPAUSE_EXAMPLE_KEY"])
@pytest.mark.parametrize("value", ["open sesame", "s\u00e9same", "\udcffsesame", "sesame\n"])
def test_a_secret_that_no_header_can_carry_is_refused_and_never_printed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert said(monkeypatch, **{name: value}) == f"setting {name}: expected printable ASCII without spaces"


def test_every_wrong_setting_is_told_without_the_right_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    text = said(monkeypatch, LUFTPAUSE_TOKEN="sesame", LUFTPAUSE_EXAMPLE_KEY="open now", LUFTPAUSE_EXAMPLE_PORT="x")
    assert [line.split(":")[0] for line in text.splitlines()] == [
        "setting LUFTPAUSE_EXAMPLE_PORT",
        "setting LUFTPAUSE_EXAMPLE_KEY",
    ]
    assert "sesame" not in text
    assert "now" not in text


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("LUFTPAUSE_TOEKN", "LUFTPAUSE_TOKEN"),
        ("luftpause_toekn", "LUFTPAUSE_TOKEN"),
        ("LUFTPAUSE_EXAMPLE_PROT", "LUFTPAUSE_EXAMPLE_PORT"),
        ("LUFTPAUSE_EXAMPLE_TOKEN", "LUFTPAUSE_EXAMPLE_KEY"),
        ("LUFTPAUSE_DATAPLANE_HELDMAX", "LUFTPAUSE_DATAPLANE_HELD_MAX"),
        ("LUFTPAUSE_RUNTIM_TOOLS", "LUFTPAUSE_RUNTIME_TOOLS"),
    ],
)
def test_a_misspelt_setting_of_any_service_is_refused_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, nearest: str
) -> None:
    assert said(monkeypatch, **{name: "sesame"}) == f"unknown setting {name}; the nearest known one is {nearest}"


def test_settings_of_other_services_and_of_the_containers_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LUFTPAUSE_RUNTIME_TOOLS", "LUFTPAUSE_POOL_FILE", "LUFTPAUSE_VERSION"):
        monkeypatch.setenv(name, "x")
    assert ExampleConfig.read().port == 1


def test_only_our_variables_are_read_and_empty_ones_are_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "POOL", "STATE", "PORT", "KEY"):
        monkeypatch.setenv(name, "7")
    for name in ("LUFTPAUSE_TOKEN", "LUFTPAUSE_EXAMPLE_PORT"):
        monkeypatch.setenv(name, "")
    assert ExampleConfig.read() == ExampleConfig(token=None, port=1)
    monkeypatch.setenv("LUFTPAUSE_TOKEN", "sesame")
    assert ExampleConfig.read().token_text == "sesame"


MODULES = ("scheduler", "dataplane", "runtime", "fakes.engine", "fakes.provider", "fakes.toolserver")


@pytest.mark.parametrize("module", MODULES)
def test_a_service_that_is_asked_for_help_tells_its_settings_and_does_not_serve(module: str) -> None:
    command = [sys.executable, "-m", module]
    told = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.startswith(f"usage: python -m {module} ")
    assert "_PORT" in told.stdout
    wrong = subprocess.run([*command, "--colour"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.endswith("error: unrecognized arguments: --colour\n")

"""What configurations read, and what they say of a wrong setting."""

from __future__ import annotations

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.config import Secret, ServiceConfig


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


def test_a_shared_setting_under_a_services_prefix_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = said(monkeypatch, LUFTPAUSE_EXAMPLE_TOKEN="sesame")
    assert text == (
        "unknown setting LUFTPAUSE_EXAMPLE_TOKEN; known: LUFTPAUSE_EXAMPLE_KEY, LUFTPAUSE_EXAMPLE_PORT, "
        "LUFTPAUSE_LOG_LEVEL, LUFTPAUSE_POOL, LUFTPAUSE_STATE, LUFTPAUSE_TLS_CA, LUFTPAUSE_TLS_CERT, "
        "LUFTPAUSE_TLS_KEY, LUFTPAUSE_TOKEN, LUFTPAUSE_TOKENS, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL"
    )


def test_only_our_variables_are_read_and_empty_ones_are_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "POOL", "STATE", "PORT", "KEY"):
        monkeypatch.setenv(name, "7")
    for name in ("LUFTPAUSE_TOKEN", "LUFTPAUSE_EXAMPLE_PORT"):
        monkeypatch.setenv(name, "")
    assert ExampleConfig.read() == ExampleConfig(token=None, port=1)
    monkeypatch.setenv("LUFTPAUSE_TOKEN", "sesame")
    assert ExampleConfig.read().token_text == "sesame"

"""Names, kinds and hints of tools."""

from __future__ import annotations

import pytest

from runtime.tool_specs import EffectKind, ToolSpec, effect_kind, is_destructive, offered, plain_name, qualified_name


def spec(server: str, name: str) -> tuple[str, ToolSpec]:
    """A tool as its server lists it."""
    return name, ToolSpec(server, name, "", {}, EffectKind.READ_ONLY, destructive=False)


def names(*tools: tuple[str, ToolSpec]) -> list[str]:
    """What they are offered by."""
    return [tool.name for tool in offered(tools)]


def test_names_that_clash_are_qualified_for_both() -> None:
    assert names(spec("a", "x"), spec("a", "y"), spec("b", "x")) == ["a__x", "y", "b__x"]


def test_characters_that_engines_refuse_are_replaced() -> None:
    assert plain_name("files.read/all") == "files_read_all"
    assert plain_name("") == "_"
    assert names(spec("a", "x.y"), spec("b", "x-y")) == ["x_y", "x-y"]


def test_tools_of_one_server_that_cannot_be_told_apart_are_offered_once() -> None:
    assert names(spec("a", "x.y"), spec("a", "x/y")) == ["a__x_y"]


def test_long_names_are_cut_and_stay_apart() -> None:
    one, two = plain_name("a" * 200), plain_name("a" * 201)
    assert len(one) == len(two) == 64
    assert one != two
    assert len(qualified_name("s" * 32, "a" * 64)) == 64


@pytest.mark.parametrize(
    ("read_only", "idempotent", "kind"),
    [
        (True, None, EffectKind.READ_ONLY),
        (True, False, EffectKind.READ_ONLY),
        (None, True, EffectKind.IDEMPOTENT),
        (False, True, EffectKind.IDEMPOTENT),
        (None, None, EffectKind.AT_MOST_ONCE),
        (False, False, EffectKind.AT_MOST_ONCE),
    ],
)
def test_a_tool_that_says_nothing_runs_at_most_once(
    read_only: bool | None, idempotent: bool | None, kind: EffectKind
) -> None:
    assert effect_kind(read_only, idempotent) is kind


@pytest.mark.parametrize(
    ("destructive", "read_only", "asks"),
    [(True, None, True), (True, False, True), (True, True, False), (None, None, False), (False, None, False)],
)
def test_only_a_tool_that_says_so_itself_is_destructive(
    destructive: bool | None, read_only: bool | None, asks: bool
) -> None:
    assert is_destructive(destructive, read_only) is asks

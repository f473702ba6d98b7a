"""What a model reads of a tool's result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.results import BLOCKS_MAX, cut, render, with_few_blocks

IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
TEXT_FILE = {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "inside"}}
BINARY_FILE = {"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "AAAA"}}
LINK = {"type": "resource_link", "uri": "file:///b", "name": "b"}


@pytest.mark.parametrize(
    ("content", "structured", "text"),
    [
        ([], None, ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], None, "a\nb"),
        ([{"type": "text", "text": '{"a": 1}'}], {"a": 1}, '{"a": 1}'),
        ([], {"a": "ü"}, '{"a": "ü"}'),
        ([], [], "[]"),
        ([{"type": "text", "text": ""}], {"a": 1}, '{"a": 1}'),
        ([IMAGE], {"a": 1}, '[image, image/png, not shown]\n{"a": 1}'),
        ([{"type": "audio", "data": "AAAA"}], None, "[audio, type unknown, not shown]"),
        ([TEXT_FILE], None, "[resource file:///a.txt]\ninside"),
        ([BINARY_FILE], None, "[resource file:///a.bin, type unknown, not shown]"),
        ([LINK], None, "[link to resource file:///b: b]"),
        ([{"type": "hologram"}], None, "[hologram, not shown]"),
        ([{}], None, "[content, not shown]"),
    ],
)
def test_content_becomes_text(content: list[dict[str, Any]], structured: object, text: str) -> None:
    assert render(content, structured) == text


def test_a_text_that_fits_is_not_cut() -> None:
    assert cut("a" * 100, 100) == "a" * 100


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert cut("abcdefghij", 5) == "abc\n[… 5 characters are missing here …]\nij"


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_what_is_kept_and_what_is_missing_add_up(text: str, chars_max: int) -> None:
    shown = cut(text, chars_max)
    if len(text) <= chars_max:
        assert shown == text
        return
    head, tail = (chars_max + 1) // 2, chars_max // 2
    assert shown.startswith(text[:head])
    assert shown.endswith(text[len(text) - tail :])
    assert f"{len(text) - chars_max} characters are missing" in shown


def test_of_very_many_parts_some_are_read_and_the_others_counted() -> None:
    part = {"type": "text", "text": "a"}
    few = {"content": [part] * BLOCKS_MAX, "isError": False}
    assert with_few_blocks(few) is few
    many = with_few_blocks({"content": [part] * (BLOCKS_MAX + 7), "isError": False})
    assert render(many["content"]).endswith("a\n[… 7 parts are missing here …]")
    assert (len(many["content"]), many["isError"]) == (BLOCKS_MAX + 1, False)
    assert with_few_blocks({"content": 3}) == {"content": 3}

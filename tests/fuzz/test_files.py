"""Any text as pool, tokens or tools file: what it describes, or one line that says what is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from common import pool, tokens
from runtime import tool_config
from tests.fuzz.fuzzing import fuzz, mutated, some, some_text

KEYS = [
    "name", "url", "kind", "models", "key_env", "key_file", "health_path", "load_from", "max_in_flight",
    "usage_in_stream", "secret_env", "secret_file", "caller", "classes", "command", "env", "headers_env", "timeout_s",
    "tools", "limits", "fallback", "aliases", "price", "unknown", '"quoted key"',
]  # fmt: skip
VALUES = [
    '"a"', '""', '"http://h:1"', '"https://h/v1"', '"http://u:p@h"', '"http://[::1"', '"http://h:99999"', "1", "0",
    "-1", "1.5", "nan", "true", "[]", '["a"]', '["batch"]', '[""]', "[1]", "{}", '{a = "b"}', "2020-01-01",
    '"generative"', '"\\u0000"', '"\\ud800"', "'''x'''",
]  # fmt: skip
NAMES = ["replica", "token", "server", "other", "a.b"]

RIGHT = [
    '[[replica]]\nname = "a"\nurl = "http://h"\n',
    '[[token]]\nname = "a"\nsecret_env = "A"\n',
    '[[server]]\nname = "a"\nurl = "http://h"\n',
]


def table(chance: random.Random) -> str:
    """A right one, or any lines."""
    if chance.random() < 0.3:
        return chance.choice(RIGHT)
    lines = some(chance, 6, lambda one: f"{one.choice(KEYS)} = {one.choice(VALUES)}\n")
    return f"[[{chance.choice(NAMES)}]]\n{''.join(lines)}"


def file(chance: random.Random) -> str:
    """Some tables, with or without bytes that are wrong, or any text."""
    if chance.random() < 0.1:
        return some_text(chance, 60)
    tables = table(chance) + "".join(some(chance, 2, table))
    return mutated(chance, tables.encode()).decode("utf-8", "surrogateescape")


PARSERS: dict[str, tuple[Callable[[str, str], Any], type[ValueError]]] = {
    "pool": (pool.parse, pool.PoolError),
    "tokens": (tokens.parse, tokens.TokensError),
    "tools": (tool_config.parse, tool_config.ToolConfigError),
}


@pytest.mark.parametrize("name", PARSERS)
def test_any_text_is_read_or_refused_in_one_line(request: pytest.FixtureRequest, name: str) -> None:
    parse, error = PARSERS[name]

    def run(text: str) -> None:
        told = "the file"
        try:
            parse(text, told)
        except error as problem:
            told = str(problem)
        assert told.startswith("the file")

    fuzz(request, file, run)

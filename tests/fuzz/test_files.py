"""Any text as pool, tokens or tools file: what it describes, or one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from common import pool, tokens
from runtime import tool_config
from tests.fuzz.fuzzing import fuzz, mutated

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

lines = st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)).map(" = ".join)
tables = st.tuples(st.sampled_from(NAMES), st.lists(lines, max_size=6)).map(
    lambda made: "\n".join([f"[[{made[0]}]]", *made[1]]) + "\n"
)
right = st.sampled_from(
    [
        '[[replica]]\nname = "a"\nurl = "http://h"\n',
        '[[token]]\nname = "a"\nsecret_env = "A"\n',
        '[[server]]\nname = "a"\nurl = "http://h"\n',
    ]
)
texts = mutated(st.lists(tables | right, min_size=1, max_size=3).map(lambda made: "".join(made).encode())).map(
    lambda data: data.decode("utf-8", "surrogateescape")
) | st.text(max_size=60)

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

    fuzz(request, texts, run)

"""Configuration files that are a list of TOML tables of one name (`[[replica]]`, `[[server]]`). Pure.

What a table means is decided by its reader; here is only what every such file has in common: that it is TOML, that it
holds nothing else, and on which line a key stands. The readers are `common.pool` and `runtime.tool_config`.
"""

from __future__ import annotations

import re
import tomllib
import urllib.parse
from typing import Any


class TableError(ValueError):
    """The text is not such a list; the message begins with `, line N` where a line is to blame, else with `: `."""


def read_tables(text: str, name: str) -> list[dict[str, Any]]:
    """The `[[name]]` tables of `text` in its order, at least one. Raises TableError."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TableError(f": {error}") from None
    unknown = sorted(document.keys() - {name})
    if unknown:
        line = line_of(text, name, 0, unknown[0])
        raise TableError(f"{line}: unknown key '{unknown[0]}'; expected [[{name}]] tables")
    tables = document.get(name, [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise TableError(f": expected at least one [[{name}]] table")
    return tables


def line_of(text: str, name: str, table: int, key: str) -> str:
    """`, line N` of `key` in the `table`-th `[[name]]` (0: before the first), or "" if it is not found.

    An empty `key` stands for the table's own first line.
    """
    seen = 0
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(rf"\s*\[\[\s*{re.escape(name)}\s*\]\]", line):
            seen += 1
            if seen == table and not key:
                return f", line {number}"
        elif seen == table and key and re.match(rf"""\s*\[*["']?{re.escape(key)}\b""", line):
            return f", line {number}"
    return ""


def is_url(value: object) -> bool:
    """Whether `value` is an http or https URL with a host and without user, query or fragment."""
    if not isinstance(value, str) or re.search(r"[\s\x00-\x1f\x7f]", value):
        return False
    try:
        parts = urllib.parse.urlsplit(value)
        port_fits = parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain and port_fits

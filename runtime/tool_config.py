"""The file of tool servers: which MCP servers the runtime's tools come from.

[[server]]
name = "wiki"
command = ["python", "wikipedia/server.py"]

`load` reads the file; a `command` runs in the file's folder. `Server.environment` and `Server.headers` read the
environment. What runs them is `toolbox`.
"""

from __future__ import annotations

import os
import pathlib
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

from common.tables import TableError, is_url, line_of, read_tables

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)


class ToolConfigError(ValueError):
    """The file is wrong; the text names file, line, key and what was expected, in one line."""


@dataclass(frozen=True, slots=True)
class Server:
    """One MCP server. All but `folder` are keys of a `[[server]]` table; one of `command` and `url` is given."""

    name: str
    """Unique in the file; 1 to 32 characters of A-Z a-z 0-9 _ -."""
    command: tuple[str, ...] | None = None
    """Executable and arguments of a server that speaks over its standard input and output (stdio). It runs in
    the folder of this file: relative paths are below that."""
    url: str | None = None
    """Address of a server that speaks Streamable HTTP."""
    env: tuple[str, ...] = ()
    """Names of environment variables passed on to `command`, beside PATH, HOME, USER and the like."""
    headers_env: dict[str, str] = field(default_factory=dict)
    """Headers sent to `url`, and for each the environment variable that holds its value."""
    timeout_s: float = 60.0
    """Longest time that a call may take, in seconds."""
    tools: tuple[str, ...] | None = None
    """Tools that are offered, by their names on the server; absent: all."""
    folder: pathlib.Path | None = None
    """Where `command` runs; None: where we do."""

    @property
    def place(self) -> str:
        """What is started or connected to, for people; no arguments, which may be secret."""
        if self.command is None:
            return str(self.url)
        return self.command[0] if self.folder is None else f"{self.command[0]} in {self.folder}"

    def environment(self) -> dict[str, str]:
        """The variables of `env` that are set. Raises ToolConfigError naming one that is not."""
        return {name: self._variable("env", name) for name in self.env}

    def headers(self) -> dict[str, str]:
        """The headers of `headers_env` with their values. Raises ToolConfigError naming a variable that is not set."""
        return {header: self._variable("headers_env", name).strip() for header, name in self.headers_env.items()}

    def _variable(self, key: str, name: str) -> str:
        if name not in os.environ:
            raise ToolConfigError(f"tool server '{self.name}': {key} names {name}, which is not set")
        return os.environ[name]


def load(path: pathlib.Path) -> tuple[Server, ...]:
    """Reads the file at `path`. Raises ToolConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ToolConfigError(f"tools file {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    return tuple(replace(server, folder=path.parent.absolute()) for server in parse(text, str(path)))


def parse(text: str, source: str = "tools file") -> tuple[Server, ...]:
    """The servers that `text` (TOML) describes, in its order; `source` stands in errors. Raises ToolConfigError."""
    try:
        tables = read_tables(text, "server")
    except TableError as error:
        raise ToolConfigError(f"{source}{error}") from None
    servers = tuple(_server(table, source, text, number) for number, table in enumerate(tables, 1))
    names = [server.name for server in servers]
    for number, name in enumerate(names, 1):
        if name in names[: number - 1]:
            raise ToolConfigError(f"{source}{line_of(text, 'server', number, 'name')}: name '{name}' is used twice")
    return servers


def _server(table: dict[str, Any], source: str, text: str, number: int) -> Server:
    known = {f.name for f in fields(Server)} - {"folder"}

    def fail(key: str, problem: str) -> ToolConfigError:
        return ToolConfigError(f"{source}{line_of(text, 'server', number, key)}: {problem}")

    for key in sorted(table.keys() - known):
        raise fail(key, f"unknown key '{key}'; known: {', '.join(sorted(known))}")
    if "name" not in table:
        raise fail("", f"server {number} has no 'name'")
    for key, value in table.items():
        expected = _fault(key, value)
        if expected:
            raise fail(key, f"'{key}' must be {expected}")
    if ("command" in table) == ("url" in table):
        raise fail("", f"server '{table['name']}' must have either 'command' or 'url'")
    for key, needs in (("env", "command"), ("headers_env", "url")):
        if key in table and needs not in table:
            raise fail(key, f"'{key}' is for servers with a '{needs}'")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return Server(**values)


def _fault(key: str, value: object) -> str | None:
    """What the value of `key` should have been, or None if it is right."""
    match key:
        case "name":
            return None if isinstance(value, str) and _NAME.fullmatch(value) else "1 to 32 of A-Z a-z 0-9 _ -"
        case "url":
            return None if is_url(value) else "an http:// or https:// URL without user, query or fragment"
        case "command":
            return None if value and _are_texts(value) else "a list: the executable and its arguments"
        case "env":
            return None if _are_texts(value) else "a list of names of environment variables"
        case "tools":
            return None if value and _are_texts(value) else "a list of names of tools"
        case "headers_env":
            right = isinstance(value, dict) and all(map(_HEADER.fullmatch, value)) and _are_texts(list(value.values()))
            return None if right else "a table: header = environment variable"
        case _:
            right = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 86_400
            return None if right else "a number of seconds, more than 0 and at most 86400"


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item and "\0" not in item for item in value)

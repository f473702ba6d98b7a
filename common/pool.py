"""The pool file: which replicas there are. `parse` is pure, `load` reads the file, `Replica.key` reads a replica's key.

[[replica]]
name = "gpu-0"
url = "http://gpu-0:8000"
"""

from __future__ import annotations

import pathlib
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from common.ids import ID_SHAPE, ReplicaName, is_id
from common.limits import LIMIT_SHAPE, PRICES, is_limits, is_price, is_texts
from common.secret import SecretError, read_secret
from common.tables import TableError, is_url, line_of, read_tables

Kind = Literal["generative", "one-shot"]


class PoolError(ValueError):
    """The pool file is wrong; the text names file, line, key and what was expected, in one line."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine endpoint. The fields are the keys of a `[[replica]]` table."""

    name: ReplicaName
    """Unique in the pool."""
    url: str
    """`http[s]://host[:port][/base]`; the path, if any, is the API base (`https://host/v1`), else it is `/v1`."""
    kind: Kind = "generative"
    """`generative`: it generates; `one-shot`: it answers at once, outside of runs (a classifier)."""
    models: tuple[str, ...] | None = None
    """Model names it serves; absent: learned from its `/v1/models`."""
    key_env: str | None = None
    """Environment variable that holds its API key; excludes `key_file`."""
    key_file: str | None = None
    """File that holds its API key; a relative path starts at the folder of the pool file."""
    health_path: str = "/health"
    """Path, on the host of `url`, that answers 2xx while it is healthy."""
    load_from: tuple[str, ...] | None = None
    """Base URLs whose `/metrics` tell its load: the engines behind a router; absent: `url` itself."""
    max_in_flight: int | None = None
    """Most turns in flight; absent: limited only by what its engine reports."""
    usage_in_stream: bool = True
    """Whether usage is asked of it in streams whose client did not ask (and then hidden from the client)."""
    limits: Mapping[str, float] | None = None
    """Its rate limits, each `<requests|tokens|input|output|usd>_per_<second|minute|hour|day>`, which nothing that it
    tells raises; an empty table: learned from its answers; absent: none are kept."""
    limit_headers: Mapping[str, str] | None = None
    """Headers of its answers that tell limits by names of its own, each with the `x-ratelimit-…` name it stands for."""
    aliases: Mapping[str, str] | None = None
    """Further model names that it serves, each with the name of the model that it then asks of it."""
    fallback: tuple[str, ...] | None = None
    """Replicas that get a turn, in this order, when this one answers 429 or 5xx, or cannot be reached."""
    price: Mapping[str, Mapping[str, float]] | None = None
    """By model, US dollars a million tokens: `input`, `output`, and `cached` for prompt tokens from its cache."""

    @property
    def origin(self) -> str:
        """Scheme, host and port of `url`."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def api_base(self) -> str:
        """URL below which the API's paths lie, without a trailing slash: `http://host:8000/v1`."""
        path = urllib.parse.urlsplit(self.url).path.rstrip("/")
        return self.origin + (path or "/v1")

    def served(self, models: Iterable[str]) -> tuple[str, ...]:
        """`models` that it has itself, and the aliases of those."""
        own = tuple(models)
        return own + tuple(name for name, model in (self.aliases or {}).items() if model in own and name not in own)

    def key(self) -> str | None:
        """The API key, or None where none is configured. Raises PoolError if it is missing, or no header carries it."""
        try:
            return read_secret("key", self.key_env, self.key_file)
        except SecretError as error:
            raise PoolError(f"replica '{self.name}': {error}") from None


@dataclass(frozen=True, slots=True)
class Pool:
    """The replicas of one pool file, in its order."""

    replicas: tuple[Replica, ...] = field(default=())

    def by_name(self) -> dict[ReplicaName, Replica]:
        """Replicas by their names."""
        return {replica.name: replica for replica in self.replicas}


def load(path: pathlib.Path) -> Pool:
    """Reads the pool file at `path`; the paths in it are relative to its folder. Raises PoolError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PoolError(f"pool file {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    return Pool(tuple(_located(replica, path.parent) for replica in parse(text, str(path)).replicas))


def _located(replica: Replica, folder: pathlib.Path) -> Replica:
    return replica if replica.key_file is None else replace(replica, key_file=str(folder / replica.key_file))


def parse(text: str, source: str = "pool file") -> Pool:
    """The pool that `text` (TOML) describes; `source` stands in error messages. Raises PoolError."""
    try:
        tables = read_tables(text, "replica")
    except TableError as error:
        raise PoolError(f"{source}{error}") from None
    replicas = tuple(_replica(table, source, text, number) for number, table in enumerate(tables, 1))
    names = [replica.name for replica in replicas]
    for number, name in enumerate(names, 1):
        if name in names[: number - 1]:
            raise PoolError(f"{source}{line_of(text, 'replica', number, 'name')}: name '{name}' is used twice")
        for other in replicas[number - 1].fallback or ():
            if other not in names or other == name:
                line = line_of(text, "replica", number, "fallback")
                raise PoolError(f"{source}{line}: 'fallback' names '{other}', which is no other replica of this file")
    return Pool(replicas)


def _replica(table: dict[str, Any], source: str, text: str, number: int) -> Replica:
    known = {f.name for f in fields(Replica)}

    def fail(key: str, problem: str) -> PoolError:
        return PoolError(f"{source}{line_of(text, 'replica', number, key)}: {problem}")

    for key in sorted(table.keys() - known):
        raise fail(key, f"unknown key '{key}'; known: {', '.join(sorted(known))}")
    for key in ("name", "url"):
        if key not in table:
            raise fail("", f"replica {number} has no '{key}'")
    values = dict(table)
    for key, value in table.items():
        expected = _fault(key, value)
        if expected:
            raise fail(key, f"'{key}' must be {expected}")
        if isinstance(value, list):
            values[key] = tuple(value)
    if "key_env" in table and "key_file" in table:
        raise fail("key_file", "'key_env' and 'key_file' exclude each other")
    return Replica(**values)


def _fault(key: str, value: object) -> str | None:
    """What the value of `key` should have been, or None if it is right."""
    match key:
        case "name":
            return None if isinstance(value, str) and is_id(value) else ID_SHAPE
        case "url":
            return None if is_url(value) else "an http:// or https:// URL without user, query or fragment"
        case "kind":
            return None if value in get_args(Kind) else f"one of {', '.join(get_args(Kind))}"
        case "models" | "fallback":
            right = isinstance(value, list) and value and all(isinstance(item, str) and item for item in value)
            return None if right else f"a list of {'model' if key == 'models' else 'replica'} names"
        case "load_from":
            right = isinstance(value, list) and value and all(is_url(item) for item in value)
            return None if right else "a list of http:// or https:// URLs"
        case "health_path":
            return None if isinstance(value, str) and re.fullmatch(r"/[!-~]*", value) else "a path that starts with /"
        case "max_in_flight":
            right = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            return None if right else "a whole number, at least 1"
        case "limits":
            return None if is_limits(value) else f"a table of numbers above 0, each named {LIMIT_SHAPE}"
        case "limit_headers" | "aliases":
            return None if is_texts(value) else "a table of texts that are not empty"
        case "price":
            return None if is_price(value) else f"a table by model, each a table of numbers by {', '.join(PRICES)}"
        case "usage_in_stream":
            return None if isinstance(value, bool) else "true or false"
        case _:
            return None if isinstance(value, str) and value else "a text that is not empty"

"""What the runtime knows of a tool, and what a call of it can come to. Pure.

`toolbox` finds the tools and makes the calls; the executor decides by `EffectKind` and by the outcome what may be done
again. Read `toolbox` next.
"""

from __future__ import annotations

import collections
import enum
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

_NAME_CHARS_MAX = 64
"""Engines accept names of functions up to this length, of the characters A-Z a-z 0-9 _ - only (OpenAI's API)."""


class EffectKind(enum.Enum):
    """What running a tool once more does, by its own hints; a tool that says nothing is AT_MOST_ONCE."""

    READ_ONLY = "read-only"
    """Changes nothing: may be run again."""
    IDEMPOTENT = "idempotent"
    """The same arguments again change nothing more: may be run again under the same key."""
    AT_MOST_ONCE = "at-most-once"
    """Anything else: once its call may have begun, only a person decides about another."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as it is offered to models."""

    server: str
    """Name of its server in the configuration."""
    name: str
    """Name it is offered by, unique over all servers; its server may know it by another."""
    description: str
    """For the model; empty if the server gives none."""
    input_schema: dict[str, Any]
    """JSON schema of its arguments, an object. Not to be changed."""
    kind: EffectKind
    destructive: bool
    """It says `destructiveHint: true` itself and not `readOnlyHint: true`."""


@dataclass(frozen=True, slots=True)
class Done:
    """The server answered."""

    text: str
    """For the model; not cut to any size."""
    is_error: bool
    """The tool, or its server, says that it failed; what it did before is its own affair."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The tool surely never ran: there was no connection, or the call was refused before it was passed on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The call was sent and nothing tells whether the tool ran: no answer in time, or the connection was lost."""

    reason: str
    is_late: bool = False
    """There was no answer in time: the tool may still run, and to call it again would be to run it twice at once."""


Outcome = Done | NotStarted | Unknown


def effect_kind(read_only: bool | None, idempotent: bool | None) -> EffectKind:
    """The kind of a tool with these hints (`readOnlyHint`, `idempotentHint`; None: absent)."""
    if read_only is True:
        return EffectKind.READ_ONLY
    return EffectKind.IDEMPOTENT if idempotent is True else EffectKind.AT_MOST_ONCE


def is_destructive(destructive: bool | None, read_only: bool | None) -> bool:
    """Whether a tool with these hints needs approval; the protocol's default for an absent hint is not assumed."""
    return destructive is True and read_only is not True


def plain_name(tool: str) -> str:
    """`tool` in the characters and the length that engines accept."""
    return _fit(re.sub(r"[^A-Za-z0-9_-]", "_", tool) or "_")


def qualified_name(server: str, tool: str) -> str:
    """The name of a tool that shares its plain name with another: `<server>__<tool>`."""
    return _fit(re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}"))


def _fit(name: str) -> str:
    if len(name) <= _NAME_CHARS_MAX:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _NAME_CHARS_MAX - 9]}_{mark}"


def offered(tools: Iterable[tuple[str, ToolSpec]]) -> tuple[ToolSpec, ...]:
    """The tools under names that are unique.

    Takes each tool's name on its server and its spec. Whoever shares a plain name is offered by its qualified one, the
    first too: a name that meant one tool must not come to mean another when a server comes back. What is not unique
    even so (one server, two names that differ only in characters that are not accepted) is left out.
    """
    tools = list(tools)
    plain = [plain_name(name) for name, _ in tools]
    count = collections.Counter(plain)
    named: dict[str, ToolSpec] = {}
    for short, (name, spec) in zip(plain, tools, strict=True):
        full = qualified_name(spec.server, name) if count[short] > 1 else short
        named.setdefault(full, replace(spec, name=full))
    return tuple(named.values())

"""What a model reads of a tool's result: its content as one text, cut to a size. Pure.

`render` makes the text of the content that a server sent, `cut` shortens it. The toolbox renders, the executor cuts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

RESULT_CHARS_MAX = 32 * 1024
"""Default of how much of a result a model reads, in characters."""


BLOCKS_MAX = 1000
"""Parts of a result that are read: the protocol's own check of each holds up everybody else for some 40 µs."""


def fit(result: dict[str, Any]) -> dict[str, Any]:
    """A result of any request as JSON, without what the client would check in the event loop for as long as the server
    likes: parts over BLOCKS_MAX, and the schemas of what tools return, which models read as it comes. May change it."""
    tools = result.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            tool.pop("outputSchema", None)
    return with_few_blocks(result)


def with_few_blocks(result: dict[str, Any]) -> dict[str, Any]:
    """A `CallToolResult` as JSON with at most BLOCKS_MAX parts, and one more that tells how many are missing."""
    content = result.get("content")
    if not isinstance(content, list) or len(content) <= BLOCKS_MAX:
        return result
    note = {"type": "text", "text": f"[… {len(content) - BLOCKS_MAX} parts are missing here …]"}
    return {**result, "content": [*content[:BLOCKS_MAX], note]}


def render(content: Sequence[Mapping[str, Any]], structured: object = None) -> str:
    """The text of a result: `content` and `structuredContent` of a `CallToolResult` as JSON (wire names).

    Texts, also those of embedded resources, stand on lines of their own; what is not text is named by a note. The
    structured content counts only where there is no text, since servers repeat it as text. Empty if there is nothing.
    """
    parts = [_part(block) for block in content]
    if structured is not None and not any(is_text and text for is_text, text in parts):
        parts.append((True, json.dumps(structured, ensure_ascii=False)))
    return "\n".join(text for _, text in parts if text)


def _part(block: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the block is text, and its text or the note in its place."""
    match block:
        case {"type": "text", "text": str(text)}:
            return True, text
        case {"type": "image" | "audio" as kind}:
            return False, f"[{kind}, {block.get('mimeType') or 'type unknown'}, not shown]"
        case {"type": "resource", "resource": {"text": str(text), "uri": uri}}:
            return True, f"[resource {uri}]\n{text}"
        case {"type": "resource", "resource": {"uri": uri}}:
            kind = block["resource"].get("mimeType") or "type unknown"
            return False, f"[resource {uri}, {kind}, not shown]"
        case {"type": "resource_link", "uri": uri}:
            title = block.get("title") or block.get("name") or ""
            return False, f"[link to resource {uri}{': ' if title else ''}{title}]"
        case _:
            return False, f"[{block.get('type', 'content')}, not shown]"


def cut(text: str, chars_max: int = RESULT_CHARS_MAX) -> str:
    """`text`, or its beginning and its end with a note between that tells how many characters are missing.

    `chars_max` (at least 1) counts what is left of `text`; the note comes on top of it.
    """
    if len(text) <= chars_max:
        return text
    head = (chars_max + 1) // 2
    tail = chars_max - head
    missing = len(text) - chars_max
    return f"{text[:head]}\n[… {missing} characters are missing here …]\n{text[len(text) - tail :]}"

"""What the model says: the same request and seed, the same reply. Pure. Read `wire` next, which puts it on the wire.

Whether it calls a tool, in this order ("results" are the tool messages after the last user message):
- `tool_choice` "none", or no tools: never. A named tool: that one, always.
- The last user message has lines `CALL <name> {<arguments>}`: these calls in their order, as they stand, also where the
  tool is not offered or the arguments are broken. As many as there are results are done; the others come in one reply,
  or one a reply where `parallel_tool_calls` is false. `CALL <name>` alone: with arguments that its schema requires.
- `tool_choice` "required": the first tool offered.
- Else the first tool offered until there are `tool_calls` results, with arguments that have what its schema requires.

Else it answers with seeded words of four bytes, between half and one and a half times `reply_tokens` of them (with
`ignore_eos`, as many as allowed). Where logprobs are asked and the last user message has two or more lines `A) …`, the
first token is one of these letters, and its alternatives are the others.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fakes.engine.arguments import fitting
from fakes.engine.chat import TOP_LOGPROBS_MAX, Chat
from fakes.engine.tokens import TOKEN_BYTES, content_text, name_tokens, render_calls

FinishReason = Literal["stop", "length", "tool_calls"]

_VOCABULARY = (
    " the and for you not are all but can out see now way who get day new two old any use how her let may say too put"
    " end why try ask men run own far off set air big few got lot low sea six ten war yes"
)
WORDS = tuple(_VOCABULARY[at : at + TOKEN_BYTES] for at in range(0, len(_VOCABULARY), TOKEN_BYTES))
"""The vocabulary: each word with its space is one token of four bytes."""

_CALL_LINE = re.compile(r"^CALL (\S+)(?: (\{.*\}))?[^\S\n]*$", re.MULTILINE)
_OPTION_LINE = re.compile(r"^\s*([A-Z])\) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rules:
    """What of a reply is configured."""

    seed: int
    tool_calls: int
    """Tool results after which it answers."""
    reply_tokens: int
    """Mean length of an answer."""


@dataclass(frozen=True, slots=True)
class Token:
    """What one generated token adds to the reply. Neither: nothing yet, as while a call's name is being generated."""

    text: str = ""
    call: int | None = None
    """Index of the tool call that `text` belongs to: arguments, or the name where `is_name`."""
    is_name: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply."""

    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    rendered: bytes
    """It as the next prompt will render it, for the hashes of its blocks."""
    seed: int
    options: tuple[str, ...] = ()
    """Letters that the first token was chosen from."""

    def alternatives(self, position: int) -> list[tuple[str, float]]:
        """Tokens for `position` with their natural log probabilities, the most likely first: the one taken."""
        chance = random.Random(self.seed + position)
        chosen = self.tokens[position].text
        pool = self.options if position == 0 and self.options else chance.sample(WORDS, TOP_LOGPROBS_MAX)
        others = [token for token in dict.fromkeys(pool) if token != chosen]
        logits = sorted((chance.gauss(0.0, 2.0) for _ in range(len(others) + 1)), reverse=True)
        total = math.log(sum(math.exp(logit) for logit in logits))
        return [(token, logit - total) for token, logit in zip([chosen, *others], logits, strict=True)]


def compose(chat: Chat, prompt: bytes, rules: Rules, room: int) -> Reply:
    """The reply to `chat`, whose rendered prompt is `prompt`, in at most `room` tokens and the request's own limit."""
    limit = room if chat.max_tokens is None else min(chat.max_tokens, room)
    digest = hashlib.blake2b(prompt, digest_size=8, salt=rules.seed.to_bytes(8, "big", signed=True)).digest()
    seed = int.from_bytes(digest, "big")
    calls = _calls(chat, random.Random(seed), rules)
    if calls:
        tokens = _call_tokens(calls)
        finish: FinishReason = "stop" if chat.tool_choice == "named" else "tool_calls"
        if len(tokens) > limit:
            tokens, finish = tokens[:limit], "length"
        return Reply(tuple(tokens), finish, render_calls(calls), seed)
    return _answer(chat, random.Random(seed), rules, limit, seed)


def _calls(chat: Chat, chance: random.Random, rules: Rules) -> list[tuple[str, str]]:
    """The tool calls of the reply as (name, arguments)."""
    if chat.tool_choice == "none" or not chat.tools:
        return []
    schemas: dict[str, Mapping[str, Any]] = {
        tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in chat.tools
    }
    if chat.tool_named is not None:
        return [(chat.tool_named, json.dumps(fitting(schemas[chat.tool_named], chance)))]
    user, results = _last_user(chat.messages)
    asked = [
        (name, arguments or json.dumps(fitting(schemas.get(name, {}), chance)))
        for name, arguments in _CALL_LINE.findall(user)
    ]
    if asked[results:]:
        return asked[results:] if chat.parallel_tool_calls else asked[results : results + 1]
    if chat.tool_choice == "required" or (not asked and results < rules.tool_calls):
        name = next(iter(schemas))
        return [(name, json.dumps(fitting(schemas[name], chance)))]
    return []


def _last_user(messages: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """The text of the last user message, and how many tool results follow it."""
    results = 0
    for message in reversed(messages):
        if message["role"] == "user":
            return content_text(message.get("content")), results
        results += message["role"] in ("tool", "function")
    return "", results


def _call_tokens(calls: Sequence[tuple[str, str]]) -> list[Token]:
    tokens: list[Token] = []
    for index, (name, arguments) in enumerate(calls):
        tokens += [Token()] * (name_tokens(name) - 1)
        tokens.append(Token(name, index, is_name=True))
        tokens += [Token(arguments[at : at + TOKEN_BYTES], index) for at in range(0, len(arguments), TOKEN_BYTES)]
    return tokens


def _answer(chat: Chat, chance: random.Random, rules: Rules, limit: int, seed: int) -> Reply:
    options: tuple[str, ...] = ()
    if chat.top_logprobs is not None:
        letters = tuple(dict.fromkeys(_OPTION_LINE.findall(_last_user(chat.messages)[0])))
        options = letters if len(letters) > 1 else ()
    mean = rules.reply_tokens
    natural = limit if chat.ignore_eos else chance.randint(max(1, mean // 2), max(1, mean * 3 // 2))
    words = chance.choices(WORDS, k=min(natural, limit))
    if options:
        words[0] = chance.choice(options)
    finish: FinishReason = "length" if natural > limit or chat.ignore_eos else "stop"
    stopped = _until_stop(words, chat.stop)
    if stopped is not None:
        words, finish = stopped, "stop"
    rendered = "".join(words).encode()
    return Reply(tuple(Token(word) for word in words), finish, rendered, seed, options)


def _until_stop(words: list[str], stop: tuple[str, ...]) -> list[str] | None:
    """The words up to the first stop text, which is not part of the reply; None where there is none.

    The token that completes the stop text is generated, so it counts, with what of it stands before the stop text.
    """
    text = "".join(words)
    found = [(text.find(mark), mark) for mark in stop if mark in text]
    if not found:
        return None
    start, mark = min(found)
    kept: list[str] = []
    at = 0
    for word in words:
        kept.append(word[: max(0, start - at)])
        at += len(word)
        if at >= start + len(mark):
            break
    return kept

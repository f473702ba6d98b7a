"""Reads the JSON body of a request, and tells its client what is wrong with it. Pure."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from dataplane.errors import ApiError, invalid

T = TypeVar("T")


STRINGS_MAX = 100_000
"""Most strings of a large body. An object is taken apart in one go, in which the process does nothing else; and what
makes real requests large is long texts, not millions of short ones."""
_LARGE_BYTES = 1 << 20
"""Smaller ones are not counted: they are soon read, whatever is in them."""


def read(body: bytes, decoder: msgspec.json.Decoder[T], at: str = "") -> T | ApiError:
    """What `decoder` makes of `body`, which is the value of the field `at`, or a 400 that names the field and what was
    expected."""
    if not body:
        return invalid("body", "expected JSON, it is empty")
    if not at and len(body) > _LARGE_BYTES and _has_too_many_strings(body):
        return invalid("body", f"expected at most {STRINGS_MAX:,} strings, names of members counted, in one this large")
    try:
        if not body.isascii():
            body.decode()  # the decoder skips strings that it does not want without a look
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        return _explain(str(error), at)
    except UnicodeDecodeError as error:
        return invalid("body", f"expected JSON in UTF-8: {error.reason} at byte {error.start}")
    except msgspec.DecodeError as error:
        if "surrogate" in str(error) or _HALF_AT_THE_END.search(body[-_END_BYTES:]):
            return invalid(
                "body", r"expected JSON: an escape like \ud800 is half a character, its other half is missing"
            )
        return invalid("body", f"expected JSON: {error}")
    except RecursionError:
        return invalid("body", "expected JSON that is nested less deeply")


def _has_too_many_strings(body: bytes) -> bool:
    """Counts what begins and ends strings: quotes that are not escaped."""
    plain = body.replace(b"\\\\", b"")  # what is left of backslashes escapes what follows it
    return plain.count(b'"') - plain.count(b'\\"') > 2 * STRINGS_MAX


_HALF_AT_THE_END = re.compile(rb'(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}[^"\\]*"')
"""Where the rest of the body is shorter than another escape, the decoder calls it truncated."""
_END_BYTES = 13


def _explain(problem: str, at: str) -> ApiError:
    """msgspec's sentence, turned so that the field comes first."""
    what, _, path = problem.partition(" - at `")
    field = (at + path.rstrip("`").removeprefix("$")).removeprefix(".")
    missing = re.fullmatch(r"Object missing required field `(.*)`", what)
    if missing:
        return invalid(f"{field}.{missing[1]}" if field else missing[1], "expected a value, it is missing")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL)
    if unknown:
        return invalid(unknown[1][:_NAME_CHARS_MAX], "there is no such field")
    return invalid(field or "body", what.replace("`", "").replace("Expected str", "Expected string").lower())


_NAME_CHARS_MAX = 64

"""The tokens file: further tokens beside `LUFTPAUSE_TOKEN`, each with what it allows. `parse` is pure, `load` reads.

[[token]]
name = "nightly"
secret_env = "NIGHTLY_TOKEN"
caller = "nightly"
classes = ["batch"]
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, fields
from typing import Any

from common.grants import CLASSES, Grant
from common.ids import CALLER_BYTES_MAX, ID_SHAPE, Caller, is_id
from common.secret import SecretError, read_secret
from common.tables import TableError, line_of, read_tables


class TokensError(ValueError):
    """The tokens file is wrong; the text names file, line, key and what was expected, in one line; never a secret."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token. The fields are the keys of a `[[token]]` table; exactly one of `secret_env` and `secret_file` is
    given."""

    name: str
    """Unique in the file; names the token to people."""
    secret_env: str | None = None
    """Environment variable that holds the token; excludes `secret_file`."""
    secret_file: str | None = None
    """File that holds the token; a relative path starts at the folder of the tokens file."""
    caller: str | None = None
    """The caller that it speaks for, whatever headers say; absent: it may name any."""
    classes: tuple[str, ...] = CLASSES
    """Classes that its turns may have; without a header they get the first of `interactive`, `batch` among these."""

    def grant(self) -> Grant:
        """What it allows."""
        caller = None if self.caller is None else Caller(self.caller)
        return Grant(self.name, caller, tuple(each for each in CLASSES if each in self.classes))


def load(path: pathlib.Path, shared: str | None) -> dict[str, Grant]:
    """The secrets of the tokens file at `path`, each with what it allows. Raises TokensError.

    `shared` is `LUFTPAUSE_TOKEN`: a token of the file that is the same would be bound to nothing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokensError(f"tokens file {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    found: dict[str, Grant] = {}
    for token in parse(text, str(path)):
        file = None if token.secret_file is None else str(path.parent / token.secret_file)
        try:
            secret = read_secret("secret", token.secret_env, file)
        except SecretError as error:
            raise TokensError(f"{path}: token '{token.name}': {error}") from None
        if not secret:
            raise TokensError(f"{path}: token '{token.name}': its secret is empty")
        if secret in found or secret == shared:
            other = "LUFTPAUSE_TOKEN" if secret == shared else f"token '{found[secret].name}'"
            raise TokensError(f"{path}: token '{token.name}': its secret is that of {other}")
        found[secret] = token.grant()
    return found


def parse(text: str, source: str = "tokens file") -> tuple[Token, ...]:
    """The tokens that `text` (TOML) describes; `source` stands in error messages. Raises TokensError."""
    try:
        tables = read_tables(text, "token")
    except TableError as error:
        raise TokensError(f"{source}{error}") from None
    tokens = tuple(_token(table, source, text, number) for number, table in enumerate(tables, 1))
    names = [token.name for token in tokens]
    for number, name in enumerate(names, 1):
        if name in names[: number - 1]:
            raise TokensError(f"{source}{line_of(text, 'token', number, 'name')}: name '{name}' is used twice")
    return tokens


def _token(table: dict[str, Any], source: str, text: str, number: int) -> Token:
    known = {f.name for f in fields(Token)}

    def fail(key: str, problem: str) -> TokensError:
        return TokensError(f"{source}{line_of(text, 'token', number, key)}: {problem}")

    for key in sorted(table.keys() - known):
        # A key that is not known may be a secret in the wrong place: it is named, its value is not.
        raise fail(key, f"unknown key '{key}'; known: {', '.join(sorted(known))}")
    if "name" not in table:
        raise fail("", f"token {number} has no 'name'")
    for key, value in table.items():
        expected = _fault(key, value)
        if expected:
            raise fail(key, f"'{key}' must be {expected}")
    if ("secret_env" in table) == ("secret_file" in table):
        raise fail("", f"token '{table['name']}' must have either 'secret_env' or 'secret_file'")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return Token(**values)


def _fault(key: str, value: object) -> str | None:
    """What the value of `key` should have been, or None if it is right."""
    match key:
        case "name":
            return None if isinstance(value, str) and is_id(value) else ID_SHAPE
        case "caller":
            plain = isinstance(value, str) and value.isprintable() and value == value.strip()
            right = plain and 0 < len(str(value).encode()) <= CALLER_BYTES_MAX
            return None if right else f"1 to {CALLER_BYTES_MAX} bytes, printable, without blanks around them"
        case "classes":
            known = isinstance(value, list) and value and all(each in CLASSES for each in value)
            return None if known else f"a list of {' and '.join(CLASSES)}"
        case _:
            return None if isinstance(value, str) and value and "\0" not in value else "a text that is not empty"

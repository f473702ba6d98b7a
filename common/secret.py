"""The shape of tokens and API keys, and where they are read from. Light enough for the command line.

A secret stands in no configuration file: the file names an environment variable, or a file of its own.
"""

from __future__ import annotations

import os
import pathlib
import re

SECRET_SHAPE = "printable ASCII without spaces"  # noqa: S105 - a description


class SecretError(ValueError):
    """A secret is missing or cannot be sent; the text names where it was looked for, and never the secret."""


def is_secret(text: str) -> bool:
    """Whether an `Authorization: Bearer …` header can carry `text`."""
    return re.fullmatch(r"[!-~]+", text) is not None


def read_secret(kind: str, variable: str | None, file: str | None) -> str | None:
    """The secret in the environment variable `variable`, or in `file`; None where neither is named.

    `kind` is how the configuration calls it: its keys are `<kind>_env` and `<kind>_file`. Blanks around the secret are
    not of it. Raises SecretError where it cannot be read, or no header carries it; an empty one is "".
    """
    if variable is not None:
        if variable not in os.environ:
            raise SecretError(f"{kind}_env names {variable}, which is not set")
        secret, source = os.environ[variable].strip(), f"{kind}_env {variable}"
    elif file is not None:
        try:
            secret, source = pathlib.Path(file).read_text(encoding="utf-8").strip(), f"{kind}_file {file}"
        except (OSError, UnicodeDecodeError) as error:
            problem = getattr(error, "strerror", None) or "not UTF-8"
            raise SecretError(f"{kind}_file {file} cannot be read: {problem}") from None
    else:
        return None
    if secret and not is_secret(secret):
        raise SecretError(f"{source}: the {kind} must be {SECRET_SHAPE}")
    return secret

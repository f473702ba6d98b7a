"""Profiles in files (JSON, the fields of `latency.Profile`), as `./luftpause bench fidelity --write` makes them."""

from __future__ import annotations

import pathlib
from dataclasses import asdict, fields

import msgspec

from fakes.engine.latency import PROFILES, Profile

_WHOLE = ("kv_tokens", "block_tokens", "token_budget", "max_num_seqs", "max_model_len")


def named(text: str) -> Profile:
    """The profile of that name, or the one in the file of that name. Raises ValueError, in one line."""
    if text in PROFILES:
        return PROFILES[text]
    path = pathlib.Path(text)
    if not path.is_file():
        raise ValueError(f"expected one of {', '.join(PROFILES)}, or a file with a profile")
    try:
        content = path.read_bytes()
        profile = msgspec.json.decode(content, type=Profile)
        given = msgspec.json.decode(content, type=dict[str, object])
    except OSError as error:
        raise ValueError(str(error.strerror)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"not a profile: {error}") from None
    unknown = sorted(given.keys() - {field.name for field in fields(Profile)})
    if unknown:
        raise ValueError(f"not a profile: no field {unknown[0]}")
    _check(profile)
    return profile


def _check(profile: Profile) -> None:
    for name in _WHOLE:
        if getattr(profile, name) < 1:
            raise ValueError(f"not a profile: {name} must be at least 1")
    for name in ("bandwidth_bytes_per_s", "effective_flops"):
        if getattr(profile, name) <= 0:
            raise ValueError(f"not a profile: {name} must be above 0")
    if profile.texts.chars_per_token <= 0:
        raise ValueError("not a profile: texts.chars_per_token must be above 0")
    for field in fields(Profile):
        value = getattr(profile, field.name)
        if isinstance(value, float | int) and value < 0:
            raise ValueError(f"not a profile: {field.name} must be at least 0")
    if profile.max_model_len > profile.kv_tokens:
        raise ValueError("not a profile: max_model_len must be at most kv_tokens")


def write(profile: Profile, path: pathlib.Path) -> None:
    """Writes a profile that `named` reads. Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(asdict(profile)), indent=1) + b"\n")

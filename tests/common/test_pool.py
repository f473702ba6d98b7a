"""Where a replica's API key is found, and what is said where it is not."""

from __future__ import annotations

import pathlib

import pytest

from common import pool

TABLE = '[[replica]]\nname = "a"\nurl = "http://127.0.0.1:1"\n'


def replica(folder: pathlib.Path, line: str) -> pool.Replica:
    """The replica of a pool file in `folder` that has `line` about its key."""
    (folder / "pool.toml").write_text(f"{TABLE}{line}\n")
    [found] = pool.load(folder / "pool.toml").replicas
    return found


def test_a_key_file_is_looked_for_beside_the_pool_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "key").write_text("engine-key\n")
    assert replica(tmp_path, 'key_file = "key"').key() == "engine-key"
    assert replica(tmp_path, f'key_file = "{tmp_path / "key"}"').key() == "engine-key"


def test_a_key_file_that_is_missing_is_named_with_its_path(tmp_path: pathlib.Path) -> None:
    with pytest.raises(pool.PoolError) as told:
        replica(tmp_path, 'key_file = "key"').key()
    assert str(told.value) == f"replica 'a': key_file {tmp_path / 'key'} cannot be read: No such file or directory"


def test_a_key_that_no_header_can_carry_is_refused_and_never_printed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "key").write_text("engine\nkey")
    with pytest.raises(pool.PoolError) as told:
        replica(tmp_path, 'key_file = "key"').key()
    assert (
        str(told.value) == f"replica 'a': key_file {tmp_path / 'key'}: the key must be printable ASCII without spaces"
    )


def test_a_variable_that_is_not_set_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    with pytest.raises(pool.PoolError, match="key_env names NO_SUCH, which is not set"):
        replica(tmp_path, 'key_env = "NO_SUCH"').key()

"""The SQLite store: the contract, and what becomes of it when the disk or the process fails."""

from __future__ import annotations

import asyncio
import pathlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from runtime.lock import LockedError, holding
from runtime.sqlite_store import SqliteStore
from runtime.store import Append, Store, StoreError
from tests.runtime.store_contract import Reopen, StoreContract
from tests.stack import environment

FILLING = pathlib.Path(__file__).with_name("filling_store.py")


@pytest_asyncio.fixture
async def opened(tmp_path: pathlib.Path) -> AsyncIterator[list[SqliteStore]]:
    stores = [await SqliteStore.open(tmp_path / "runs.db")]
    yield stores
    await stores[-1].close()


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, opened: list[SqliteStore]) -> Store:
        return opened[-1]

    @pytest.fixture
    def reopen(self, opened: list[SqliteStore], tmp_path: pathlib.Path) -> Reopen:
        async def again(store: Store) -> Store:
            await store.close()
            opened.append(await SqliteStore.open(tmp_path / "runs.db"))
            return opened[-1]

        return again


async def test_commits_that_queue_are_committed_together(opened: list[SqliteStore], tmp_path: pathlib.Path) -> None:
    store = opened[0]
    wal = tmp_path / "runs.db-wal"
    await asyncio.gather(*(store.commit([Append(f"r{n}", 0, (b"x" * 100,))]) for n in range(200)))
    # One after another they would write their pages anew 200 times, two at least each.
    assert wal.stat().st_size < 200 * 4096
    assert len(await store.runs()) == 200


async def test_a_closed_store_says_so(tmp_path: pathlib.Path) -> None:
    store = await SqliteStore.open(tmp_path / "runs.db")
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.runs()


async def test_promise_11_a_store_of_another_schema_is_refused(tmp_path: pathlib.Path) -> None:
    with sqlite3.connect(tmp_path / "new.db") as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(StoreError, match=r"new\.db has schema version 2; this release reads version 1"):
        await SqliteStore.open(tmp_path / "new.db")


async def test_a_file_that_is_no_store_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text.db").write_text("no database " * 1000)
    with pytest.raises(StoreError, match=r"text\.db"):
        await SqliteStore.open(tmp_path / "text.db")
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    with pytest.raises(StoreError, match="something else"):
        await SqliteStore.open(tmp_path / "other.db")


def test_a_state_folder_has_one_owner(tmp_path: pathlib.Path) -> None:
    taken = pytest.raises(LockedError, match=r"another runtime \(process \d+\)")
    with holding(tmp_path / "state"), taken, holding(tmp_path / "state"):
        pass
    with holding(tmp_path / "state"):
        pass


async def test_a_state_folder_is_its_owners_alone_whoever_made_it(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    for name in ("runs.db", "runtime.lock"):
        (folder / name).touch(mode=0o644)
        (folder / name).chmod(0o644)
    with holding(folder):
        store = await SqliteStore.open(folder / "runs.db")
        await store.commit(puts={"a": b"b"})
        modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
        await store.close()
    assert modes.pop("state") == 0o700
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}


def run(*command: str) -> list[str]:
    """The lines that a command prints. Fails if it does."""
    done = subprocess.run(command, env=environment({}), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def assert_acknowledged_is_there(folder: pathlib.Path, lines: list[str]) -> None:
    """Fails unless the store of `folder` has what `lines` say was acknowledged, perhaps more, and works again."""
    acknowledged = int(lines[0])
    assert acknowledged > 3
    assert lines[1:] == ["ReadOnlyError", "ReadOnlyError", f"{acknowledged}"]

    async def look() -> None:
        store = await SqliteStore.open(folder / "runs.db")
        assert (await store.runs())["a"] >= acknowledged
        await store.commit([Append("b", 0, (b"0",))])
        await store.close()

    asyncio.run(look())


def test_promise_14_a_failed_write_leaves_the_store_read_only(tmp_path: pathlib.Path) -> None:
    assert_acknowledged_is_there(tmp_path, run(sys.executable, str(FILLING), str(tmp_path), "400000"))


def test_promise_14_a_full_disk_leaves_the_store_read_only(tmp_path: pathlib.Path) -> None:
    own = ("unshare", "--user", "--map-root-user", "--mount")
    if shutil.which("unshare") is None or subprocess.run([*own, "true"], check=False).returncode != 0:
        pytest.skip("no file system of its own can be mounted here")
    small, kept = tmp_path / "small", tmp_path / "kept"
    small.mkdir()
    kept.mkdir()
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" && "$3" "$4" "$1" && cp "$1"/runs.db* "$2"/'
    lines = run(*own, "sh", "-c", script, "sh", str(small), str(kept), sys.executable, str(FILLING))
    assert_acknowledged_is_there(kept, lines)


async def test_what_cannot_be_stored_is_told_to_who_asked_and_harms_nobody_else(tmp_path: pathlib.Path) -> None:
    store = await SqliteStore.open(tmp_path / "runs.db")
    try:
        bad, good, read = await asyncio.gather(
            store.commit([Append("\ud800", 0, (b"x",))]),
            store.commit([Append("a", 0, (b"x",))]),
            store.read("\ud800"),
            return_exceptions=True,
        )
        assert isinstance(bad, UnicodeEncodeError)
        assert isinstance(read, UnicodeEncodeError)
        assert good is None
        assert await store.read("a") == [b"x"]
        assert store.broken is None
    finally:
        await store.close()

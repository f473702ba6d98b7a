"""The state folder: `up.json` (what `up` started, where the other commands find it) and the lock of `up`.

Must not start or end anything. docs/operations.md describes the file for others who read it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any

from cli.processes import Recorded

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFAULT = ROOT / ".luftpause"
"""Beside ./luftpause, so that the commands find what is up from wherever they are called."""


_ROOM_BYTES = 1024 * 1024


class StateError(Exception):
    """The state folder cannot be used; the text says why in one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceUp:
    """A service that was started."""

    process: Recorded
    health_urls: tuple[str, ...]
    """URLs that answer 2xx while it is healthy."""
    settings: dict[str, str]
    """The environment variables that `up` set for it, by which it is started again; no secrets."""


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """What one `up` started."""

    version: str
    ready: bool
    """Whether it has been healthy; before, it is being started."""
    supervisor: Recorded | None
    """The `up` that watches it; None once it is detached."""
    services: tuple[ServiceUp, ...]
    ports: dict[str, int]
    """By the option that sets it."""
    dataplane_url: str
    status_url: str
    scheduler_target: str

    def processes(self) -> list[Recorded]:
        """The services' processes, the last started one first."""
        return [service.process for service in reversed(self.services)]


def command(name: str, folder: pathlib.Path) -> str:
    """The call of the command `name` for the instance in `folder`, as a shell reads it."""
    return f"./luftpause {name}" + ("" if folder == DEFAULT else f" --state {shlex.quote(str(folder))}")


def version() -> str:
    """The version of this checkout."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def read(folder: pathlib.Path) -> Instance | None:
    """What `folder` says is up (which may have ended since), or None. Raises StateError where the file is not ours."""
    path = folder / "up.json"
    try:
        document = json.loads(path.read_text())
        return _instance(document)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StateError(f"{path} is not a file that ./luftpause up wrote; remove it if nothing is up") from None


def _instance(document: dict[str, Any]) -> Instance:
    services = tuple(
        ServiceUp(Recorded(**entry["process"]), tuple(entry["health_urls"]), dict(entry["settings"]))
        for entry in document.pop("services")
    )
    supervisor = document.pop("supervisor")
    return Instance(**document, services=services, supervisor=Recorded(**supervisor) if supervisor else None)


def write(folder: pathlib.Path, instance: Instance) -> None:
    """Replaces up.json as a whole."""
    fresh = folder / "up.json.new"
    fresh.write_text(json.dumps(dataclasses.asdict(instance), indent=2) + "\n")
    fresh.replace(folder / "up.json")


def remove(folder: pathlib.Path) -> None:
    """Removes up.json."""
    (folder / "up.json").unlink(missing_ok=True)


def create(folder: pathlib.Path) -> None:
    """Makes the folder, for its owner alone. Raises StateError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise StateError(f"state folder {folder}: {error.strerror}; choose another one with --state") from None


def check_room(folder: pathlib.Path) -> None:
    """Raises StateError where the folder has no room for what the services write first. Their logs are there too, so
    they could not say why they ended."""
    probe = folder / "room"
    try:
        probe.write_bytes(bytes(_ROOM_BYTES))
    except OSError as error:
        problem = f"{error.strerror}; make room, or choose another one with --state"
        raise StateError(f"state folder {folder}: {problem}") from None
    finally:
        probe.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[bool]:
    """Holds the lock of `up` on `folder` while the block runs; yields False, without it, where another `up` holds it.

    The lock goes with its owner, however that ends.
    """
    try:
        file = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StateError(f"state folder {folder}: {error.strerror}; choose another one with --state") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(file)

"""The pool that `up` gives to the services: the file of --pool, or one written for --engine or the fake engines.

Reads and writes files and asks engines for their health; starts nothing.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from cli import web
from common import model_list, pool


class EngineError(Exception):
    """An engine cannot be used; the text says which and why in one line."""


class EngineUrlError(EngineError):
    """The `--engine` of a call is no URL of an engine."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One `--engine URL`, with the `--engine-key-env NAME` that followed it; or a fake one, perhaps a classifier."""

    url: str
    key_env: str | None = None
    is_classifier: bool = False


def pair_keys(arguments: Sequence[str]) -> list[Engine]:
    """The engines of a command line, each with its key. Raises EngineError where a key follows no engine."""
    engines: list[Engine] = []
    words = iter(arguments)
    for word in words:
        option, equals, value = word.partition("=")
        if option not in ("--engine", "--engine-key-env"):
            continue
        if not equals:
            value = next(words, "")
        if option == "--engine":
            engines.append(Engine(value))
        elif not engines or engines[-1].key_env is not None:
            raise EngineError(f"--engine-key-env {value}: must follow the --engine that it is for, one for each")
        else:
            engines[-1] = Engine(engines[-1].url, value)
    return engines


def pool_text(engines: Sequence[Engine]) -> str:
    """A pool file of `engines`, named engine-1, engine-2, …; a classifier is a one-shot replica of that name.

    Raises EngineUrlError where a URL is none.
    """
    tables = []
    for number, engine in enumerate(engines, 1):
        name = "classifier" if engine.is_classifier else f"engine-{number}"
        lines = ["[[replica]]", f'name = "{name}"', f"url = {json.dumps(engine.url, ensure_ascii=False)}"]
        if engine.is_classifier:
            lines.append('kind = "one-shot"')
        if engine.key_env is not None:
            lines.append(f"key_env = {json.dumps(engine.key_env, ensure_ascii=False)}")
        text = "\n".join(lines) + "\n"
        try:
            pool.parse(text)
        except pool.PoolError:
            expected = "expected an http:// or https:// URL without user, query or fragment"
            raise EngineUrlError(f"--engine {engine.url}: {expected}") from None
        tables.append(text)
    return "# Written by ./luftpause up from its options, anew each time.\n\n" + "\n".join(tables)


def prepare(folder: pathlib.Path, file: pathlib.Path | None, engines: Sequence[Engine], *, check: bool) -> pathlib.Path:
    """The pool file to use: `file`, or `folder`/pool.toml written from `engines`.

    With `check`, the engines must answer, and list their models where the pool does not name them: each one named on
    the command line, at least one of a pool file.
    Raises PoolError and EngineError.
    """
    if file is None:
        path = folder / "pool.toml"
        path.write_text(pool_text(engines))
    else:
        path = file.absolute()
    replicas = pool.load(path).replicas
    for replica in replicas:
        replica.key()
    if check:
        faults = [fault for replica in replicas if (fault := _fault(replica)) is not None]
        if faults and (file is None or len(faults) == len(replicas)):
            raise EngineError(faults[0])
        for fault in faults:
            print(f"luftpause: {fault}; it gets no turns until it does", file=sys.stderr)
    return path


def _fault(replica: pool.Replica) -> str | None:
    answer = web.get(replica.origin + replica.health_path, replica.key())
    if answer.status is None:
        return f"engine {replica.url} does not answer: {answer.error}"
    if not answer.is_ok:
        return (
            f"engine {replica.url} answers {answer.status} at {replica.health_path}, not 2xx; "
            "name its health_path in a pool file (--pool)"
        )
    return None if replica.models is not None else _models_fault(replica)


def _models_fault(replica: pool.Replica) -> str | None:
    """Why its models cannot be learned, or None. Without them it would get no turn."""
    url = f"{replica.api_base}/models"
    answer = web.get(url, replica.key())
    if answer.is_ok and model_list.read_models(answer.body):
        return None
    if answer.status is None:
        return f"engine {replica.url}: GET {url}: {answer.error}"
    said = f"engine {replica.url}: GET {url} answered {answer.status}"
    if answer.status in (401, 403):
        return f"{said}; give its key (--engine-key-env NAME after --engine URL, or key_env in a pool file)"
    if answer.is_ok:
        said += f" and lists no models (expected {model_list.SHAPE})"
    return f"{said}; give the API's base, e.g. http://host:8000 or http://host:8000/v1"

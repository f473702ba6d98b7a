"""`runs`: what runs there are, one of them step by step, and moving or forking them.

While a runtime holds the state folder's lock, it is asked over gRPC; else the store is opened here. Read next:
`runtime.stored_runs`, `runs_over_grpc`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pathlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, TypeVar

import grpc
import typer

from cli import options, runs_report, state
from cli.runs_over_grpc import RunsOverGrpc, connected
from cli.services import HOST
from runtime.lock import LockedError
from runtime.records import JournalError
from runtime.refusals import RefusedError
from runtime.sqlite_store import STORE_FILE
from runtime.store import StoreError
from runtime.stored_runs import StoredRuns, opened

TARGET_DEFAULT = f"{HOST}:7001"
_TARGET = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", re.ASCII)
IMPORTED = b"\nimported\n"
"""At the end of a bundle's file once it has been imported: the file is of no use for another store."""

Runs = StoredRuns | RunsOverGrpc
T = TypeVar("T")

Handle = Annotated[str, typer.Argument(metavar="ID", help="Handle of the run.")]
Target = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="HOST:PORT",
        help=f"gRPC of a runtime to ask. Unset: what has the state folder, by its up.json, else at {TARGET_DEFAULT}.",
    ),
]


app = typer.Typer(cls=options.Group, invoke_without_command=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def runs(
    context: typer.Context,
    state_folder: options.State = options.DEFAULT_STATE,
    target: Target = "",
    print_json: options.Json = False,
) -> None:
    """List the runs of the runtime, the oldest first."""
    if context.invoked_subcommand is not None:
        sources = (context.get_parameter_source(name) for name in context.params)
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            options.misused(f"put the options behind 'runs {context.invoked_subcommand}'")
        return
    now = time.time()
    told = [runs_report.listing(run, now) for run in _do(state_folder, target, lambda runs: runs.all())]
    if print_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        from cli import runs_tables  # noqa: PLC0415 - loading rich takes longer than asking

        runs_tables.show_list(told)


@app.command()
def show(
    handle: Handle,
    state_folder: options.State = options.DEFAULT_STATE,
    target: Target = "",
    print_json: options.Json = False,
) -> None:
    """Show a run's whole conversation, step by step, with times and tokens."""
    got, records = _do(state_folder, target, lambda runs: runs.get(handle))
    told = runs_report.whole(got, records, time.time())
    if print_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        from cli import runs_tables  # noqa: PLC0415 - loading rich takes longer than asking

        runs_tables.show_run(told)


@app.command()
def export(
    handle: Handle,
    file: Annotated[pathlib.Path, typer.Argument(metavar="FILE", help="The bundle to write; it must not exist.")],
    state_folder: options.State = options.DEFAULT_STATE,
    target: Target = "",
) -> None:
    """Move a run and all below it into a bundle, to go on elsewhere. Repeated, it writes the same bundle."""
    try:
        # Made first, so that no run is moved to where nothing can be written; what runs say is for their owner alone.
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        options.fail(f"{file}: {error.strerror}")
    is_written = False
    try:
        with os.fdopen(number, "wb") as bundle:
            bundle.write(_do(state_folder, target, lambda runs: runs.export(handle)))
            bundle.flush()
            os.fsync(bundle.fileno())
        is_written = True
    except OSError as error:
        options.fail(f"{file}: {error.strerror}; the run is moved, export it again to another file")
    finally:
        if not is_written:
            file.unlink(missing_ok=True)
    typer.echo(f"moved {handle} into {file}; './luftpause runs import' lets it go on elsewhere")


@app.command("import")
def import_(
    file: Annotated[pathlib.Path, typer.Argument(metavar="FILE", help="The bundle; it is marked as imported.")],
    state_folder: options.State = options.DEFAULT_STATE,
    target: Target = "",
) -> None:
    """Take the runs of a bundle in; they go on here, under their handles. A bundle is imported once."""
    try:
        with file.open("r+b") as bundle:
            fcntl.flock(bundle, fcntl.LOCK_EX)
            raw = bundle.read()
            if raw.endswith(IMPORTED):
                options.fail(f"{file}: it has been imported already, and a run has one owner")
            handles = _do(state_folder, target, lambda runs: runs.import_(raw), creates=True)
            bundle.write(IMPORTED)
    except OSError as error:
        options.fail(f"{file}: {error.strerror}")
    for handle in handles:
        typer.echo(handle)


@app.command()
def fork(
    handle: Handle,
    at: Annotated[
        int, typer.Option("--at", min=0, metavar="STEP", help="The step that it makes anew; it has those before.")
    ],
    state_folder: options.State = options.DEFAULT_STATE,
    target: Target = "",
) -> None:
    """Start a run that has another one's steps before STEP, and its own from there on; prints its handle."""
    typer.echo(_do(state_folder, target, lambda runs: runs.fork(handle, at)))


def _do(folder: pathlib.Path, target: str, ask: Callable[[Runs], Awaitable[T]], *, creates: bool = False) -> T:
    """What `ask` gives. Ends the command with a line where it cannot be had."""
    if target and not _TARGET.fullmatch(target):
        options.misused(f"--runtime {target}: expected HOST:PORT, such as {TARGET_DEFAULT}")

    async def perform() -> T:
        async with _source(folder, target, creates=creates) as source:
            return await ask(source)

    try:
        return asyncio.run(perform())
    except (RefusedError, StoreError, JournalError, state.StateError) as error:
        options.fail(str(error))
    except grpc.aio.AioRpcError as error:
        options.fail(_answer(error, target))


def _answer(error: grpc.aio.AioRpcError, target: str) -> str:
    """What a runtime's refusal, or its silence, means for people."""
    details = error.details() or str(error.code())
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        where = f"at {target}" if target else "of the state folder"
        return f"the runtime {where} is not available: {details}; see ./luftpause status, or name one with --runtime"
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return f"{details}: set LUFTPAUSE_TOKEN to the token that the services have"
    return details


@contextlib.asynccontextmanager
async def _source(folder: pathlib.Path, target: str, *, creates: bool) -> AsyncIterator[Runs]:
    """The runs: over gRPC if `target` names a runtime or one has the folder, else from the store."""
    async with contextlib.AsyncExitStack() as entered:
        if not target:
            if not creates and not (folder / STORE_FILE).exists():
                options.fail(f"state folder {folder}: it holds no runs")
            try:
                source: Runs = await entered.enter_async_context(opened(folder))
            except LockedError:
                instance = state.read(folder)
                port = instance.ports.get("--runtime-grpc-port") if instance else None
                target = f"{HOST}:{port}" if port else TARGET_DEFAULT
            except OSError as error:
                raise state.StateError(f"state folder {folder}: {error.strerror or error}") from None
        if target:
            source = await entered.enter_async_context(connected(target, options.token()))
        yield source

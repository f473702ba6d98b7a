"""A bundle: whole runs with their journals, to go on in another store; and the journal of a fork. Pure.

A bundle holds a tree, parents before their children, without the ends that say that they were moved. Its id follows
from the runs and how far they are, so that to export them again gives the same id.

Must not know a store: `moves` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from runtime import incoming
from runtime.orders import DEPTH_MAX
from runtime.records import (
    Answered,
    AnyRecord,
    Ended,
    Intended,
    JournalError,
    LostTrack,
    Replied,
    Returned,
    Started,
    State,
    decode,
    effect_key,
    encode,
)
from runtime.refusals import InvalidArgumentError
from runtime.run import RunState, fold

FORMAT = "luftpause-bundle"
VERSION = 1


class Bundle(Struct, frozen=True, forbid_unknown_fields=True):
    """What the file holds."""

    format: str
    version: int
    bundle_id: str
    runs: tuple[tuple[msgspec.Raw, ...], ...]
    """The records of each run, as they are stored."""


class _Head(Struct):
    format: str
    version: int


def kept(records: Sequence[AnyRecord]) -> Sequence[AnyRecord]:
    """The records that move with a run: all but the end that says that it moved."""
    last = records[-1]
    return records[:-1] if isinstance(last, Ended) and last.state is State.MOVED else records


def write(runs: Iterable[Sequence[AnyRecord]]) -> tuple[str, bytes]:
    """Id and bytes of the bundle of these journals."""
    raw = tuple(tuple(msgspec.Raw(encode(record)) for record in records) for records in runs)
    bundle_id = _id(raw)
    return bundle_id, msgspec.json.encode(Bundle(FORMAT, VERSION, bundle_id, raw))


def read(raw: bytes) -> tuple[str, tuple[tuple[AnyRecord, ...], ...]]:
    """Id and journals of a bundle. Raises InvalidArgumentError where it is none, damaged, of another
    release, or holds what none writes."""
    try:
        head = msgspec.json.decode(raw, type=_Head)
        if head.format != FORMAT:
            raise InvalidArgumentError("bundle", f"expected the format '{FORMAT}'")
        if head.version != VERSION:
            raise InvalidArgumentError("bundle", f"it has version {head.version}; this release reads {VERSION}")
        bundle = msgspec.json.decode(raw, type=Bundle)
        journals = tuple(tuple(decode(bytes(record)) for record in run) for run in bundle.runs)
        runs = [fold(journal) for journal in journals]
    except (msgspec.DecodeError, JournalError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError("bundle", f"expected what 'runs export' wrote: {error}") from None
    if bundle.bundle_id != _id(bundle.runs):
        raise InvalidArgumentError("bundle", "expected what 'runs export' wrote: it was changed since")
    _check_tree(runs)
    by_id = {run.run_id: run for run in runs}
    for journal, run in zip(journals, runs, strict=True):
        incoming.check(journal, run, by_id.get(run.parent) if run.parent is not None else None)
    return bundle.bundle_id, journals


def fork(source: Sequence[AnyRecord], at: int, run_id: str, now: float) -> list[AnyRecord]:
    """The first records of a run that has the steps before `at` of `source`, and makes step `at` itself.

    Its calls have keys of their own, those that it has from `source` too, which are not made again. Raises
    InvalidArgumentError where not all steps before `at` are whole and asked for tools.
    """
    steps = fold(source).steps
    whole = next(
        (number for number, step in enumerate(steps) if step.open_calls or not step.calls),
        len(steps),
    )
    if not 0 <= at <= whole:
        raise InvalidArgumentError("at", f"expected a step from 0 to {whole}: all tool calls before it must be over")
    records: list[AnyRecord] = []
    for record in source:
        match record:
            case Started():
                started = msgspec.structs.replace(
                    record, at=now, run_id=run_id, parent=None, root=run_id, forked_from=record.run_id
                )
                records.append(started)
            case Intended() if record.step < at:
                own = effect_key(run_id, record.step, record.call)
                records.append(msgspec.structs.replace(record, key=own))
            case Replied() | Returned() | LostTrack() | Answered() if record.step < at:
                records.append(record)
            case _:
                pass
    return records


def _id(runs: Iterable[Iterable[msgspec.Raw]]) -> str:
    """The same whatever the order of the runs, which is not the same after a restart."""
    digests = sorted(hashlib.sha256(b"\n".join(map(bytes, run))).digest() for run in runs)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:32]


def _check_tree(runs: Sequence[RunState]) -> None:
    """A bundle is one whole tree: a run without parent, then runs whose parents came before."""
    depths: dict[str, int] = {}
    for run in runs:
        is_first = not depths
        belongs = (run.parent is None if is_first else run.parent in depths) and run.root == runs[0].run_id
        if not belongs or run.run_id in depths or run.state is State.MOVED:
            raise InvalidArgumentError("bundle", f"run {run.run_id[:128]!r} does not belong where it stands")
        depths[run.run_id] = 1 if run.parent is None else depths[run.parent] + 1
        if depths[run.run_id] > DEPTH_MAX:
            raise InvalidArgumentError("bundle", f"run {run.run_id} is more than {DEPTH_MAX} runs deep")
    if not depths:
        raise InvalidArgumentError("bundle", "expected at least one run")

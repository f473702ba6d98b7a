"""Journal records: they are read as they were written, and what is not known is refused."""

from __future__ import annotations

import msgspec
import pytest

from runtime.records import AnyRecord, JournalError, Limits, RunClass, decode, effect_key, encode
from tests.runtime import journals as j


@pytest.mark.parametrize(
    "record",
    [
        j.started(tools=("lookup",), limits=Limits(tokens=5), run_class=RunClass.BATCH, system="ü"),
        j.replied(0, j.call(0), j.call(1, refusal="Error: no")),
        j.intended(0, 0),
        j.returned(0, 0),
        j.lost(0, 0),
        j.answered(0, 0, True),
        j.ended(),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_is_read_as_it_was_written(record: AnyRecord) -> None:
    assert decode(encode(record)) == record


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"version": 2}, "version 2"),
        ({"kind": "slept"}, "unknown kind 'slept'"),
        ({"kind": "slept", "version": 2}, "version 2"),
        ({"mood": "good"}, "unknown field"),
        ({"state": "Resting"}, "state"),
    ],
)
def test_promise_11_a_record_of_an_unknown_version_is_refused_loudly(changes: dict[str, object], expected: str) -> None:
    raw = msgspec.json.decode(encode(j.ended()))
    with pytest.raises(JournalError, match=expected):
        decode(msgspec.json.encode({**raw, **changes}))


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"{", b'{"version":1}', b"\xff"])
def test_what_is_no_record_is_refused(raw: bytes) -> None:
    with pytest.raises(JournalError):
        decode(raw)


def test_promise_04_a_key_is_stable_and_of_one_call_only() -> None:
    assert effect_key("run-1", 2, 3) == "1e901297fd3669fc052f6651b222fec5"
    places = [(run, step, call) for run in ("a", "a/1", "b") for step in range(12) for call in range(12)]
    assert len({effect_key(*place) for place in places}) == len(places)

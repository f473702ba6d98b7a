"""Who asks, for which run, in which class."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.ids import CALLER_BYTES_MAX, is_id
from dataplane.errors import ApiError
from dataplane.fresh_ids import id_source
from dataplane.identity import CALLER, CLASS, RUN_ID, Identity, identify
from protos import turn_pb2


def test_without_headers_a_client_is_anonymous_and_interactive() -> None:
    assert identify({}) == Identity(None, "", turn_pb2.RUN_CLASS_INTERACTIVE)  # type: ignore[arg-type]


def test_headers_name_run_class_and_caller() -> None:
    found = identify({RUN_ID: b"r:1.a_b-C", CLASS: b"batch", CALLER: " Zoë ".encode()})
    assert found == Identity("r:1.a_b-C", "Zoë", turn_pb2.RUN_CLASS_BATCH)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [b"", b"a b", b"a/b", "ü".encode(), b"x" * 129, b"a\tb", b"%0d%0a", b'"a"'])
def test_an_odd_run_id_is_refused_by_its_header(value: bytes) -> None:
    error = identify({RUN_ID: value})
    assert isinstance(error, ApiError)
    assert (error.status, "x-luftpause-run-id: expected" in error.message) == (400, True)


@pytest.mark.parametrize("value", [b"urgent", b"", b"Batch", b"interactive,batch", b"\xff"])
def test_an_unknown_class_is_refused_by_its_header(value: bytes) -> None:
    error = identify({CLASS: value})
    assert isinstance(error, ApiError)
    assert error.message == "x-luftpause-class: expected 'interactive' or 'batch'"


@given(st.binary(max_size=400))
def test_any_caller_is_cut_to_its_limit(value: bytes) -> None:
    found = identify({CALLER: value})
    assert isinstance(found, Identity)
    assert len(found.caller.encode()) <= CALLER_BYTES_MAX


def test_new_ids_are_well_formed_and_differ() -> None:
    sources = [id_source("run"), id_source("run")]
    ids = [source() for source in sources for _ in range(100)]
    assert len(set(ids)) == 200
    assert all(map(is_id, ids))


def test_a_new_id_tells_nothing_of_the_next() -> None:
    first, second = (source() for source in [id_source("turn")] * 2)
    alike = sum(a == b for a, b in zip(first.removeprefix("turn-"), second.removeprefix("turn-"), strict=True))
    assert alike < 16  # of 32 hexadecimal digits; by chance, once in 10^11

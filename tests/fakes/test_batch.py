"""Continuous batching: the order of things, and that nothing is lost."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fakes.engine.batch import Engine, Request
from fakes.engine.latency import LAPTOP_1B
from tests.fakes.small import SMALL, request


def _drain(engine: Engine, now: float = 0.0, steps_max: int = 10_000) -> list[Request]:
    """Runs until nothing is left: the requests in the order in which they ended."""
    ended: list[Request] = []
    for _ in range(steps_max):
        if not engine.busy:
            return ended
        step_s, produced = engine.step(now)
        now += step_s
        ended += [request for request in produced if request.finished]
    raise AssertionError(f"not done after {steps_max} steps")


def test_a_request_takes_a_prefill_and_a_step_a_token() -> None:
    engine = Engine(SMALL)
    asked = request(10, 3)
    engine.submit(asked, 0.0)
    assert engine.step(0.0) == (10.0, [asked])
    assert engine.step(10.0) == (1.0, [asked])
    assert engine.step(11.0) == (1.0, [asked])
    assert asked.finished
    assert engine.step(12.0) == (0.0, [])
    engine.cache.check({})


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    engine = Engine(SMALL)
    engine.submit(request(35, 1), 0.0)
    assert [engine.step(0.0)[0] for _ in range(3)] == [16.0, 16.0, 3.0]


def test_running_requests_get_their_token_before_a_waiting_prompt_gets_the_rest() -> None:
    engine = Engine(SMALL)
    first, second = request(4, 5), request(20, 1)
    engine.submit(first, 0.0)
    engine.step(0.0)
    engine.submit(second, 0.0)
    assert engine.step(0.0) == (16.0, [first])
    assert second.computed == 15
    assert engine.step(0.0) == (6.0, [first, second])


def test_no_more_than_max_num_seqs_run_and_the_others_wait_in_order() -> None:
    engine = Engine(SMALL)
    asked = [request(2, 3) for _ in range(5)]
    for each in asked:
        engine.submit(each, 0.0)
    engine.step(0.0)
    assert list(engine.running) == asked[:3]
    assert engine.waiting == 2
    assert _drain(engine) == asked


def test_a_prompt_that_does_not_fit_whole_keeps_its_place_in_line() -> None:
    engine = Engine(SMALL)
    big, small = request(30, 2), request(4, 1)
    engine.submit(request(25, 4), 0.0)
    engine.step(0.0)
    engine.step(16.0)
    engine.submit(big, 25.0)
    engine.submit(small, 25.0)
    engine.step(25.0)
    assert (big.running, small.running) == (False, False)
    _drain(engine, 26.0)
    assert big.admitted_at is not None
    assert small.admitted_at is not None
    assert small.admitted_at >= big.admitted_at > 0.0


def test_the_next_turn_of_a_conversation_finds_prompt_and_reply_of_the_last() -> None:
    engine = Engine(SMALL)
    first = request(8, 9, stem=1, shared_blocks=4)
    engine.submit(first, 0.0)
    _drain(engine)
    second = request(20, 2, stem=1, shared_blocks=4)
    engine.submit(second, 0.0)
    _drain(engine)
    assert second.cached_tokens == 16  # 8 of the prompt, 8 of the reply: the last token of a reply is never computed
    assert (engine.totals.cache_queries, engine.totals.cache_hits) == (28, 16)


def test_a_prompt_that_is_cached_whole_still_computes_its_last_block() -> None:
    engine = Engine(SMALL)
    for _ in range(2):
        asked = request(8, 1, stem=1, shared_blocks=2)
        engine.submit(asked, 0.0)
        _drain(engine)
    assert asked.cached_tokens == 4


def test_conversations_that_exceed_the_cache_evict_each_other() -> None:
    engine = Engine(SMALL)
    for stem in (1, 2, 1):
        asked = request(30, 4, stem=stem, shared_blocks=7)
        engine.submit(asked, 0.0)
        _drain(engine)
    # Of twelve blocks the second conversation needed nine, and took the first one's tail.
    assert asked.cached_tokens == 12
    assert engine.cache.evictions > 0


def test_out_of_blocks_the_last_admitted_is_preempted_and_still_finishes() -> None:
    engine = Engine(SMALL)
    first, second, third = (request(12, 20) for _ in range(3))
    for each in (first, second, third):
        engine.submit(each, 0.0)
    assert _drain(engine) == [first, second, third]
    assert first.preemptions == 0
    assert third.preemptions > 0
    assert engine.totals.preemptions == second.preemptions + third.preemptions
    assert engine.totals.generation_tokens == 60
    engine.cache.check({})


def test_an_aborted_request_frees_its_blocks_at_once_and_produces_nothing_more() -> None:
    engine = Engine(SMALL)
    running, waiting = request(30, 5), request(30, 5)
    engine.submit(running, 0.0)
    engine.submit(waiting, 0.0)
    engine.step(0.0)
    engine.abort(waiting)
    engine.abort(running)
    engine.cache.check({})
    assert not engine.busy
    engine.abort(running)
    assert engine.totals.aborted == 2


@pytest.mark.parametrize(("prompt", "reply"), [(0, 1), (1, 0), (30, 11)])
def test_a_request_that_cannot_fit_is_refused(prompt: int, reply: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Engine(SMALL).submit(Request(prompt, reply), 0.0)


def test_a_device_whose_cache_cannot_hold_one_request_is_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        Engine(dataclasses.replace(SMALL, max_model_len=49))


def _flood(seed: int) -> tuple[list[tuple[float, list[int]]], Engine, list[Request]]:
    chance = random.Random(seed)
    engine = Engine(dataclasses.replace(LAPTOP_1B, kv_tokens=8_192, max_model_len=4_096))
    asked: list[Request] = []
    trace = []
    now = 0.0
    while len(asked) < 400 or engine.busy:
        for _ in range(chance.randrange(3) if len(asked) < 400 else 0):
            prompt, stem = chance.randrange(50, 1_500), chance.randrange(20)
            hashes = [stem * 1_000 + block for block in range(prompt // 16)]
            asked.append(Request(prompt, chance.randrange(1, 200), hashes))
            engine.submit(asked[-1], now)
        step_s, produced = engine.step(now)
        now += step_s
        trace.append((step_s, [each.number for each in produced]))
    return trace, engine, asked


def test_under_a_flood_every_request_gets_all_its_tokens_once_and_the_books_balance() -> None:
    trace, engine, asked = _flood(1)
    tokens = Counter(number for _, produced in trace for number in produced)
    assert tokens == {each.number: each.reply_tokens for each in asked}
    assert engine.totals.preemptions > 0, "the flood is too small to say anything"
    assert engine.totals.finished == len(asked)
    engine.cache.check({})


def test_the_same_submissions_take_the_same_steps() -> None:
    assert _flood(2)[0] == _flood(2)[0]
    assert _flood(2)[0] != _flood(3)[0]


class EngineMachine(RuleBasedStateMachine):
    """Any order of submissions, steps and aborts."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(SMALL)
        self.open: list[Request] = []
        self.ended: list[Request] = []
        self.aborted = 0
        self.now = 0.0

    @rule(prompt=st.integers(1, 30), reply=st.integers(1, 10), stem=st.integers(0, 2), shared=st.integers(0, 8))
    def submit(self, prompt: int, reply: int, stem: int, shared: int) -> None:
        self.open.append(request(prompt, reply, stem, shared))
        self.engine.submit(self.open[-1], self.now)

    @rule(steps=st.integers(1, 5))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            busy = self.engine.busy
            tokens, produced = self.engine.step(self.now)
            assert tokens <= SMALL.token_budget
            assert (tokens > 0) == busy, "a busy engine computes something in every step"
            assert len(set(produced)) == len(produced)
            self.now += tokens
            for each in [each for each in produced if each.finished]:
                self.open.remove(each)
                self.ended.append(each)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        leaving = data.draw(st.sampled_from(self.open))
        self.engine.abort(leaving)
        self.open.remove(leaving)
        self.aborted += 1

    @invariant()
    def every_block_is_unused_or_used_by_those_who_hold_it(self) -> None:
        self.engine.cache.check(dict(Counter(block for each in self.open for block in each.blocks)))

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        running = list(self.engine.running)
        assert len(running) <= SMALL.max_num_seqs
        assert len(running) + self.engine.waiting == len(self.open)
        assert all(each.running for each in running)
        for each in self.open:
            assert bool(each.blocks) == each.running
            assert -(-each.computed // SMALL.block_tokens) == len(each.blocks)
            assert each.computed <= each.prompt_tokens + each.generated
        assert all(each.finished and not each.blocks for each in self.ended)
        totals = self.engine.totals
        assert (totals.finished, totals.aborted) == (len(self.ended), self.aborted)

    def teardown(self) -> None:
        assert len(_drain(self.engine, self.now)) == len(self.open)
        self.engine.cache.check({})


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)

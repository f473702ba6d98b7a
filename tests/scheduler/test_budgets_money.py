"""Money and deadlines of runs, forecasts, and what a restart must not forget."""

from __future__ import annotations

import contextlib
import math
import pathlib
import sqlite3
import time

import pytest
from immutables import Map

from common.ids import Caller, Model, RunId, TurnId
from scheduler.beginning import initial
from scheduler.budgets import spend
from scheduler.budgets.forecast import STEPS_MAX, Context, forecast, grown
from scheduler.budgets.headers import Dimension
from scheduler.budgets.ledger import Limit, Price, start
from scheduler.budgets.prediction import Histories, learn, predict
from scheduler.budgets.spend import Recent, RunKey, Spend, Spends
from scheduler.core import decide
from scheduler.effects import Effect, PlaceTurn, Reason, RecordSpend, RefuseTurn
from scheduler.events import (
    DataplaneResynced,
    KnownTurn,
    Request,
    RunClass,
    RunEnded,
    Ticked,
    TurnArrived,
    TurnEnded,
    TurnFailed,
)
from scheduler.money import forecast_of
from scheduler.spend_ledger import FILE, SpendLedger
from scheduler.state import RUN_FORGOTTEN_S
from tests.scheduler.story import DATAPLANE, Story, replica

RUN = RunId("r")
OURS = RUN, Caller("")
PRICE = {"m": {"input": 1.0, "output": 10.0}}
"""US dollars a million tokens."""


def request(turn: str, caller: str = "", **options: object) -> Request:
    values: dict[str, object] = {"prompt_bytes": 4000, "max_tokens": 1000, **options}
    return Request(TurnId(turn), RUN, RunId(""), Caller(caller), RunClass.BATCH, Model("m"), **values)  # type: ignore[arg-type]


def arrive(story: Story, turn: str, caller: str = "", **options: object) -> tuple[Effect, ...]:
    return story.tell(TurnArrived(story.at, DATAPLANE, request(turn, caller, **options)))


def end(story: Story, turn: str, prompt: int = 1000, completion: int = 100) -> tuple[Effect, ...]:
    return story.tell(TurnEnded(story.at, TurnId(turn), True, (), prompt, completion, 0))


def spending(spends: Spends, run: RunKey = OURS) -> Spend:
    found = spend.find(spends, run)
    assert found is not None
    return found


def spent(story: Story) -> Spend:
    return spending(story.state.spends)


def reasons(effects: tuple[Effect, ...]) -> list[Reason]:
    return [effect.reason for effect in effects if isinstance(effect, RefuseTurn)]


def placed(effects: tuple[Effect, ...]) -> bool:
    return any(isinstance(effect, PlaceTurn) for effect in effects)


def test_a_run_spends_its_budget_and_no_more() -> None:
    story = Story(replica("a", price=PRICE))
    assert placed(arrive(story, "t1", budget_usd=0.02))
    recorded = end(story, "t1")
    assert [e.spend.settled for e in recorded if isinstance(e, RecordSpend)] == [pytest.approx(0.002)]
    turns = 1
    while placed(arrive(story, f"t{turns + 1}", budget_usd=0.02)):
        turns += 1
        end(story, f"t{turns}")
    assert 5 <= turns <= 10
    assert spent(story).settled <= 0.02


def test_two_turns_of_a_run_do_not_both_get_the_last_money() -> None:
    story = Story(replica("a", price=PRICE))
    assert placed(arrive(story, "t1", budget_usd=0.015))
    assert reasons(arrive(story, "t2", budget_usd=0.015)) == [Reason.OVER_BUDGET]


def test_what_a_turn_reserved_comes_back_however_it_leaves() -> None:
    story = Story(replica("a", price=PRICE, limits={"requests_per_minute": 1}))
    arrive(story, "t1", budget_usd=1)
    arrive(story, "t2", budget_usd=1, wait_s_max=100.0)
    assert spent(story).reserved > 0.02
    story.tell(TurnFailed(story.at, TurnId("t1"), 0))
    story.tick(200)
    assert spent(story).reserved == pytest.approx(0)
    assert spent(story).settled == 0


def test_a_turn_that_broke_off_costs_what_it_was_likely_to() -> None:
    story = Story(replica("a", price=PRICE))
    arrive(story, "t1", budget_usd=1)
    story.tell(TurnFailed(story.at, TurnId("t1")))
    assert spent(story).settled > 0.005


def test_a_turn_told_again_after_a_restart_is_counted_once() -> None:
    story = Story(replica("a", price=PRICE))
    arrive(story, "t1", budget_usd=1)
    end(story, "t1")
    settled = spent(story).settled
    again = KnownTurn(request("t1", budget_usd=1.0), story.state.runs[RUN].home or "", 2000, 1.0)  # type: ignore[arg-type]
    story.tell(DataplaneResynced(story.at, DATAPLANE, (), (again,)))
    end(story, "t1")
    assert spent(story).settled == settled


def test_a_turn_that_ended_during_the_outage_is_counted() -> None:
    state = initial((replica("a", price=PRICE),), 0.0, 1000, Spends(Recent(Map({OURS: Spend(1.0, 0.5)}))))
    again = KnownTurn(request("t1", budget_usd=1.0), "a", 2000, 1.0)  # type: ignore[arg-type]
    state, _ = decide(state, DataplaneResynced(0.5, DATAPLANE, (), (again,)))
    state, effects = decide(state, TurnEnded(0.6, TurnId("t1"), True, (), 1000, 100, 0))
    assert spending(state.spends).settled == pytest.approx(0.502)
    assert any(isinstance(effect, RecordSpend) for effect in effects)


@pytest.mark.parametrize("limit", [2.0, math.inf])
def test_spend_survives_a_restart_and_never_goes_back(tmp_path: pathlib.Path, limit: float) -> None:
    ledger = SpendLedger(tmp_path / "state", lambda: 500.0)
    ledger.write([RecordSpend(TurnId("t1"), OURS, Spend(limit, 0.75))])
    ledger.write([RecordSpend(TurnId("t0"), OURS, Spend(limit, 0.5, 0.1))])
    ledger.close()
    again = SpendLedger(tmp_path / "state", lambda: 3.0)
    spends = again.load()
    again.close()
    assert spending(spends) == Spend(limit, 0.75)
    assert spend.is_settled(spends, TurnId("t1"))
    assert not spend.is_settled(spends, TurnId("t2"))


def test_a_deadline_survives_a_restart_on_another_clock(tmp_path: pathlib.Path) -> None:
    ledger = SpendLedger(tmp_path, lambda: 500.0)
    ledger.write([RecordSpend(None, OURS, Spend(deadline=560.0))])
    ledger.close()
    again = SpendLedger(tmp_path, lambda: 3.0)
    assert spending(again.load()).deadline == pytest.approx(63.0, abs=20)
    again.close()


def test_two_callers_with_one_run_id_have_money_of_their_own_over_a_restart(tmp_path: pathlib.Path) -> None:
    ledger = SpendLedger(tmp_path, lambda: 500.0)
    theirs = RUN, Caller("b")
    ledger.write([RecordSpend(TurnId("t1"), OURS, Spend(2.0, 0.75)), RecordSpend(TurnId("t2"), theirs, Spend())])
    ledger.write([RecordSpend(None, theirs, Spend(deadline=560.0))])
    ledger.close()
    again = SpendLedger(tmp_path, lambda: 3.0)
    spends = again.load()
    again.close()
    assert spending(spends) == Spend(2.0, 0.75)
    assert spending(spends, theirs).limit == math.inf
    assert spending(spends, theirs).settled == 0
    assert spending(spends, theirs).deadline == pytest.approx(63.0, abs=20)
    assert spend.find(spends, (RUN, Caller("c"))) is None


FIRST_SCHEMA = "id TEXT PRIMARY KEY, limit_usd REAL NOT NULL, settled_usd REAL NOT NULL, at REAL NOT NULL"


@pytest.mark.parametrize("schema", [FIRST_SCHEMA, f"{FIRST_SCHEMA}, deadline REAL NOT NULL DEFAULT 9e999"])
def test_a_ledger_that_knew_no_callers_is_read_and_its_spend_counts_for_whoever_comes(
    tmp_path: pathlib.Path, schema: str
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as old, old:
        old.execute(f"CREATE TABLE run ({schema})")
        old.execute("CREATE TABLE turn (id TEXT PRIMARY KEY, at REAL NOT NULL)")
        old.execute("INSERT INTO run (id, limit_usd, settled_usd, at) VALUES ('r', 2.0, 0.5, ?)", (time.time(),))
        old.execute("INSERT INTO turn VALUES ('t0', ?)", (time.time(),))
    theirs = RUN, Caller("b")
    for settled in (0.5, 0.75):
        ledger = SpendLedger(tmp_path, lambda: 0.0)
        spends = ledger.load()
        assert spending(spends) == Spend(2.0, settled)
        assert spending(spends, theirs) == Spend(2.0, 0.5)
        assert spend.is_settled(spends, TurnId("t0"))
        spends = spend.settle(spends, OURS, TurnId("t1"), 0.25)
        ledger.write([RecordSpend(TurnId("t1"), OURS, spending(spends))])
        ledger.close()


def test_a_ledger_of_a_later_version_is_left_alone(tmp_path: pathlib.Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as later:
        later.execute("PRAGMA user_version = 99")
    with pytest.raises(sqlite3.Error, match="its schema has version 99"):
        SpendLedger(tmp_path, lambda: 0.0)


def test_what_is_remembered_of_runs_and_turns_is_bounded() -> None:
    recent: Recent[int, int] = Recent()
    for number in range(100):
        recent = recent.set(number, number + 1, 16)
    assert len(recent.young) + len(recent.old) <= 32
    assert recent.get(99) == 100
    assert recent.without(99).get(99) is recent.get(1) is None


def test_money_spent_before_a_budget_is_named_counts() -> None:
    story = Story(replica("a", price=PRICE))
    assert placed(arrive(story, "t1"))
    recorded = end(story, "t1", completion=900)
    assert [e.spend.settled for e in recorded if isinstance(e, RecordSpend)] == [pytest.approx(0.01)]
    assert reasons(arrive(story, "t2", budget_usd=0.02)) == [Reason.OVER_BUDGET], "0.01 is left, 0.011 may be needed"
    assert reasons(arrive(story, "t3")) == [Reason.OVER_BUDGET], "the budget holds for turns that name none"
    assert placed(arrive(story, "t4", budget_usd=0.03))


def test_what_a_run_without_a_budget_spends_is_counted_once() -> None:
    story = Story(replica("a", price=PRICE))
    arrive(story, "t1")
    end(story, "t1")
    settled = spent(story).settled
    again = KnownTurn(request("t1"), story.state.runs[RUN].home or "", 2000, 1.0)  # type: ignore[arg-type]
    story.tell(DataplaneResynced(story.at, DATAPLANE, (), (again,)))
    end(story, "t1")
    assert spent(story).settled == settled


def test_a_runs_deadline_holds_for_its_turns_that_name_none() -> None:
    story = Story(replica("a"))
    recorded = arrive(story, "t1", deadline_s=30.0)
    assert [e.spend.deadline for e in recorded if isinstance(e, RecordSpend)] == [story.at + 30]
    end(story, "t1")
    story.tick(29)
    assert arrive(story, "t2", deadline_s=1.2)[0].__class__ is PlaceTurn, "the same, but for the way: not written again"
    end(story, "t2")
    story.tick(2)
    (refused,) = arrive(story, "t3")
    assert isinstance(refused, RefuseTurn)
    assert refused.reason is Reason.DEADLINE
    assert refused.message == "its run's deadline, x-luftpause-deadline, has passed already"
    assert placed(arrive(story, "t4", deadline_s=60.0)), "the newest one named counts"
    end(story, "t4")
    assert placed(arrive(story, "t5"))


def test_a_held_turn_is_refused_at_the_deadline_that_its_run_named_before() -> None:
    story = Story(replica("a", max_in_flight=1))
    arrive(story, "t1", deadline_s=30.0)
    assert not arrive(story, "t2")
    assert reasons(story.tick(29)) == []
    assert reasons(story.tick(2)) == [Reason.DEADLINE]


def test_a_run_that_begins_anew_has_no_deadline() -> None:
    story = Story(replica("a"))
    arrive(story, "t1", deadline_s=5.0)
    end(story, "t1")
    story.tell(RunEnded(story.at, RUN, Caller("")))
    story.tick(10)
    assert placed(arrive(story, "t2"))


def test_a_held_turn_is_refused_when_its_deadline_has_come() -> None:
    story = Story(replica("a", max_in_flight=1))
    arrive(story, "t1")
    assert reasons(arrive(story, "t2", deadline_s=30.0)) == []
    assert reasons(story.tick(29)) == []
    assert reasons(story.tick(2)) == [Reason.DEADLINE]


def test_a_turn_that_fits_elsewhere_goes_there_though_its_run_is_paused_at_home() -> None:
    story = Story(replica("a", limits={"tokens_per_minute": 3000}), replica("b", limits={"tokens_per_minute": 9000}))
    for number in range(4):
        assert placed(arrive(story, f"t{number}"))
        end(story, f"t{number}")


def test_what_turns_cost_is_learned_by_the_tool_whose_result_they_answer() -> None:
    story = Story(replica("a", limits={"tokens_per_minute": 10_000_000}))
    for number in range(30):
        for tool, size in (("search", 20), ("write", 800)):
            arrive(story, f"{tool}-{number}", tool=tool)
            end(story, f"{tool}-{number}", completion=size)
    for tool in ("search", "write"):
        arrive(story, tool, tool=tool)
    likely = {tool: story.state.turns[TurnId(tool)].need for tool in ("search", "write")}
    assert likely["search"] is not None
    assert likely["write"] is not None
    assert likely["search"].completion < 40
    assert likely["write"].completion >= 700


def test_a_forecast_grows_with_the_context_and_its_spread_with_the_root() -> None:
    histories, key = Histories(), ("m", "", "")
    for size in range(20, 220):
        need = predict(histories, key, 4000, None)
        histories = learn(histories, key, need, prompt_bytes=4000, prompt_tokens=1000, completion_tokens=size)
    context = grown(grown(None, "m", 1000, 100), "m", 1200, 100)
    budget = start((Limit(Dimension.TOKENS, "minute", 6000, 60),), 0.0)
    found = {
        steps: forecast(histories, key, context, steps, budget=budget, price=Price(1e-6, 1e-5), now=0.0)
        for steps in (1, 4, 100, STEPS_MAX)
    }
    assert found[1].tokens.mean == pytest.approx(1200 + context.growth + 110, rel=0.2)
    assert found[4].tokens.mean > 4 * found[1].tokens.mean
    assert found[4].tokens.p95 > found[4].tokens.mean
    assert found[100].wait_s.mean > found[4].wait_s.mean >= 0
    assert found[100].usd.mean > 0
    calm = Context("m", 1000, 0, 0)
    ones = forecast(histories, key, calm, 1, budget=None, price=Price(), now=0.0)
    hundred = forecast(histories, key, calm, 100, budget=None, price=Price(), now=0.0)
    assert hundred.tokens.deviation == pytest.approx(10 * ones.tokens.deviation)
    assert hundred.wait_s.mean == hundred.suspensions.mean == 0


def test_a_forecast_is_for_the_runs_own_caller() -> None:
    story = Story(replica("a", price=PRICE))
    arrive(story, "t1")
    assert forecast_of(story.state, RUN, Caller(""), 5, story.at) is None
    end(story, "t1")
    assert forecast_of(story.state, RUN, Caller("x"), 5, story.at) is None
    found = forecast_of(story.state, RUN, Caller(""), 5, story.at)
    assert found is not None
    assert found.usd.mean > 0


def test_a_moment_that_dry_names_is_looked_at_when_it_comes() -> None:
    story = Story(replica("a", limits={"requests_per_minute": 60}))
    for number in range(60):
        arrive(story, f"t{number}")
    assert not placed(arrive(story, "late"))
    due = min(story.state.dry.values())
    assert placed(story.tell(Ticked(due)))


def test_a_caller_shares_neither_money_nor_deadline_with_another_ones_run_of_the_same_id() -> None:
    story = Story(replica("a", price=PRICE))
    arrive(story, "t1", budget_usd=0.02, deadline_s=30.0)
    end(story, "t1", completion=900)
    story.tick(RUN_FORGOTTEN_S + 700)
    assert RUN not in story.state.runs
    assert placed(arrive(story, "t2", "b")), "the first one's deadline has passed, and its money is spent"
    end(story, "t2")
    assert spending(story.state.spends, (RUN, Caller("b"))).settled == pytest.approx(0.002)
    assert spent(story).settled == pytest.approx(0.01)
    story.tell(RunEnded(story.at, RUN, Caller("b")))
    assert reasons(arrive(story, "t3")) == [Reason.DEADLINE]
    story.tell(RunEnded(story.at, RUN, Caller("")))
    assert reasons(arrive(story, "t4")) == [Reason.OVER_BUDGET], "its deadline went with it, though it was forgotten"

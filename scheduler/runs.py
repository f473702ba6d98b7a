"""Runs: who they belong to, which one a turn continues, their phases. Pure; works on a draft."""

from __future__ import annotations

from msgspec.structs import replace

from common.ids import Caller, RunId, TurnId
from scheduler.economy import with_pause
from scheduler.events import Request, RunClass
from scheduler.fairness import count_at_work
from scheduler.habits import CALLERS_MAX, PAUSE_S_MAX, USUAL, Habit, returned, stayed_away
from scheduler.parts import with_change
from scheduler.pools import put_replica
from scheduler.state import TOOL_CALL_REMEMBERED_S, TOOL_CALL_SWEEP_S, Draft, Replica, Run
from scheduler.timers import set_pause_timer, set_run_timer


def identify(draft: Draft, request: Request) -> RunId:
    """The run a turn belongs to: the one it names; else the one whose reply contained the newest of its tool call ids
    that is known and belongs to one run only; else the new one."""
    if request.run_id is not None:
        return request.run_id
    for call_id in request.tool_call_ids:
        known = draft.tool_calls.get((request.caller, call_id))
        if known is not None and known[0] is not None:
            return known[0]
    return request.new_run_id


def arrive(draft: Draft, run_id: RunId, request: Request) -> Run:
    """The run of an arriving turn, active now and of the turn's class. It is not set yet; its timer is, if it is
    new."""
    run = draft.runs.get(run_id)
    if run is not None:
        if run.turns_done and not run.in_flight and not run.held:
            _came_back(draft, run)
        return replace(run, run_class=request.run_class, active_at=draft.now, ended=False)
    return new_run(draft, Run(run_id, request.caller, request.run_class, active_at=draft.now))


def new_run(draft: Draft, run: Run) -> Run:
    """A run that was not known, with its timer set. It is not set itself yet."""
    draft.arrivals += 1
    run = replace(run, born=draft.arrivals)
    set_run_timer(draft, run)
    return run


def put_run(draft: Draft, run: Run) -> None:
    """Sets a run and keeps the counts by class and phase, and of what its home holds for it."""
    known, counts = draft.runs.get(run.run_id), draft.run_counts
    draft.runs = draft.runs.set(run.run_id, run)
    if known is not None:
        counts[_count_index(known)] -= 1
    counts[_count_index(run)] += 1
    _move_resident(draft, known, run)
    count_at_work(draft, known, run)


def resident_tokens(run: Run) -> int:
    """What the run's home holds of it in its KV cache: all of a run that is in flight or expected back any moment. A
    run that waits for its next turn to be placed is not counted: what it left behind is for others to take."""
    if run.home is None or not (run.in_flight or (run.expected_as is not None and not run.held)):
        return 0
    return run.tokens


def learn(draft: Draft, run: Run, habit: Habit) -> None:
    """Sets the habit of a run's caller, unless there are too many callers."""
    if run.caller in draft.habits or len(draft.habits) < CALLERS_MAX:
        draft.habits = draft.habits.set(run.caller, habit)


def gone(draft: Draft, run: Run) -> None:
    """Learns that a run that was expected back does not come."""
    if run.expected_as is not None:
        habit = draft.habits.get(run.caller, USUAL)
        learn(draft, run, stayed_away(habit, run.turns_done, paused=run.paused))


def _came_back(draft: Draft, run: Run) -> None:
    """Learns that a run came back after a pause."""
    pause_s = draft.now - run.paused_at
    if pause_s > PAUSE_S_MAX:
        return
    habit = draft.habits.get(run.caller, USUAL)
    learn(draft, run, returned(habit, run.turns_done, pause_s, paused=run.paused))
    home = draft.replicas.get(run.home) if run.home is not None else None
    if home is not None:
        put_replica(draft, replace(home, economy=with_pause(home.economy, pause_s)))


def _move_resident(draft: Draft, before: Run | None, after: Run | None) -> None:
    """Moves what a run holds of a KV cache from where it was to where it is."""
    old = resident_tokens(before) if before is not None else 0
    new = resident_tokens(after) if after is not None else 0
    if before is not None and after is not None and before.home == after.home and before.run_class is after.run_class:
        _hold_tokens(draft, after, new - old)
        return
    if before is not None:
        _hold_tokens(draft, before, -old)
    if after is not None:
        _hold_tokens(draft, after, new)


def _hold_tokens(draft: Draft, run: Run, change: int) -> None:
    home = draft.replicas.get(run.home) if change and run.home is not None else None
    if home is None:
        return
    if run.run_class is RunClass.BATCH:
        takings = with_change(home.takings, run.caller, resident=change)
        home = replace(home, batch_tokens=home.batch_tokens + change, takings=takings)
    else:
        home = replace(home, interactive_tokens=home.interactive_tokens + change)
    put_replica(draft, home)
    if change < 0 and home.kv_tokens is not None:
        draft.roomier.append(home.name)


def forget(draft: Draft, run: Run) -> None:
    """Drops a run that has no turns, as it is set."""
    assert not run.in_flight
    assert not run.held
    expect_no_more(draft, run)
    _move_resident(draft, run, None)
    count_at_work(draft, run, None)
    draft.runs = draft.runs.delete(run.run_id)
    draft.run_counts[_count_index(run)] -= 1


def expect_back(draft: Draft, run: Run) -> Run:
    """Keeps a place at its home for a run that is expected back since `paused_at`. The run it returns is not set
    yet."""
    home = draft.replicas.get(run.home) if run.home is not None else None
    if home is None:
        return run
    interactive = run.run_class is RunClass.INTERACTIVE
    put_replica(draft, replace(home, paused=home.paused + 1, reserved=home.reserved + interactive))
    set_pause_timer(draft, run)
    return replace(run, expected_as=run.run_class)


def without(turn_ids: tuple[TurnId, ...], turn_id: TurnId) -> tuple[TurnId, ...]:
    """All but one."""
    return () if turn_ids == (turn_id,) else tuple(other for other in turn_ids if other != turn_id)


def expect_no_more(draft: Draft, run: Run) -> Run:
    """Gives up the place kept for a run, if there is one, and notes where its home is roomier for that: a place kept
    for a batch run keeps nobody out. The run it returns is not set yet."""
    if run.expected_as is None:
        return run
    assert run.home is not None
    put_replica(draft, without_place(draft.replicas[run.home], run))
    if run.expected_as is RunClass.INTERACTIVE:
        draft.roomier.append(run.home)
    return replace(run, expected_as=None)


def without_place(home: Replica, run: Run) -> Replica:
    """The home of a run without the place kept for it."""
    interactive = run.expected_as is RunClass.INTERACTIVE
    return replace(home, paused=home.paused - 1, reserved=home.reserved - interactive)


def remember_tool_calls(draft: Draft, run: Run, tool_call_ids: tuple[str, ...]) -> None:
    """Lets tool call ids identify the run. One that two runs used identifies none."""
    minute = int(draft.now // TOOL_CALL_SWEEP_S)
    for call_id in tool_call_ids:
        key = (run.caller, call_id)
        known = draft.tool_calls.get(key)
        owner = run.run_id if known is None or known[0] == run.run_id else None
        draft.tool_calls = draft.tool_calls.set(key, (owner, minute))
        draft.tool_call_minutes = draft.tool_call_minutes.set(minute, (key, draft.tool_call_minutes.get(minute)))


def sweep_tool_calls(draft: Draft) -> None:
    """Forgets the tool call ids that were last seen too long ago."""
    oldest = int((draft.now - TOOL_CALL_REMEMBERED_S) // TOOL_CALL_SWEEP_S)
    for minute in sorted(minute for minute in draft.tool_call_minutes if minute < oldest):
        chain = draft.tool_call_minutes[minute]
        draft.tool_call_minutes = draft.tool_call_minutes.delete(minute)
        while chain is not None:
            key: tuple[Caller, str] = chain[0]
            known = draft.tool_calls.get(key)
            if known is not None and known[1] == minute:
                draft.tool_calls = draft.tool_calls.delete(key)
            chain = chain[1]


def _count_index(run: Run) -> int:
    """Where `State.run_counts` counts the run: by class, then by phase as `Run.phase` has it."""
    return 3 * run.run_class + (0 if run.in_flight else 1 if run.paused else 2)

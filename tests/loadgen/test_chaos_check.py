"""The checker of a chaos finds what is lost, doubled, stuck, leaked and wrong, and nothing where all is well."""

from __future__ import annotations

import copy

from loadgen.chaos_check import Seen, judge


def well() -> Seen:
    """A chaos that came to nothing."""
    seen = Seen(runs_begun=3, runs_done=3)
    seen.turns.update({"answered": 9, "status 502": 2, "left": 1})
    seen.request_ids.update(["t1", "t2"])
    seen.marks.update(f"chaos-try-{number}" for number in range(10))
    seen.sub_agents = {"run-1": "note-1", "run-2": "note-2"}
    seen.ends = {"run-1": "completed", "run-2": "failed"}
    seen.effects = [{"key": "k1", "tool": "add_note", "arguments": {"text": "note-1"}}]
    seen.left_over = {"turns held, by the scheduler": 0}
    seen.at_start = {"scheduler": {"sockets": 8, "tasks": 5}}
    seen.at_end = {"scheduler": {"sockets": 9, "tasks": 5}}
    seen.memory = {"scheduler": [(float(second), 50_000 + second % 7) for second in range(200)]}
    return seen


def kinds(seen: Seen) -> set[str]:
    """Kinds of what is found."""
    verdict = judge(seen)
    assert verdict.passed == (not any(verdict.faults.values()))
    return {kind for kind, found in verdict.faults.items() if found}


def test_nothing_is_found_where_all_is_well() -> None:
    assert kinds(well()) == set()


def test_a_run_that_did_not_end_is_lost() -> None:
    seen = well()
    seen.runs_begun += 1
    assert kinds(seen) == {"lost"}


def test_an_acknowledged_sub_agent_without_an_end_is_lost() -> None:
    seen = well()
    del seen.ends["run-2"]
    assert kinds(seen) == {"lost"}


def test_a_completed_sub_agent_without_its_effect_has_lost_it_unless_it_said_so() -> None:
    seen = well()
    seen.effects = []
    assert kinds(seen) == {"lost"}
    seen.unknown.add("run-1")
    assert kinds(seen) == set()


def test_a_turn_that_came_to_an_engine_twice_is_doubled() -> None:
    seen = well()
    seen.request_ids["t1"] += 1
    assert kinds(seen) == {"doubled"}
    seen = well()
    seen.doubled_at_engines.append("turn t1 came to engine-0 again")
    assert kinds(seen) == {"doubled"}


def test_a_try_that_came_to_engines_twice_is_doubled_though_its_turn_has_a_fresh_id() -> None:
    seen = well()
    seen.request_ids.update(["t3"])
    seen.marks["chaos-try-0"] += 1
    assert kinds(seen) == {"doubled"}


def test_answers_to_tries_that_came_to_no_engine_are_wrong() -> None:
    seen = well()
    seen.marks.clear()
    assert kinds(seen) == {"wrong"}


def test_an_effect_that_happened_twice_is_doubled() -> None:
    seen = well()
    seen.sub_agents["run-3"], seen.ends["run-3"] = "note-3", "failed"
    note = {"key": "k3", "tool": "add_note", "arguments": {"text": "note-3"}}
    seen.effects = [*seen.effects, note, copy.copy(note)]
    assert kinds(seen) == {"doubled"}


def test_a_turn_without_any_answer_is_stuck() -> None:
    seen = well()
    seen.turns["stuck"] = 1
    assert kinds(seen) == {"stuck"}


def test_what_is_left_over_has_leaked() -> None:
    for name, what in (("left_over", "turns in flight"), ("at_end", "sockets"), ("at_end", "tasks")):
        seen = well()
        if name == "left_over":
            seen.left_over[what] = 1
        else:
            seen.at_end["scheduler"] = {**seen.at_start["scheduler"], what: 20}
        assert kinds(seen) == {"leaked"}


def test_memory_that_grows_has_leaked_and_a_short_look_says_nothing() -> None:
    seen = well()
    seen.memory = {"scheduler": [(float(second), 50_000 + 50 * second) for second in range(200)]}
    assert kinds(seen) == {"leaked"}
    seen.memory = {"scheduler": [(float(second), 50_000 + 5000 * second) for second in range(20)]}
    assert kinds(seen) == set()


def test_an_answer_that_no_failure_explains_is_wrong() -> None:
    seen = well()
    seen.wrong.append("status 404: no generative replica serves model 'm'")
    assert kinds(seen) == {"wrong"}
    seen = well()
    seen.bad_ends.append("scheduler ended with exit code 1 on SIGTERM")
    assert kinds(seen) == {"wrong"}

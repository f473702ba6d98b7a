"""Whether a tool call is made once more, and what is told of its tries."""

from __future__ import annotations

import pytest

from runtime.tool_specs import Done, EffectKind, NotStarted, Outcome, Unknown
from runtime.tries import TRIES_MAX, Tries

DOWN, LOST, LATE = NotStarted("down"), Unknown("lost"), Unknown("late", is_late=True)
UNKNOWN = "; it is unknown whether this tool call took effect"


@pytest.mark.parametrize(
    ("outcome", "safe", "once"),
    [(DOWN, True, True), (LOST, True, False), (LATE, False, False), (Done("", is_error=True), False, False)],
)
def test_a_call_is_made_again_where_its_effect_cannot_happen_twice(outcome: Outcome, safe: bool, once: bool) -> None:
    for effect in EffectKind:
        tries = Tries(effect, in_doubt=False).after(outcome)
        assert tries.may_follow(outcome) is (once if effect is EffectKind.AT_MOST_ONCE else safe)


def test_a_call_that_ends_its_server_each_time_is_made_three_times() -> None:
    tries = Tries(EffectKind.IDEMPOTENT, in_doubt=False)
    followed = []
    for _ in range(TRIES_MAX):
        tries = tries.after(LOST)
        followed.append(tries.may_follow(LOST))
    assert followed == [True, True, False]


@pytest.mark.parametrize(
    ("effect", "outcomes", "in_doubt", "told"),
    [
        (EffectKind.IDEMPOTENT, (Done("t", is_error=False),), True, ("t", False)),
        (EffectKind.IDEMPOTENT, (DOWN,), False, ("Error: down", True)),
        (EffectKind.IDEMPOTENT, (LOST, DOWN), False, (f"Error: down{UNKNOWN}", True)),
        (EffectKind.IDEMPOTENT, (DOWN, LOST), False, (f"Error: lost{UNKNOWN}", True)),
        (EffectKind.IDEMPOTENT, (DOWN,), True, (f"Error: down{UNKNOWN}", True)),
        (EffectKind.AT_MOST_ONCE, (DOWN,), True, (f"Error: down{UNKNOWN}", True)),
        (EffectKind.READ_ONLY, (LOST, DOWN), False, ("Error: down", True)),
        (EffectKind.READ_ONLY, (LATE,), False, ("Error: late; the tool may still be running", True)),
    ],
)
def test_the_model_is_told_the_worst_of_the_tries(
    effect: EffectKind, outcomes: tuple[Outcome, ...], in_doubt: bool, told: tuple[str, bool]
) -> None:
    tries = Tries(effect, in_doubt=in_doubt)
    for outcome in outcomes:
        tries = tries.after(outcome)
    assert tries.told(outcomes[-1]) == told

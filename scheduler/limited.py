"""Where the core meets rate limits: which replica's budget fits a turn, what it reserves and settles. Pure; works on a
draft. None of it runs where no replica has a budget.

A replica whose budget does not fit the next held turn is *dry* for its class (`Replica.dry_for`): that turn waits, and
none behind it overtakes; a turn of a better class may. It is looked at again when its time in `State.dry` has come, or
as soon as something of its budget changes. What the budget says is decided in `budgets`.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from common.ids import ReplicaName
from scheduler.admission import has_room
from scheduler.budgets import ledger, prediction
from scheduler.budgets.headers import LimitsTold
from scheduler.budgets.ledger import Budget, Reservation, Spent
from scheduler.budgets.line import due_of, scarcest, with_place, without_place
from scheduler.budgets.prediction import Histories, Need
from scheduler.effects import Reason, RefuseTurn
from scheduler.events import FirstTokenSeen, KnownLimits, Request, RunClass, TurnEnded, TurnFailed
from scheduler.money import (
    can_afford,
    history_key,
    likely_usd,
    members_for,
    need_of,
    run_key,
    settle_usd,
    take_usd,
    usd_of,
    usual_need,
)
from scheduler.ordered import Key
from scheduler.pools import is_behind_others, load_key, put_replica
from scheduler.state import Draft, Replica, Run, Turn, with_first_token

ROUNDING_S = 1e-6
"""Else a turn whose time is the last digit of a float away would be tried for ever at the same moment."""
AGAIN_S_MIN, AGAIN_S_MAX = 5.0, 60.0
"""When a client may come again to a place of which nobody knows when it is free: after as long as it waited, within
these."""
WAITED_S_MIN = 0.05
"""Less is not called waiting."""
PLENTY = 0.5
"""While so large a share of a window is left, not all came who were told to, and nobody need wait for them."""
TOO_MANY_REQUESTS = 429
TOO_LARGE = 413
"""As a dataplane reports it: also what an engine answers 429 and calls too large."""
SERVER_ERROR = 500
UNREACHABLE = 0


def choose(draft: Draft, turn: Turn, run: Run | None, *, resident: bool) -> Replica | None:
    """The replica for a turn that may go anywhere: the home if it fits there, else one without limits, by its load,
    else the one with most headroom. Where none fits, those with room are dry."""
    if not draft.is_open:
        return None
    home = run.home if run is not None else None
    candidates = _candidates(draft, turn, home, resident=resident)
    if not candidates:
        return None
    need, run_class, falls_back = need_of(draft, turn), turn.request.run_class, bool(turn.request.fallbacks)
    ranked: list[tuple[Key, Replica]] = []
    dry = []
    for name in candidates:
        replica = draft.replicas[name]
        if not has_room(replica, run_class, turn.request.caller, resident=resident and name == home):
            continue
        budget, usd = replica.budget, likely_usd(replica, turn.request, need)
        opens = _opens(replica, need, usd, draft.now) if budget is not None else draft.now
        if opens > draft.now:
            dry.append((replica, opens))
            continue
        if falls_back or name == home:
            return replica
        left = ledger.headroom(budget, need, usd, draft.now) if budget is not None else 1.0
        is_limited = budget is not None and bool(budget.windows)
        ranked.append(((is_limited, -left, *load_key(replica)), replica))
    if ranked:
        return min(ranked)[1]
    if not falls_back:
        for replica, opens in dry:
            _dry(draft, replica, turn, opens)
    return None


def _candidates(draft: Draft, turn: Turn, home: ReplicaName | None, *, resident: bool) -> tuple[ReplicaName, ...]:
    """The replicas that may have room for a turn, in order: the home first unless it falls back. Behind others of its
    caller there is none but the home of a run whose prefix that keeps."""
    if is_behind_others(draft, turn):
        keeper = draft.replicas.get(home) if resident and home is not None else None
        if keeper is None or keeper.kv_tokens is None:
            return ()
        return (keeper.name,) if keeper.name in members_for(draft, turn) else ()
    members = members_for(draft, turn)
    if home not in members or turn.request.fallbacks:
        return members
    return (home, *(name for name in members if name != home))


def fits(draft: Draft, replica: Replica, turn: Turn) -> bool:
    """Whether the held turn that goes next to `replica` fits its budget now; if not, the replica is dry."""
    need = need_of(draft, turn)
    opens = _opens(replica, need, likely_usd(replica, turn.request, need), draft.now)
    if opens <= draft.now:
        return True
    if opens == math.inf and _fits_nowhere(draft, turn, need):
        draft.hopeless.append(turn.request.turn_id)
        return False
    _dry(draft, replica, turn, opens)
    return False


def reserve(draft: Draft, budget: Budget, replica: Replica, turn: Turn) -> tuple[Budget, Reservation]:
    """`budget`, which is that of `replica`, with what the turn takes of it; it is not set yet."""
    need = need_of(draft, turn)
    return ledger.reserve(budget, need, likely_usd(replica, turn.request, need), draft.now)


def settled(draft: Draft, replica: Replica, turn: Turn, end: TurnEnded | TurnFailed | None) -> Budget | None:
    """The budget of `replica` after a turn that reserved of it, by the turn's `end` if one was told, to be looked at
    again; it is not set yet."""
    match end:
        case TurnEnded():
            budget = _ended(draft, replica, turn, end)
        case TurnFailed():
            budget = _failed(draft, replica, turn, end)
        case None:
            assert replica.budget is not None
            assert turn.reservation is not None
            budget = ledger.settle(replica.budget, turn.reservation, None, draft.now)
    return _wet(draft, replica, budget)


def told(draft: Draft, event: FirstTokenSeen) -> None:
    """What the head of a turn's answer told of its replica's limits."""
    turn = draft.turns.get(event.turn_id)
    if turn is None or turn.replica is None:
        return
    draft.turns = draft.turns.set(event.turn_id, with_first_token(turn, event.at, draft.now))
    if turn.reservation is not None and event.limits is not None:
        replica = draft.replicas[turn.replica]
        budget = _wet(draft, replica, _told(replica, turn, event.limits, draft.now))
        put_replica(draft, replace(replica, budget=budget, dry_for=None))
        draft.roomier.append(turn.replica)


def _ended(draft: Draft, replica: Replica, turn: Turn, event: TurnEnded) -> Budget:
    """Settles a turn whose reply is whole, and learns from it."""
    reservation = turn.reservation
    assert reservation is not None
    budget = _told(replica, turn, event.limits, draft.now)
    spent = None
    if event.prompt_tokens is not None and event.completion_tokens is not None:
        prompt, completion, request = event.prompt_tokens, event.completion_tokens, turn.request
        usd = usd_of(replica, request, prompt, completion, event.cached_tokens or 0)
        spent = Spent(prompt, completion, usd)
        assert draft.histories is not None
        draft.histories = prediction.learn(
            draft.histories,
            history_key(request),
            reservation.need,
            prompt_bytes=request.prompt_bytes,
            prompt_tokens=prompt,
            completion_tokens=completion,
        )
    settle_usd(draft, turn, reservation.usd if spent is None else spent.usd)
    return ledger.settle(ledger.well(budget, reservation), reservation, spent, draft.now)


def _failed(draft: Draft, replica: Replica, turn: Turn, event: TurnFailed) -> Budget:
    """Settles a turn without a whole reply: a 429 cost a request and no tokens, what never arrived nothing, else the
    prediction stands."""
    reservation = turn.reservation
    assert reservation is not None
    status = event.status
    was_taken = status is None or status >= SERVER_ERROR
    if was_taken:
        settle_usd(draft, turn, reservation.usd)
    spent = None if was_taken else Spent(0, 0)
    budget = _told(replica, turn, event.limits, draft.now)
    budget = ledger.settle(budget, reservation, spent, draft.now, was_taken=was_taken)
    limits = event.limits or LimitsTold()
    refused = status in (TOO_MANY_REQUESTS, TOO_LARGE)
    for_size = ledger.too_large(budget, reservation, limits, draft.now) if refused else None
    if for_size is not None:
        budget = for_size
    elif status == TOO_MANY_REQUESTS:
        budget = ledger.refused_429(budget, reservation, limits, draft.now)
    elif status == UNREACHABLE or (status is not None and status >= SERVER_ERROR):
        budget = ledger.failed(budget, reservation, draft.now)
    return budget


def rest(draft: Draft, name: ReplicaName, limits: LimitsTold | None) -> None:
    """Leaves a replica alone that answered 429 to a turn with nothing reserved, as none has where there is no budget.

    Turns that were in flight together are refused together: the first of them tells all."""
    replica = draft.replicas[name]
    if replica.budget is None:
        put_replica(draft, replace(replica, budget=ledger.resting(limits or LimitsTold(), draft.now)))
        draft.histories = draft.histories or Histories()


def reopen(draft: Draft) -> None:
    """Lets held turns try the replicas whose time has come."""
    for name in sorted(name for name, due in draft.dry.items() if due <= draft.now):
        replica = draft.replicas[name]
        put_replica(draft, replace(replica, budget=_wet(draft, replica, replica.budget), dry_for=None))
        draft.roomier.append(name)


def taken_over(draft: Draft, turn: Turn, replica: Replica) -> tuple[Replica, Turn]:
    """A turn in flight that a resync told of, with what it takes of its replica's budget; neither is set yet."""
    if replica.budget is None:
        return replica, turn
    turn = take_usd(draft, turn)
    budget, reservation = reserve(draft, replica.budget, replica, turn)
    return replace(replica, budget=budget), replace(turn, reservation=reservation)


def resynced(draft: Draft, known: tuple[KnownLimits, ...], unused_s: dict[ReplicaName, float]) -> None:
    """Windows after a scheduler before this one, which alone knew them: what answers last told a dataplane; of those
    that no answer tells of, at most what came in since their last turn, `unused_s` ago."""
    for each in known:
        replica = draft.replicas.get(each.replica)
        if replica is not None and replica.budget is not None and not replica.last_sequence:
            budget = ledger.told_before(replica.budget, each.limits, each.age_s, draft.now)
            put_replica(draft, replace(replica, budget=budget))
    for name, seconds in sorted(unused_s.items()):
        replica = draft.replicas.get(name)
        if replica is not None and replica.budget is not None and not replica.last_sequence:
            put_replica(draft, replace(replica, budget=ledger.emptied(replica.budget, seconds, draft.now)))


def described(draft: Draft, turn: Turn) -> Turn:
    """A turn that arrives, with what it is predicted to take."""
    return replace(turn, need=need_of(draft, turn))


def gives_up_at(draft: Draft, request: Request, held_s: float) -> float | None:
    """When a turn that arrives now is refused rather than held any longer; None: never."""
    if request.wait_s_max is None and request.deadline_s is None:
        return None
    limits = [limit for limit in (request.wait_s_max, request.deadline_s) if limit is not None]
    return draft.now - held_s + min(limits)


def refuses(draft: Draft, turn: Turn, run: Run | None) -> bool:
    """Refuses a turn that arrives and can never be placed, or not as soon as its client wants; True if it did."""
    request = turn.request
    need = need_of(draft, turn)
    if _fits_nowhere(draft, turn, need):
        refuse_for_size(draft, turn)
        return True
    if request.budget_usd is not None and not can_afford(draft, turn):
        _refuse(
            draft, turn, Reason.OVER_BUDGET, "the run's x-luftpause-budget-usd does not cover the turn's likely price"
        )
        return True
    if request.fallbacks and choose(draft, turn, run, resident=False) is None:
        _refuse(draft, turn, Reason.NO_FALLBACK, "no replica to fall back to has room")
        return True
    if turn.gives_up_at is None or not draft.is_open:
        return False
    soonest = _soonest(draft, turn, need)
    if soonest is not None and draft.now + soonest[0] > turn.gives_up_at:
        _refuse_for_time(draft, turn, soonest)
        return True
    run_of = run_key(turn)
    if run_of is not None:
        draft.line = without_place(draft.line, run_of)
    return False


def refuse_for_size(draft: Draft, turn: Turn) -> None:
    """Refuses a turn that is in no lane, and too large for every replica of its model."""
    need = need_of(draft, turn)
    text = f"at least {need.prompt_least:.0f} prompt tokens"
    if need.max_tokens is not None:
        text += f" and max_tokens of {need.max_tokens}"
    _refuse(draft, turn, Reason.NEVER_FITS, f"{text}: more than the window of any replica of its model holds")


def refuse_late(draft: Draft, turn: Turn) -> None:
    """Refuses a turn that is held by no lane, since its client waits no longer."""
    soonest = None if draft.histories is None else _soonest(draft, turn, need_of(draft, turn))
    _refuse_for_time(draft, turn, soonest)


def _refuse_for_time(draft: Draft, turn: Turn, soonest: tuple[float, ReplicaName] | None) -> None:
    """Refuses a turn for which its client waits no longer; `soonest`: in how many seconds it would be placed, and
    where. Its run gets that place in line, if the client names it: else nobody would know it again."""
    wait_s = None if soonest is None else soonest[0]
    request, waited_s = turn.request, draft.now - turn.arrived_at
    by_deadline = request.deadline_s is not None and (
        request.wait_s_max is None or request.deadline_s <= request.wait_s_max
    )
    waited = f"it waited {waited_s:.1f} s for a place" if waited_s >= WAITED_S_MIN else "no place is free"
    if wait_s is None:
        text = f"{waited}{', until its deadline' if by_deadline else ''}; when one will be is not known"
    else:
        text = f"{waited}; it would get one in about {wait_s:.1f} s, "
        text += "and its deadline is before that" if by_deadline else "later than its client waits"
    if by_deadline:
        _refuse(draft, turn, Reason.DEADLINE, text)
        return
    again_s = max(AGAIN_S_MIN, min(waited_s, AGAIN_S_MAX)) if wait_s is None else wait_s
    if soonest is not None and request.run_id is not None:
        place = soonest[1], request.run_class
        draft.line = with_place(draft.line, (request.run_id, request.caller), place, draft.now + again_s, draft.now)
    draft.effects.append(RefuseTurn(turn.dataplane, request.turn_id, Reason.NOT_SOON, text, again_s))


def _soonest(draft: Draft, turn: Turn, need: Need) -> tuple[float, ReplicaName] | None:
    """In how many seconds rate limits let the turn go, behind what is held before it and those that were told to come
    again before it, and where; None: now, or it waits for the end of other turns, and when that comes is not known."""
    run_class = turn.request.run_class
    due = due_of(draft.line, run_key(turn), draft.now)
    usual = usual_need(draft, turn, need) if any(draft.held[: run_class + 1]) or draft.line.ends else need
    soonest: tuple[float, ReplicaName] | None = None
    for replica in (draft.replicas[name] for name in members_for(draft, turn)):
        if not replica.healthy:
            continue
        if replica.budget is None:
            return None
        usd = likely_usd(replica, turn.request, need)
        window = scarcest(replica.budget, usual, usd, draft.now)
        ahead = _held_for(draft, replica, run_class) if any(draft.held[: run_class + 1]) else 0.0
        wait_s = _opens(replica, need, usd, draft.now) - draft.now + ahead * window.each_s
        end = draft.line.ends.get((replica.name, run_class), 0.0)
        before_s = (end + window.each_s if due is None else due) - draft.now
        if before_s > wait_s and window.share < PLENTY:
            wait_s = before_s
        if soonest is None or wait_s < soonest[0]:
            soonest = wait_s, replica.name
    return soonest if soonest is not None and 0 < soonest[0] < math.inf else None


def _held_for(draft: Draft, replica: Replica, run_class: RunClass) -> float:
    """Held turns that go to `replica` before a newcomer of the class, as far as it is one of several they may go to."""
    held = 0.0
    for model in replica.models or ():
        pool = draft.pools[replica.one_shot, model]
        for lane in pool.lanes[: run_class + 1]:
            held += sum(map(len, lane.queues.values())) / len(pool.members)
    return held


def _fits_nowhere(draft: Draft, turn: Turn, need: Need) -> bool:
    """Whether the turn is too large for every replica that it may go to."""
    members = members_for(draft, turn)
    for name in members:
        budget = draft.replicas[name].budget
        if budget is None or ledger.never_fits(budget, need, draft.now) is None:
            return False
    return bool(members)


def _refuse(draft: Draft, turn: Turn, reason: Reason, text: str) -> None:
    draft.effects.append(RefuseTurn(turn.dataplane, turn.request.turn_id, reason, text))


def _told(replica: Replica, turn: Turn, limits: LimitsTold | None, now: float) -> Budget:
    """The budget of `replica` after what the answer to a turn told of it."""
    assert replica.budget is not None
    if limits is None or not limits.seen:
        return replica.budget
    return ledger.told(replica.budget, turn.reservation, limits, now)


def _opens(replica: Replica, need: Need, usd: float, now: float) -> float:
    """When the budget of `replica` fits the turn; a time that has come but for the error of a sum is `now`."""
    budget = replica.budget
    assert budget is not None
    opens = ledger.opens_at(budget, need, usd, now)
    return now if opens - now < ROUNDING_S else opens


def _dry(draft: Draft, replica: Replica, turn: Turn, opens: float) -> None:
    # A turn that never fits here waits for another replica.
    draft.dry = draft.dry.set(replica.name, opens if math.isfinite(opens) else draft.now + ledger.LATER_S)
    put_replica(draft, replace(replica, dry_for=turn.request.run_class))


def _wet(draft: Draft, replica: Replica, budget: Budget | None) -> Budget | None:
    """What `replica`, whose budget is now `budget`, has of it when it is dry for nobody any more: a budget that is past
    is none."""
    if budget is not None and budget.is_past:
        budget = None
        draft.regained.append(replica.name)
        if not any(other.budget for name, other in draft.replicas.items() if name != replica.name):
            draft.histories = None
    if replica.dry_for is not None:
        draft.dry = draft.dry.delete(replica.name)
    return budget

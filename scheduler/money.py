"""What a turn is likely to take, in tokens and money, and what its run may spend. Pure; works on a draft.

Money is reserved when a turn arrives, given back when it leaves, and settled once by what it did cost; see
`budgets.spend`. Read next: `limited`.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from common.ids import Caller, Model, ReplicaName, RunId, TurnId
from scheduler.budgets import prediction
from scheduler.budgets import spend as spending
from scheduler.budgets.forecast import ALONE, Forecast, forecast, likely
from scheduler.budgets.ledger import FREE
from scheduler.budgets.prediction import HistoryKey, Need
from scheduler.budgets.spend import RunKey, Spend
from scheduler.effects import RecordSpend
from scheduler.events import Request
from scheduler.pools import pool_members
from scheduler.sharing import sharing_of
from scheduler.state import Draft, Replica, State, Turn


def with_usd(draft: Draft, turn: Turn) -> Turn:
    """A turn that is not refused, with its likely price reserved if its run has a budget of money."""
    if turn.request.budget_usd is None:
        return turn
    run, spend = run_key(turn), spend_of(draft, turn)
    if spend is None or run is None:
        return turn
    usd = _likely_usd(draft, turn)
    spends = spending.reserve(draft.spends, run, spend, usd)
    assert spends is not None, "it was asked whether the run can afford the turn"
    draft.spends = spends
    return replace(turn, reserved_usd=usd)


def take_usd(draft: Draft, turn: Turn) -> Turn:
    """A turn that is in flight already, with its likely price reserved whether its run can afford it or not."""
    run, spend = run_key(turn), spend_of(draft, turn)
    if spend is None or run is None or spending.is_settled(draft.spends, turn.request.turn_id):
        return turn
    usd = _likely_usd(draft, turn)
    draft.spends = spending.take(draft.spends, run, spend, usd)
    return replace(turn, reserved_usd=usd)


def release_usd(draft: Draft, turn: Turn) -> None:
    """Gives back what a turn that leaves had reserved of its run's money."""
    run = run_key(turn)
    assert run is not None
    assert turn.reserved_usd is not None
    draft.spends = spending.release(draft.spends, run, turn.reserved_usd)


def forecast_of(state: State, run_id: RunId, caller: Caller, steps: int, now: float) -> Forecast | None:
    """What the next `steps` of a run take; None where nothing is known of it, or it is another caller's."""
    run = state.runs.get(run_id)
    if run is None or run.caller != caller or run.context is None or state.histories is None:
        return None
    context = run.context
    home = state.replicas.get(run.home) if run.home is not None else None
    prices = home.prices if home is not None else None
    price = FREE if prices is None else prices.get(Model(context.model), FREE)
    key = (context.model, caller, "")
    budget = home.budget if home is not None else None
    usual = likely(context.prompt_tokens, prediction.mean_and_deviation(state.histories, key)[0])
    sharing = ALONE if home is None else sharing_of(state, home, run, usual)
    return forecast(state.histories, key, context, steps, budget=budget, price=price, now=now, sharing=sharing)


def take_in(draft: Draft, run_id: RunId, request: Request, held_s: float) -> Request:
    """A turn of a run that arrives, with the budget and the deadline that its run named before if it names none; what
    it names itself holds for the run from now on, if the client names the run."""
    run, limit, deadline_s = (run_id, request.caller), request.budget_usd, request.deadline_s
    arrived_at = draft.now - held_s
    if request.run_id is not None and (limit is not None or deadline_s is not None):
        deadline = None if deadline_s is None else arrived_at + deadline_s
        spends = spending.named(draft.spends, run, limit, deadline)
        if spends is not draft.spends:
            draft.spends = spends
            _record(draft, run)
    spend = spending.find(draft.spends, run)
    if spend is None or not spend.is_limited:
        return request
    if limit is None and spend.limit < math.inf:
        limit = spend.limit
    if deadline_s is None and spend.deadline < math.inf:
        deadline_s = spend.deadline - arrived_at
    return replace(request, budget_usd=limit, deadline_s=deadline_s)


def run_ended(draft: Draft, run: RunKey) -> None:
    """The deadline of a run that has ended is nobody's any more."""
    spend = spending.find(draft.spends, run)
    if spend is not None and spend.deadline < math.inf:
        draft.spends = spending.without_deadline(draft.spends, run)
        _record(draft, run)


def settle_usd(draft: Draft, turn: Turn, usd: float) -> None:
    """Adds what a turn did cost to what its run has spent, once. Of runs that nobody named a budget for, those count
    that the client names: they may name one later."""
    if turn.reserved_usd is None and (usd == 0.0 or turn.request.run_id is None):
        return
    turn_id, run = turn.request.turn_id, run_key(turn)
    if run is None or spending.is_settled(draft.spends, turn_id):
        return
    draft.spends = spending.settle(draft.spends, run, turn_id, usd)
    _record(draft, run, turn_id)


def _record(draft: Draft, run: RunKey, turn_id: TurnId | None = None) -> None:
    spend = spending.find(draft.spends, run)
    assert spend is not None
    draft.effects.append(RecordSpend(turn_id, run, spend))


def can_afford(draft: Draft, turn: Turn) -> bool:
    """Whether its run's money covers the turn's likely price."""
    run, spend = run_key(turn), spend_of(draft, turn)
    if spend is None or run is None:
        return True
    return spending.reserve(draft.spends, run, spend, _likely_usd(draft, turn)) is not None


def spend_of(draft: Draft, turn: Turn) -> Spend | None:
    """The money of the turn's run; None where it has no budget."""
    limit, run = turn.request.budget_usd, run_key(turn)
    if run is None:
        return None
    spend = spending.find(draft.spends, run)
    if limit is None:
        return spend if spend is not None and spend.limit < math.inf else None
    return replace(spend or Spend(), limit=limit)


def _likely_usd(draft: Draft, turn: Turn) -> float:
    """The turn's likely price where it is dearest."""
    need = need_of(draft, turn)
    members = members_for(draft, turn)
    return max((likely_usd(draft.replicas[name], turn.request, need) for name in members), default=0.0)


def run_key(turn: Turn) -> RunKey | None:
    """Whose run the turn belongs to; None: it is a one-shot turn, which belongs to none."""
    return None if turn.run_id is None else (turn.run_id, turn.request.caller)


def members_for(draft: Draft, turn: Turn) -> tuple[ReplicaName, ...]:
    """The replicas that the turn may go to, in order where it falls back."""
    members = pool_members(draft, turn)
    fallbacks = turn.request.fallbacks
    return tuple(name for name in fallbacks if name in members) if fallbacks else members


def history_key(request: Request) -> HistoryKey:
    """Which history the turn belongs to."""
    return request.model, request.caller, request.tool


def need_of(draft: Draft, turn: Turn) -> Need:
    """What the turn is predicted to take, by what was known when it arrived."""
    if turn.need is not None:
        return turn.need
    assert draft.histories is not None
    request = turn.request
    return prediction.predict(draft.histories, history_key(request), request.prompt_bytes, request.max_tokens)


def usual_need(draft: Draft, turn: Turn, need: Need) -> Need:
    """What turns like this one take on the whole, where `need` is what it may take."""
    assert draft.histories is not None
    completion, _ = prediction.mean_and_deviation(draft.histories, history_key(turn.request))
    return likely(need.prompt, min(completion, need.completion))


def usd_of(replica: Replica, request: Request, prompt: float, completion: float, cached: float = 0.0) -> float:
    """US dollars that a turn of so many tokens costs at `replica`."""
    prices = replica.prices
    return 0.0 if prices is None else prices.get(request.model, FREE).of(prompt, completion, cached)


def likely_usd(replica: Replica, request: Request, need: Need) -> float:
    """US dollars that a turn is likely to cost at `replica`."""
    return 0.0 if replica.prices is None else usd_of(replica, request, need.prompt, need.completion)

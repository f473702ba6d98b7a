"""The scheduler as one would write it without a care for speed: plain lists, every rule a scan. What `decide` is
compared with."""

from __future__ import annotations

from math import ceil

from scheduler import admission, ways
from scheduler.economy import TurnSeen, with_pause, with_turn
from scheduler.effects import Effect, LogExpiry, PlaceTurn, Reason, RefuseTurn
from scheduler.events import (
    Event,
    ReplicaProbed,
    RunClass,
    RunEnded,
    StreamLost,
    Ticked,
    TurnAbandoned,
    TurnArrived,
    TurnEnded,
    TurnFailed,
    TurnsRenewed,
    TurnStarted,
)
from scheduler.events import FirstTokenSeen as FirstToken
from scheduler.habits import USUAL, returned, stayed_away
from tests.scheduler.model_known import Known
from tests.scheduler.model_records import Replica, Run, Turn


class Model(Known):
    """`apply(event)` returns the effects."""

    def apply(self, event: Event) -> tuple[Effect, ...]:  # noqa: PLR0912 - a line a kind
        before = self.now
        self.now, self.effects = max(self.now, event.at), []
        match event:
            case TurnArrived():
                self.arrive(event)
            case TurnStarted() | FirstToken() | TurnsRenewed():
                for turn_id in event.turn_ids if isinstance(event, TurnsRenewed) else (event.turn_id,):
                    if turn_id in self.turns and self.now - self.turns[turn_id].renewed_at >= 10:
                        self.turns[turn_id].renewed_at = self.now
                    if turn_id in self.turns and isinstance(event, FirstToken) and self.turns[turn_id].replica:
                        self.turns[turn_id].renewed_at = self.now
                        self.turns[turn_id].first_at = max(event.at, self.turns[turn_id].placed_at)
            case TurnEnded():
                turn = self.flying(event.turn_id)
                if turn:
                    for call in event.tool_call_ids if turn.run else ():
                        assert turn.run
                        key = (turn.run.caller, call)
                        same = self.calls.get(key, (turn.run.run_id, 0))[0] == turn.run.run_id
                        self.calls[key] = (turn.run.run_id if same else None, int(self.now // 60))
                    self.measure(turn, event)
                    self.leave(turn, event.has_tool_calls, 1)
            case TurnFailed():
                turn = self.flying(event.turn_id)
                if turn:
                    self.leave(turn, False, 0)
            case TurnAbandoned():
                known = self.turns.get(event.turn_id)
                mine = known and known.dataplane == event.dataplane
                if known and mine and event.caller in (None, known.request.caller):
                    self.leave(known, False, 0) if known.replica else self.unhold(known, False)
            case RunEnded():
                run = self.runs.get(event.run_id)
                if run and run.caller == event.caller:
                    run.ended = True
                    if not self.of(run, True) and not self.of(run, False):
                        self.gone(run)
                    self.forget_if_over(run)
            case ReplicaProbed():
                self.probe(event)
            case StreamLost():
                for turn_id in sorted(self.turns):
                    lost = self.turns.get(turn_id)
                    if lost and lost.dataplane == event.dataplane and not lost.replica:
                        self.unhold(lost, True)
                self.orphaned[event.dataplane] = self.now + 15
            case Ticked():
                self.tick()
                if self.now // 60 != before // 60:
                    self.calls = {k: v for k, v in self.calls.items() if v[1] >= (self.now - 1800) // 60}
        self.spread()
        return tuple(self.effects)

    def tied(self, run: Run) -> bool:
        return run.paused or bool(self.of(run, True))

    def pinned(self, t: Turn) -> Replica | None:
        if not t.run or not t.run.home or not self.tied(t.run):
            return None
        home = self.replicas[t.run.home]
        return home if not home.ill and self.may_serve(home, t) else None

    def untie(self, run: Run | None) -> None:
        if run and run.home and self.replicas[run.home].ill:
            run.home, run.expected = None, None

    def arrive(self, event: TurnArrived) -> None:
        request = event.request
        known = self.turns.get(request.turn_id)
        if known:
            if (known.dataplane, known.request.caller) != (event.dataplane, request.caller):
                text = f"turn '{request.turn_id}' belongs to another caller or dataplane"
                self.effects.append(RefuseTurn(event.dataplane, request.turn_id, Reason.RUN_OF_OTHER_CALLER, text))
            elif known.replica:
                self.tell(known)
            return
        run = None
        if not request.one_shot:
            found = [self.calls.get((request.caller, c), (None, 0))[0] for c in request.tool_call_ids]
            run_id = request.run_id or next((r for r in found if r), request.new_run_id)
            run = self.runs.get(run_id) or Run(run_id, request.caller, request.run_class)
            if run.caller != request.caller:
                text = f"run '{run_id}' belongs to another caller"
                self.effects.append(RefuseTurn(event.dataplane, request.turn_id, Reason.RUN_OF_OTHER_CALLER, text))
                return
        self.arrivals += 1
        going_on = bool(run and (run.paused or self.of(run, True)))
        key = (not going_on, -run.done if run else 0, self.now - event.held_s, self.arrivals)
        turn = Turn(request, event.dataplane, run, key, self.now - event.held_s)
        if self.refuses(turn):
            return
        if run:
            self.runs[run.run_id] = run
            if run.done and not self.of(run, True) and not self.of(run, False):
                self.came_back(run)
            run.cls, run.active_at, run.ended = request.run_class, self.now, False
        self.untie(run)
        stays = run is not None and self.stays(run)
        where = self.choose(turn, stays)
        self.turns[request.turn_id] = turn
        if where:
            self.place(turn, where)

    def refuses(self, t: Turn) -> bool:
        if any(self.may_serve(r, t) for r in self.replicas.values()):
            return False
        kind, reason = "one-shot" if t.request.one_shot else "generative", Reason.UNKNOWN_MODEL
        text = f"no {kind} replica serves model '{t.request.model}'"
        alike = [r for r in self.replicas.values() if r.one_shot == t.request.one_shot]
        silent = ", ".join(sorted(r.name for r in alike if r.models is None))
        if silent and all(r.models is None for r in alike):
            reason, text = Reason.MODELS_UNKNOWN, f"no {kind} replica has told its models yet: {silent}"
        elif silent:
            text += f"; these never told their models: {silent}"
        self.effects.append(RefuseTurn(t.dataplane, t.request.turn_id, reason, text))
        return True

    def refuse_unserved(self) -> None:
        for t in sorted((t for t in self.turns.values() if not t.replica), key=lambda t: t.key):
            if self.refuses(t):
                self.unhold(t, False)

    def choose(self, t: Turn, stays: bool) -> Replica | None:
        if not self.is_open:
            return None
        cls, pinned = t.request.run_class, self.pinned(t)
        if pinned:
            return pinned if self.room(pinned, cls, t.request.caller, stays) else None
        roomy = [r for r in self.replicas.values() if self.serves(r, t) and self.room(r, cls, t.request.caller)]
        home = self.replicas[t.run.home] if t.run and t.run.home else None
        if home and self.serves(home, t) and self.room(home, cls, t.request.caller, stays):
            return home
        return min(roomy, key=self.load, default=None)

    def place(self, t: Turn, r: Replica) -> None:
        self.sequence += 1
        tied = t.run and t.run.home and self.tied(t.run) and not self.replicas[t.run.home].ill
        t.replica, t.sequence, t.renewed_at, t.held_s = r.name, self.sequence, self.now, self.now - t.arrived_at
        r.last, t.placed_at = self.sequence, self.now
        r.since_batch = 0 if t.request.run_class is RunClass.BATCH else r.since_batch + 1
        if t.run:
            t.run.tokens = t.tokens = t.run.tokens if t.run.measured else r.usual_tokens
            t.run.home = t.run.home if tied else r.name
            t.run.paused, t.run.expected, t.run.active_at = False, None, self.now
        self.tell(t)

    def tell(self, t: Turn) -> None:
        assert t.replica
        run_id = t.run.run_id if t.run else None
        self.effects.append(PlaceTurn(t.dataplane, t.request.turn_id, run_id, t.replica, t.sequence, t.held_s))

    def next_for(self, r: Replica) -> Turn | None:
        def fits(t: Turn) -> bool:
            home = self.pinned(t)
            return (home is r if home else self.serves(r, t)) and self.room(r, t.request.run_class, t.request.caller)

        def order(t: Turn) -> tuple[object, ...]:
            running = sum(o.replica is not None and o.request.caller == t.request.caller for o in self.turns.values())
            rank = t.request.run_class is not RunClass.BATCH if self.owes(r) else t.request.run_class
            return rank, running, t.key

        return min((t for t in self.turns.values() if not t.replica and fits(t)), key=order, default=None)

    def spread(self) -> None:
        while self.is_open:
            for r in sorted(self.replicas.values(), key=self.load):
                turn = self.next_for(r)
                if turn:
                    self.place(turn, r)
                    break
            else:
                return

    def leave(self, t: Turn, paused: bool, done: int) -> None:
        del self.turns[t.request.turn_id]
        assert t.replica
        if t.run:
            run = t.run
            run.paused, run.paused_at, run.active_at, run.done = paused, self.now, self.now, run.done + done
            expects = self.habits.get(run.caller, USUAL).expects(run.done, paused=paused)
            known = run.home is not None
            run.expected = run.cls if done and known and expects and not run.ended and not self.of(run, True) else None
            run.due = self.now + self.habits.get(run.caller, USUAL).patience_s
            for _ in self.of(run, False):
                self.untie(run)
            self.forget_if_over(run)

    def measure(self, t: Turn, event: TurnEnded) -> None:
        run, prompt = t.run, event.prompt_tokens
        if not run or prompt is None:
            return
        fresh = max(0, prompt - (run.tokens if run.measured and run.done else 0))
        run.tokens, run.measured = prompt + (event.completion_tokens or 0), True
        first_s, decode_s = t.first_at - t.placed_at, max(0.0, event.at - t.first_at)
        if not t.first_at or decode_s < 0.02 * first_s:
            return
        assert t.replica
        r, cached = self.replicas[t.replica], event.cached_tokens
        flying = sum(o.replica == r.name for o in self.turns.values())
        found = prompt - fresh if cached is None else cached
        seen = TurnSeen(self.now, prompt, event.completion_tokens or 0, found, fresh, first_s, decode_s, flying)
        r.economy = with_turn(r.economy, seen)
        is_interactive = t.request.run_class is RunClass.INTERACTIVE
        r.trial = ways.with_turn(r.trial, self.now, self.now - t.placed_at, is_interactive=is_interactive)

    def came_back(self, run: Run) -> None:
        pause_s = self.now - run.paused_at
        if pause_s > 60:
            return
        habit = self.habits.get(run.caller, USUAL)
        self.habits[run.caller] = returned(habit, run.done, pause_s, paused=run.paused)
        if run.home:
            r = self.replicas[run.home]
            r.economy = with_pause(r.economy, pause_s)

    def gone(self, run: Run) -> None:
        if run.expected is not None:
            habit = self.habits.get(run.caller, USUAL)
            self.habits[run.caller] = stayed_away(habit, run.done, paused=run.paused)

    def expire(self, turn: Turn) -> None:
        assert turn.replica
        self.effects.append(LogExpiry(turn.request.turn_id, turn.replica))
        self.leave(turn, False, 0)

    def unhold(self, t: Turn, comes_again: bool) -> None:
        del self.turns[t.request.turn_id]
        if not t.run:
            return
        t.run.active_at = self.now
        if not comes_again and not self.of(t.run, True) and not self.of(t.run, False):
            t.run.paused, t.run.expected = False, None
        self.forget_if_over(t.run)

    def forget_if_over(self, run: Run) -> None:
        if run.ended and not self.of(run, True) and not self.of(run, False):
            run.expected = None
            del self.runs[run.run_id]

    def probe(self, event: ReplicaProbed) -> None:
        r = self.replicas[event.replica]
        before = r.kv
        was_ill, r.probed, r.healthy = r.ill, True, event.healthy
        flying = sum(t.replica == r.name for t in self.turns.values())
        r.kv = event.kv_tokens or r.kv
        r.kept = max(r.kept * 0.8, self.resident(r, RunClass.INTERACTIVE))
        running = event.running or 0
        if running > r.seats:
            r.seats, r.seats_taken = running if event.waiting else 0, 0
        elif not flying:
            r.seats = r.seats_taken = 0
        elif event.waiting and r.seats_taken < admission.SEATS_SEEN:
            r.seats_taken = r.seats_taken + 1 if running == r.seats else 0
        seated = r.seats_taken >= admission.SEATS_SEEN
        full = before is None or event.kv_usage is None or event.kv_usage >= 0.8 or seated
        waited, r.waiting = r.waiting, event.waiting
        if event.healthy and event.waiting is not None and not full:
            r.limit = running + event.waiting if event.waiting and waited else None
        elif event.healthy and event.waiting:
            r.limit = max(1, running)
        elif event.healthy and (event.waiting is None or r.limit is None or not flying):
            r.limit = None
        elif event.healthy and r.limit is not None and flying >= r.limit:
            r.limit += max(1, r.limit // 4)
        if r.kv is not None:
            self.choose_way(r)
        r.parts = self.part(r)
        if r.ill and not was_ill:
            for t in self.turns.values():
                if not t.replica and t.run and t.run.home == r.name and self.serves(r, t) and self.tied(t.run):
                    self.untie(t.run)

        if event.models is not None and event.models != r.models:
            r.models = event.models
            self.refuse_unserved()

    def choose_way(self, r: Replica) -> None:
        known = self.givens.get((r.models, r.kv), ways.NOTHING_GIVEN)
        full = r.healthy and not self.room(r, RunClass.BATCH, None)
        r.trial, known = ways.looked_at(r.trial, known, r.way, r.economy, self.now, is_full=full)
        self.givens[r.models, r.kv] = known
        following = ways.next_way(known, r.economy, r.kv or 0, r.kept, r.way, at=self.now)
        if following is not r.way:
            r.way, r.trial = following, ways.NEW_TRIAL

    def go_home(self) -> None:
        for t in sorted(self.turns.values(), key=lambda t: (t.request.run_class, t.key)):
            home = self.replicas[t.run.home] if t.run and t.run.home else None
            free = not t.replica and not self.pinned(t)
            if free and home and self.serves(home, t) and self.room(home, t.request.run_class, t.request.caller):
                self.place(t, home)

    def begin(self) -> None:
        if not self.is_open and self.now >= self.opens_at:
            self.is_open = True
            self.go_home()
        if not self.models_late and self.now >= self.opens_at + 58:
            self.models_late = True
            self.refuse_unserved()

    def tick(self) -> None:
        self.begin()
        for run_id in sorted(self.runs):
            run = self.runs[run_id]
            if run.expected is not None and run.due is not None and ceil(run.due) <= self.now:
                self.gone(run)
                run.expected = None
        for run_id in sorted(self.runs):
            run = self.runs[run_id]
            for turn in sorted(self.of(run, True), key=lambda t: t.sequence):
                if ceil(turn.renewed_at + 600) <= self.now:
                    self.expire(turn)
            quiet = not self.of(run, True) and not self.of(run, False)
            if quiet and ceil(run.active_at + 1800) <= self.now and run_id in self.runs:
                del self.runs[run_id]
        for turn in sorted(self.turns.values(), key=lambda t: t.request.turn_id):
            if not turn.run and turn.replica and ceil(turn.renewed_at + 600) <= self.now:
                self.expire(turn)
        for name in sorted(name for name, due in self.orphaned.items() if due <= self.now):
            del self.orphaned[name]
            for turn_id in sorted(self.turns):
                orphan = self.flying(turn_id)
                if orphan and orphan.dataplane == name:
                    self.expire(orphan)

"""One run of an agent that keeps its own loop: whether its next turn fits, what it has spent, where it was.

Must not know any client or framework (`adapters` do). What is decided is in `outlook` and `prediction`, what is
written in `checkpoint` and `files`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar, overload

from luftpause_client import outlook as outlooks
from luftpause_client.checkpoint import ANSWERS_MAX, Answer, Checkpoint, answer_to, copied, digest
from luftpause_client.errors import NotNowError, RunCompletedError
from luftpause_client.files import CheckpointFile
from luftpause_client.luftpause import Luftpause
from luftpause_client.outlook import WAIT_S_MAX, Action, Need, Outlook
from luftpause_client.prediction import Cost, Likely, bytes_of, predict, remembered
from luftpause_client.refusals import refused_for_s
from luftpause_client.windows import Reading, windows_of

R = TypeVar("R")
Turn: TypeAlias = Callable[[list[Any]], tuple[R, int]]
"""Asks the model: messages -> (reply, tokens used, prompt and completion)."""
Telemetry: TypeAlias = Callable[[], Reading] | Luftpause
"""What is left of the rate limit now, or luftpause, which knows by itself."""

CAUTION_STEP = 1.5
CAUTION_MAX = 4.0
CAUTION_DECAY = 0.9
"""A turn that fitted and was refused all the same widens the spread; each turn that goes well narrows it again."""


class Reservation:
    """Room for one turn, while its block runs."""

    def __init__(self, prompt_bytes: int, likely: Likely, tokens: float) -> None:
        self.tokens = tokens
        """What is reserved."""
        self._prompt_bytes = prompt_bytes
        self._used = round(likely.tokens)
        self._answer: Answer | None = None

    def settle(self, tokens_used: int) -> None:
        """What the turn took, prompt and completion. Without it, what was likely counts."""
        if isinstance(tokens_used, bool) or not isinstance(tokens_used, int) or tokens_used < 0:
            raise TypeError(f"tokens_used: expected a whole number of at least 0, got {tokens_used!r}")
        self._used = tokens_used

    def keep(self, answer: Answer | None) -> None:
        """The turn's reply, for a run that is killed before its next checkpoint."""
        self._answer = answer

    @property
    def cost(self) -> Cost:
        """What counts as spent when the block ends."""
        return Cost(self._prompt_bytes, self._used)

    @property
    def answer(self) -> Answer | None:
        """What is kept when the block ends."""
        return self._answer


class Session(Generic[R]):
    """See `session`. Its methods may be called from several threads."""

    def __init__(
        self,
        file: CheckpointFile,
        turn: Turn[R] | None,
        telemetry: Telemetry | None,
        *,
        budget_tokens: int | None,
        wait_s_max: float,
        saved: Checkpoint,
    ) -> None:
        self._file = file
        self._turn = turn
        self._telemetry = telemetry
        self._budget_tokens = budget_tokens
        self._wait_s_max = wait_s_max
        self._saved = saved
        # Reentrant: telemetry may look at the session that asks it.
        self._lock = threading.RLock()
        self._reserved: list[Reservation] = []
        self._caution = 1.0
        self._unused = dict(saved.answers)
        self.run_id = saved.run_id
        restored = copied(saved)
        self.state: dict[str, Any] = restored.state
        """The agent's own, kept by `checkpoint`: whatever JSON can hold."""
        self.messages: list[Any] = restored.messages
        """The conversation, kept by `checkpoint`; the agent appends to it."""

    @property
    def spent_tokens(self) -> int:
        """Tokens of all turns of the run, also of those before it was resumed."""
        return self._saved.spent_tokens

    @property
    def turns(self) -> int:
        """Turns that ended well, also before it was resumed."""
        return self._saved.turns

    @property
    def completed(self) -> bool:
        """Whether `complete` was called, now or before."""
        return self._saved.completed

    def outlook(self, messages: Sequence[Any] | None = None) -> Outlook:
        """What to do before a turn with `messages` (else the session's), and why. Asks the telemetry, and raises what
        it raises; LuftpauseError where luftpause refuses to tell."""
        with self._lock:
            return self._look(self._likely(bytes_of(self.messages if messages is None else messages)))

    def next_action(self) -> Action:
        """`continue`, `wait` or `checkpoint`; see `outlook`, which also tells how long and why."""
        return self.outlook().action

    def should_suspend(self) -> bool:
        """Whether the next turn will not fit soon: time to `checkpoint` and leave."""
        return self.next_action() is Action.CHECKPOINT

    def call(self, messages: Sequence[Any] | None = None) -> R:
        """One turn with `messages` (else the session's); its reply. What it took is on the disk when this returns, and
        so is the reply until the next checkpoint: a run that is opened again without one, and asks the same, gets it
        from there.

        NotNowError if it does not fit or a rate limit refuses it; any other error of the turn as it is. TypeError if
        the turn gives something else than a reply and its tokens. None of them keeps anything reserved.
        """
        if self._turn is None:
            raise TypeError("turn: the session was opened without one; use `reserved`")
        asked = list(self.messages if messages is None else messages)
        asked_digest = digest(asked)
        with self._lock:
            self._must_be_open()
            known = self._unused.pop(asked_digest, None) if asked_digest is not None else None
        if known is not None:
            kept_reply: R = json.loads(known)
            return kept_reply
        with self.reserved(asked) as reservation:
            answer = self._turn(asked)
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise TypeError(f"turn: expected (reply, tokens_used), got {type(answer).__name__}")
            reply, tokens_used = answer
            reservation.settle(tokens_used)
            reservation.keep(answer_to(asked_digest, reply))
        return reply

    @contextlib.contextmanager
    def reserved(self, messages: Sequence[Any] | None = None) -> Iterator[Reservation]:
        """Room for a turn that the block makes itself, as `call` does; NotNowError instead if it does not fit, or if
        a rate limit refuses it."""
        reservation = self._reserve(bytes_of(self.messages if messages is None else messages))
        try:
            yield reservation
        except BaseException as error:
            with self._lock:
                self._reserved.remove(reservation)
                now = time.time()
                wait_s = refused_for_s(error, now)
                if wait_s is None:
                    raise
                self._caution = min(CAUTION_MAX, self._caution * CAUTION_STEP)
                self._saved = replace(self._saved, not_before_unix_s=now + wait_s)
                # Whoever leaves now and is started again at once must know of it too. A full disk is no reason to hide
                # the refusal.
                with contextlib.suppress(OSError):
                    self._save(self._saved)
                refused = outlooks.later(
                    wait_s, f"a rate limit refused the turn: {error}", reservation.tokens, self._wait_s_max
                )
            raise NotNowError(refused) from error
        with self._lock:
            self._reserved.remove(reservation)
            self._settle(reservation.cost, reservation.answer)

    def checkpoint(self) -> None:
        """Returns when `state` and `messages` are on the disk, whole. CheckpointError if JSON cannot hold them,
        RunCompletedError after `complete`, OSError as the disk has it; then the one before is still there."""
        with self._lock:
            self._must_be_open()
            self._save(replace(self._saved, state=self.state, messages=self.messages, answers=()))
            self._unused.clear()

    def complete(self) -> None:
        """A last checkpoint: the run is over, also for luftpause. Opened again, it is `completed`."""
        with self._lock:
            self._must_be_open()
            self._save(replace(self._saved, state=self.state, messages=self.messages, answers=(), completed=True))
        if isinstance(self._telemetry, Luftpause):
            self._telemetry.end(self.run_id)

    def close(self) -> None:
        """Lets others open the run. Saves nothing. May be called again."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reserve(self, prompt_bytes: int) -> Reservation:
        # Telemetry is read under the lock: two turns must not both go by what was left before either.
        with self._lock:
            self._must_be_open()
            likely = self._likely(prompt_bytes)
            found = self._look(likely)
            if found.action is not Action.CONTINUE:
                raise NotNowError(found)
            reservation = Reservation(prompt_bytes, likely, found.need_tokens)
            self._reserved.append(reservation)
            return reservation

    def _likely(self, prompt_bytes: int) -> Likely:
        return predict(self._saved.history, prompt_bytes)

    def _look(self, likely: Likely) -> Outlook:
        need = Need(likely.quantile(self._caution), sum(each.tokens for each in self._reserved), len(self._reserved))
        taken = self._saved.spent_tokens + need.reserved_tokens
        if self._budget_tokens is not None and taken + need.tokens > self._budget_tokens:
            problem = f"budget_tokens: {taken:.0f} of {self._budget_tokens} taken, the next turn takes up to"
            return Outlook(Action.CHECKPOINT, None, f"{problem} {need.tokens:.0f}", need.tokens)
        refused_s = self._saved.not_before_unix_s - time.time()
        if refused_s > 0:
            reason = f"a rate limit refused a turn, for {refused_s:.1f} s more"
            return outlooks.later(refused_s, reason, need.tokens, self._wait_s_max)
        if isinstance(self._telemetry, Luftpause):
            wait_s = self._telemetry.wait_s(self.run_id) or 0.0
            if wait_s > self._wait_s_max:
                reason = f"luftpause would hold the next turn for {wait_s:.1f} s"
                return outlooks.later(wait_s, reason, need.tokens, self._wait_s_max)
            return Outlook(Action.CONTINUE, 0.0, "luftpause holds the next turn until it fits", need.tokens)
        windows = () if self._telemetry is None else windows_of(self._telemetry())
        return outlooks.look(windows, need, self._wait_s_max)

    def _settle(self, cost: Cost, answer: Answer | None) -> None:
        self._caution = max(1.0, self._caution * CAUTION_DECAY)
        # What was spent is durable at once, with the state of the last checkpoint: a crash forgets no spend.
        answers = self._saved.answers if answer is None else (*self._saved.answers, answer)[-ANSWERS_MAX:]
        self._save(
            replace(
                self._saved,
                spent_tokens=self._saved.spent_tokens + cost.tokens,
                turns=self._saved.turns + 1,
                history=remembered(self._saved.history, cost),
                answers=answers,
            )
        )

    def _save(self, checkpoint: Checkpoint) -> None:
        self._file.save(checkpoint)
        self._saved = copied(checkpoint)

    def _must_be_open(self) -> None:
        if self._saved.completed:
            raise RunCompletedError(f"run {self.run_id!r} was completed")
        if self._file.closed:
            raise ValueError(f"run {self.run_id!r}: the session was closed")


@overload
def session(
    run_id: str,
    turn: None = None,
    *,
    telemetry: Telemetry | None = ...,
    folder: str | os.PathLike[str] = ...,
    budget_tokens: int | None = ...,
    wait_s_max: float = ...,
) -> Session[Any]: ...
@overload
def session(
    run_id: str,
    turn: Turn[R],
    *,
    telemetry: Telemetry | None = ...,
    folder: str | os.PathLike[str] = ...,
    budget_tokens: int | None = ...,
    wait_s_max: float = ...,
) -> Session[R]: ...
def session(
    run_id: str,
    turn: Turn[R] | None = None,
    *,
    telemetry: Telemetry | None = None,
    folder: str | os.PathLike[str] = "checkpoints",
    budget_tokens: int | None = None,
    wait_s_max: float = WAIT_S_MAX,
) -> Session[R]:
    """Opens run `run_id` where it was saved last, else at its beginning; close it, or use it in a `with` block.

    `turn` asks the model, `telemetry` tells what is left. `folder` has a file for each run. `budget_tokens` is what
    the run may take altogether; a wait of more than `wait_s_max` seconds is one to suspend for. ValueError and
    TypeError for wrong arguments, RunInUseError where the run is open, CheckpointError where its file is not whole.
    """
    for name, each in (("turn", turn), ("telemetry", telemetry)):
        if each is not None and not callable(each) and not isinstance(each, Luftpause):
            raise TypeError(f"{name}: expected something to call, got {each!r}")
    if budget_tokens is not None and (
        isinstance(budget_tokens, bool) or not isinstance(budget_tokens, int) or budget_tokens < 1
    ):
        raise ValueError(f"budget_tokens: expected a whole number of at least 1, got {budget_tokens!r}")
    if isinstance(wait_s_max, bool) or not isinstance(wait_s_max, int | float) or not wait_s_max >= 0:
        raise ValueError(f"wait_s_max: expected seconds, at least 0, got {wait_s_max!r}")
    file = CheckpointFile(pathlib.Path(folder), run_id)
    try:
        saved = file.load() or Checkpoint(run_id)
    except BaseException:
        file.close()
        raise
    return Session(file, turn, telemetry, budget_tokens=budget_tokens, wait_s_max=wait_s_max, saved=saved)

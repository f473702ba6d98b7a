"""What the tries of a tool call came to: whether there may be another, and what is told when there is none. Pure.

Must not know whether the tool's server is there, nor wait for it: that is `tool_waits`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from runtime import results
from runtime.tool_specs import Done, EffectKind, Outcome, Unknown

TRIES_MAX = 3
"""How often a call is made that surely did not start, or may be made twice: a call may be what ends its server."""


@dataclass(frozen=True, slots=True)
class Tries:
    """The tries of a call that none of them has settled."""

    effect: EffectKind
    in_doubt: bool
    """One of them may have had its effect."""
    number: int = 0

    def after(self, outcome: Outcome) -> Tries:
        """One try later."""
        in_doubt = self.in_doubt or isinstance(outcome, Unknown)
        return replace(self, in_doubt=in_doubt, number=self.number + 1)

    def may_follow(self, outcome: Outcome) -> bool:
        """Whether the call may be made again after its last try came to `outcome`: neither has it an answer, nor could
        its effect happen twice, nor could it run twice at once."""
        if isinstance(outcome, Done) or self.number >= TRIES_MAX:
            return False
        return not isinstance(outcome, Unknown) or not (outcome.is_late or self.effect is EffectKind.AT_MOST_ONCE)

    def told(self, last: Outcome) -> tuple[str, bool]:
        """What the model reads when nothing follows `last`, and whether the call failed: the worst of the tries."""
        if isinstance(last, Done):
            return results.cut(last.text), last.is_error
        doubt = ""
        if isinstance(last, Unknown) and last.is_late:
            doubt = "; the tool may still be running"
        elif self.in_doubt and self.effect is not EffectKind.READ_ONLY:
            doubt = "; it is unknown whether this tool call took effect"
        return f"Error: {last.reason}{doubt}", True

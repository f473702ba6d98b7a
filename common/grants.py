"""What a token allows whoever shows it: as which caller, in which classes. Pure. Read next: `tokens`, `auth`."""

from __future__ import annotations

from dataclasses import dataclass

from common.ids import Caller

CLASSES = ("interactive", "batch")
"""Names of the classes; where none is asked for, the first that is allowed is taken."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one token allows."""

    name: str
    """Names the token to people; no secret."""
    caller: Caller | None = None
    """The only caller that it speaks for; None: whoever it names."""
    classes: tuple[str, ...] = CLASSES
    """Classes that its turns may have, in the order of `CLASSES`."""

    @property
    def is_bound(self) -> bool:
        """Whether it allows less than everything. It then sees and touches nothing of the service as a whole, and, if
        it has a caller, nothing of other callers; without one it speaks for any caller, so it sees the runs of all."""
        return self.caller is not None or self.classes != CLASSES

    def caller_of(self, named: Caller) -> Caller:
        """The caller of a request that names `named` (empty: none). Raises ForbiddenError if it may not."""
        if self.caller is None:
            return named
        if named and named != self.caller:
            raise ForbiddenError(f"expected '{self.caller}' or nothing: the token is that caller's")
        return self.caller

    def class_of(self, named: str) -> str:
        """The class of a request that names `named` (empty: none). Raises ForbiddenError if it may not."""
        if not named:
            return self.classes[0]
        if named not in self.classes:
            raise ForbiddenError(f"expected {' or '.join(self.classes)}: the token allows no other")
        return named


class ForbiddenError(Exception):
    """The token is known, and does not allow this; the text says what was expected, without naming the field."""


ANYTHING = Grant("")
"""What everybody may where no token is asked for, and who shows `LUFTPAUSE_TOKEN`."""

"""Why the runtime does not do what a client asked for; the texts are for clients and name the argument. Pure.

RefusedError
  InvalidArgumentError   the argument is not what was expected
  UnknownRunError        no run has this handle
  WrongStateError        the run is not where it would have to be
  NotAllowedError        the token does not allow it
  NoAnswerError          no engine answered
"""

from __future__ import annotations


class RefusedError(Exception):
    """Nothing was done."""


class InvalidArgumentError(RefusedError):
    """An argument is not what was expected."""

    def __init__(self, argument: str, expected: str) -> None:
        super().__init__(f"{argument}: {expected}")
        self.argument = argument


class UnknownRunError(RefusedError):
    """No run has this handle."""

    def __init__(self, argument: str, handle: str) -> None:
        super().__init__(f"{argument}: there is no run '{handle[:128]}'")


class WrongStateError(RefusedError):
    """The run is not where it would have to be."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")


class NotAllowedError(RefusedError):
    """The token is bound to another caller, or to other classes."""

    def __init__(self, argument: str, expected: str) -> None:
        super().__init__(f"{argument}: {expected}")


class NoAnswerError(RefusedError):
    """A model was asked, and there is no answer; asking again may help."""

"""Why the runtime does not do what a client asked for; the texts are for clients and name the argument. Pure.

RefusedError
  ArgumentError
    InvalidArgumentError   the argument is not what was expected
    UnknownRunError        no run has this handle
    WrongStateError        the run is not where it would have to be
    NotAllowedError        the token does not allow it
  NoAnswerError            no engine answered
"""

from __future__ import annotations


class RefusedError(Exception):
    """Nothing was done."""


class ArgumentError(RefusedError):
    """Because of an argument, by its name as the MCP tools have it; `wire.field_of` knows its name in gRPC."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument
        self.problem = problem


class InvalidArgumentError(ArgumentError):
    """An argument is not what was expected."""


class UnknownRunError(ArgumentError):
    """No run has this handle."""

    def __init__(self, argument: str, handle: str) -> None:
        super().__init__(argument, f"there is no run '{handle[:128]}'")


class WrongStateError(ArgumentError):
    """The run is not where it would have to be."""


class NotAllowedError(ArgumentError):
    """The token is bound to another caller, or to other classes."""


class NoAnswerError(RefusedError):
    """A model was asked, and there is no answer; asking again may help."""

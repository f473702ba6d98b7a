"""What the engine refuses, in OpenAI's error shape. Pure."""

from __future__ import annotations


class ApiError(Exception):
    """A request is refused with `status`; `param` names the field at fault, where one is."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def bad_field(param: str, expected: str) -> ApiError:
    """400: the field `param` is not what was expected."""
    return ApiError(400, f"{param}: expected {expected}", param)

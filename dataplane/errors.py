"""What a client is told when its request fails, in OpenAI's error shape. Pure.

Every error answer of the dataplane is an `ApiError`; outcome to status is decided here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from protos import turn_pb2


@dataclass(frozen=True, slots=True)
class ApiError:
    """An answer that is not the engine's: HTTP status, and the three texts of its body."""

    status: int
    message: str
    code: str
    retry_after_s: float | None = None
    """When to try again, where that is known; sent as `Retry-After`, and exactly as `retry-after-ms`."""

    @property
    def kind(self) -> str:
        """OpenAI's `type`, by the status."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 403:
            return "permission_error"
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def retry_after(self) -> str:
        """The value of its `Retry-After`; empty: it has none."""
        return "" if self.retry_after_s is None else str(math.ceil(self.retry_after_s))

    def body(self) -> bytes:
        """The JSON body, UTF-8."""
        return msgspec.json.encode({"error": {"message": self.message, "type": self.kind, "code": self.code}})


def event(status: int, body: bytes, retry_after: str) -> bytes:
    """An answer that failed as the last event of a stream whose head is out: the error of its body, with the status,
    and with `retry_after` where that is not empty. `body`: ours or an engine's, whatever that has in it."""
    try:
        told = msgspec.json.decode(body)["error"]
        error = dict(told) if isinstance(told, dict) else {"message": str(told)}
    except (msgspec.DecodeError, LookupError, TypeError):
        error = {"message": body.decode("utf-8", "replace") or f"the engine answered {status}"}
    if status < 300:
        error = {"message": "the engine did not answer with a stream"}
        status = 502
    error |= {"status": status} | ({"retry_after": retry_after} if retry_after else {})
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode({"error": error})


def refused(refusal: turn_pb2.Refusal) -> ApiError:
    """The answer to a turn that the scheduler refused."""
    match refusal.reason:
        case turn_pb2.REFUSAL_REASON_UNKNOWN_MODEL:
            return ApiError(404, refusal.message, "model_not_found")
        case turn_pb2.REFUSAL_REASON_MODELS_UNKNOWN:
            return ApiError(503, refusal.message, "models_unknown")
        case turn_pb2.REFUSAL_REASON_RUN_OF_OTHER_CALLER:
            return ApiError(409, refusal.message, "run_of_other_caller")
        case turn_pb2.REFUSAL_REASON_NOT_SOON:
            return ApiError(429, refusal.message, "not_soon", refusal.retry_after_ms / 1000)
        case turn_pb2.REFUSAL_REASON_NEVER_FITS:
            return ApiError(400, refusal.message, "never_fits")
        case turn_pb2.REFUSAL_REASON_DEADLINE:
            return ApiError(504, refusal.message, "deadline_cannot_be_met")
        case turn_pb2.REFUSAL_REASON_OVER_BUDGET:
            return ApiError(402, refusal.message, "over_budget")
        case _:
            return ApiError(400, refusal.message or "the scheduler refused the turn", "invalid_turn")


def invalid(field: str, problem: str) -> ApiError:
    """400: `field` of the body, or a header, is not what was expected."""
    return ApiError(400, f"{field}: {problem}", "invalid_value")


def malformed(problem: str) -> ApiError:
    """400: not HTTP, or not as we accept it."""
    return ApiError(400, f"malformed HTTP request: {problem}", "malformed_request")


def unauthorized(message: str) -> ApiError:
    """401: the token is missing or wrong."""
    return ApiError(401, message, "invalid_token")


def forbidden(field: str, problem: str) -> ApiError:
    """403: the token is known, and does not allow what `field` asks for."""
    return ApiError(403, f"{field}: {problem}", "not_allowed")


def no_route(path: str) -> ApiError:
    """404: nothing is served at `path`."""
    served = (
        "POST /v1/chat/completions, POST /v1/decide, GET /v1/models, GET /v1/forecast, DELETE /v1/runs/{id}, "
        "GET /health, GET /metrics"
    )
    return ApiError(404, f"nothing is served at {path}; there are {served}", "unknown_path")


def no_replica(one_shot: bool) -> ApiError:
    """404: a decision names no model, and nobody could answer it."""
    if one_shot:
        problem = "model: no one-shot replica (a classifier) is in the pool; name labels to ask a generative one"
    else:
        problem = "model: no generative replica is in the pool"
    return ApiError(404, problem, "model_not_found")


def models_unknown(replicas: Iterable[str]) -> ApiError:
    """503: a decision names no model, and those that could answer it never told theirs."""
    return ApiError(503, f"model: these replicas never told their models: {', '.join(replicas)}", "models_unknown")


def run_of_other_caller(run_id: str) -> ApiError:
    """409: the run is not the caller's to end."""
    problem = f"run '{run_id}' belongs to another caller; send its x-luftpause-caller"
    return ApiError(409, problem, "run_of_other_caller")


def encoded_body() -> ApiError:
    """415: a compressed body cannot be read on its way."""
    return ApiError(415, "content-encoding: expected a body that is not compressed", "unsupported_encoding")


def wrong_method(method: str, path: str, allowed: str) -> ApiError:
    """405: `path` answers only to `allowed`."""
    return ApiError(405, f"{method} is not answered at {path}; use {allowed}", "method_not_allowed")


def too_slow(what: str, limit_s: float) -> ApiError:
    """408: the client did not send `what` in time."""
    return ApiError(408, f"the request's {what} did not arrive within {limit_s:g} s", "request_timeout")


def body_too_large(limit_bytes: int) -> ApiError:
    """413."""
    return ApiError(413, f"the body is larger than {limit_bytes} bytes", "body_too_large")


def too_many_chunks(limit: int) -> ApiError:
    """400: a body in tiny pieces."""
    return malformed(f"the body comes in more than {limit} chunks; send larger ones")


def head_too_large(limit_bytes: int) -> ApiError:
    """431."""
    return ApiError(431, f"request line and headers are larger than {limit_bytes} bytes", "headers_too_large")


def too_many_held(limit: int) -> ApiError:
    """429: the caller has enough turns waiting."""
    return ApiError(429, f"{limit} turns of this caller wait for admission already", "too_many_held_turns")


def too_much_held(limit_bytes: int) -> ApiError:
    """429: the caller has enough waiting."""
    text = f"turns of this caller with {limit_bytes} bytes or more wait for admission already"
    return ApiError(429, text, "too_many_held_turns")


def too_many_headers(limit: int) -> ApiError:
    """431."""
    return ApiError(431, f"there are more than {limit} headers", "headers_too_large")


def nothing_to_forecast(run_id: str, caller: str) -> ApiError:
    """404: no turn of the run has ended where it would tell."""
    whose = f"caller '{caller}'" if caller else "the anonymous caller"
    problem = (
        f"run '{run_id}': no turn of it by {whose} has ended at a replica with rate limits or prices; "
        "if the run is another caller's, send its x-luftpause-caller"
    )
    return ApiError(404, problem, "nothing_to_forecast")


def own_fault() -> ApiError:
    """500: a fault of the dataplane itself; its log tells more."""
    return ApiError(500, "the dataplane failed to answer", "internal_error")


def engine_failed(replica: str, problem: str) -> ApiError:
    """502: the engine could not be reached, or answered something that is not HTTP."""
    return ApiError(502, f"engine {replica}: {problem}", "engine_unreachable")


def engine_silent(replica: str, limit_s: float) -> ApiError:
    """504: the engine took the request and then sent nothing for too long."""
    return ApiError(504, f"engine {replica}: no byte for {limit_s:g} s", "engine_timeout")


def scheduler_absent() -> ApiError:
    """503: a question that only the scheduler can answer. Turns are held instead."""
    return ApiError(503, "the scheduler does not answer; try again", "scheduler_unavailable")

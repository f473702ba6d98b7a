"""Who is let in: tokens that clients and services show as `Authorization: Bearer …`, and what each allows.

Where no token is configured, nothing is asked of anyone; a service then says so once when it starts. Must not decide
what a grant means to a request: that is `grants`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc

from common.grants import ANYTHING, Grant

UNAUTHENTICATED = "missing or wrong token: send 'Authorization: Bearer <LUFTPAUSE_TOKEN>'"
NOT_BOUND = "expected a token that is bound to no caller and no class: this is not one caller's to see or to do"
_OPEN_METHODS = "/grpc.health.v1.Health/"
_SHARED_METHODS = "/grpc.reflection."

Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Guard:
    """The tokens that are let in. Looking one up takes as long whether it is right, nearly right or wrong."""

    def __init__(self, shared: str | None = None, others: Mapping[str, Grant] | None = None) -> None:
        """`shared` allows everything (`LUFTPAUSE_TOKEN`); `others` are secrets and what each allows."""
        # Tokens are compared by digests under a key that nobody knows, so how far two of them agree tells nothing.
        self._key = secrets.token_bytes(32)
        self._grants = {self._digest(secret.encode()): grant for secret, grant in (others or {}).items()}
        if shared:
            self._grants[self._digest(shared.encode())] = ANYTHING

    @property
    def is_open(self) -> bool:
        """Whether everybody is let in."""
        return not self._grants

    def admit(self, authorization: str | bytes | None, *, basic: bool = False) -> Grant | None:
        """What an `Authorization` header value allows; None: it is not let in. With `basic` the token may also be the
        password of any user, which is how a browser shows it."""
        if not self._grants:
            return ANYTHING
        if authorization is None:
            return None
        shown = authorization if isinstance(authorization, bytes) else authorization.encode("utf-8", "replace")
        scheme, _, value = shown.partition(b" ")
        scheme, secret = scheme.lower(), value.strip()
        if basic and scheme == b"basic":
            scheme, secret = b"bearer", _password(secret)
        grant = self._grants.get(self._digest(secret))
        return grant if scheme == b"bearer" else None

    def admit_call(self, context: grpc.aio.ServicerContext[Any, Any]) -> Grant:
        """What the metadata of a call allows that `TokenInterceptor` let in."""
        grant = self.admit(_authorization(context.invocation_metadata()))
        assert grant is not None, "let in by the interceptor"
        return grant

    def _digest(self, secret: bytes) -> bytes:
        return hmac.digest(self._key, secret, "sha256")


def bearer_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """gRPC metadata that shows `token`."""
    return (("authorization", f"Bearer {token}"),) if token else ()


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Refuses every gRPC method but the health service with UNAUTHENTICATED where no token is shown.

    A bound token gets PERMISSION_DENIED, but for reflection and the methods in `callers_own`, which look at its grant
    themselves.
    """

    def __init__(self, guard: Guard, callers_own: frozenset[str]) -> None:
        """`callers_own` are full names, `/package.Service/Method`."""
        self._guard = guard
        self._callers_own = callers_own

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Method | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Method | None:
        """Passes the call on, or has it refused before any of its messages is read."""
        name = handler_call_details.method
        if name.startswith(_OPEN_METHODS):
            return await continuation(handler_call_details)
        grant = self._guard.admit(_authorization(handler_call_details.invocation_metadata))
        if grant is None:
            return _refusing(grpc.StatusCode.UNAUTHENTICATED, UNAUTHENTICATED)
        if grant.is_bound and name not in self._callers_own and not name.startswith(_SHARED_METHODS):
            return _refusing(grpc.StatusCode.PERMISSION_DENIED, NOT_BOUND)
        return await continuation(handler_call_details)


def _password(credentials: bytes) -> bytes:
    """That of HTTP Basic (RFC 7617): what follows the first colon; nothing where it is no Basic."""
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _authorization(metadata: Any) -> str | bytes | None:
    """The value in a call's metadata; None where it is missing, or there twice, which nobody means."""
    values = [value for key, value in metadata or () if key == "authorization"]
    return values[0] if len(values) == 1 else None


def _refusing(code: grpc.StatusCode, problem: str) -> Method:
    """Refuses a call of any arity. As a stream, since gRPC then reads no message before it is asked for one."""

    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(code, problem)

    return grpc.stream_stream_rpc_method_handler(refuse)

"""The one token that clients and services show. Pure but for the two gRPC adapters at the end.

Unset, nothing is asked of anyone; a service then says so once when it starts.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

UNAUTHENTICATED = "missing or wrong token: send 'Authorization: Bearer <LUFTPAUSE_TOKEN>'"
_OPEN_METHODS = "/grpc.health.v1.Health/"


def is_authorized(token: str | None, authorization: str | bytes | None) -> bool:
    """Whether an `Authorization` header value shows `token`, compared in constant time; always true without a token."""
    if not token:
        return True
    if authorization is None:
        return False
    shown = authorization if isinstance(authorization, bytes) else authorization.encode("utf-8", "replace")
    scheme, _, value = shown.partition(b" ")
    return hmac.compare_digest(value.strip(), token.encode()) and scheme.lower() == b"bearer"


def bearer_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """gRPC metadata that shows `token`."""
    return (("authorization", f"Bearer {token}"),) if token else ()


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Refuses every gRPC method but the health service with UNAUTHENTICATED where the token is not shown."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Passes the call on, or replaces it by one of the same arity that refuses."""
        method = await continuation(handler_call_details)
        metadata: dict[str, str | bytes] = dict(handler_call_details.invocation_metadata or ())
        if handler_call_details.method.startswith(_OPEN_METHODS) or is_authorized(
            self._token, metadata.get("authorization")
        ):
            return method
        return _refusing(method)


def _refusing(method: grpc.RpcMethodHandler[Any, Any] | None) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(_request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, UNAUTHENTICATED)

    async def refuse_stream(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        await refuse(request, context)
        nothing: tuple[Any, ...] = ()
        for item in nothing:
            yield item

    streams_in, streams_out = (method.request_streaming, method.response_streaming) if method else (False, False)
    if streams_in and streams_out:
        return grpc.stream_stream_rpc_method_handler(refuse_stream)
    if streams_in:
        return grpc.stream_unary_rpc_method_handler(refuse)
    if streams_out:
        return grpc.unary_stream_rpc_method_handler(refuse_stream)
    return grpc.unary_unary_rpc_method_handler(refuse)

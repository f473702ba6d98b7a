"""Calls of tools over HTTP by the stateless version of the protocol: a request and its answer, nothing between them.

A call may wait for minutes, and a thousand runs may wait at the same time. For each, the official client holds three
times the memory of the connection itself, so calls are made here, and the rest of the protocol is the client's.
Must not decide what a failure means: it raises what the client would. Read next: `tool_connection`.
"""

from __future__ import annotations

import itertools
from typing import Any

import aiohttp
import httpx2
import msgspec
from mcp import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    CallToolResult,
    ErrorData,
)

from runtime import tool_http
from runtime.results import with_few_blocks

_CLIENT = {"name": "luftpause", "version": "1"}
_ANSWERS = {"result", "error"}


class StatelessCalls:
    """Calls of the tools of the server at `url`, with which this version of the protocol was agreed."""

    def __init__(self, http: httpx2.AsyncClient, url: str, version: str) -> None:
        self._http = http
        self._url = url
        self._version = version
        self._ids = itertools.count(1)

    async def call(
        self, tool: str, schema: dict[str, Any], arguments: dict[str, Any], meta: dict[str, Any]
    ) -> CallToolResult | None:
        """The result of a call; None: the tool asks for input. `schema` is that of its arguments, as it was listed.

        Waits as long as it takes; cancelled, it closes the connection, by which the server learns of it. Raises
        MCPError as the client does, ValidationError where the result is none.
        """
        stamped = {
            **meta,
            PROTOCOL_VERSION_META_KEY: self._version,
            CLIENT_INFO_META_KEY: _CLIENT,
            CLIENT_CAPABILITIES_META_KEY: {},
        }
        params = {"name": tool, "arguments": arguments, "_meta": stamped}
        headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            MCP_PROTOCOL_VERSION_HEADER: self._version,
            MCP_METHOD_HEADER: "tools/call",
            MCP_NAME_HEADER: encode_header_value(tool),
            **mcp_param_headers(x_mcp_header_map(schema), arguments),
        }
        answer = await self._ask({"method": "tools/call", "params": params}, headers)
        if "error" in answer:
            error = ErrorData.model_validate(answer["error"])
            raise MCPError(error.code, error.message, error.data)
        result = answer["result"]
        if isinstance(result, dict):
            if result.get("resultType", "complete") != "complete":
                return None
            result = with_few_blocks(result)
        return CallToolResult.model_validate(result)

    async def _ask(self, request: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        """The JSON-RPC answer to a request. Raises MCPError where there is none."""
        number = next(self._ids)
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": number, **request})
        try:
            async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
                is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
                received = await tool_http.read(response)
        except (aiohttp.ClientError, OSError, httpx2.HTTPError) as error:
            raise MCPError(CONNECTION_CLOSED, f"connection lost: {error or type(error).__name__}") from None
        if received is None:
            raise MCPError(INTERNAL_ERROR, f"the answer is longer than {tool_http.ANSWER_BYTES_MAX} bytes")
        for text in _events(received) if is_stream else [received]:
            try:
                message = msgspec.json.decode(text)
            except msgspec.DecodeError:
                raise MCPError(PARSE_ERROR, "Failed to parse the answer: it is no JSON") from None
            # Errors of our own transport, and those of a server that could not read the request, have no id.
            if isinstance(message, dict) and message.get("id") in (number, None) and message.keys() & _ANSWERS:
                return message
        what = "SSE stream ended without a result" if is_stream else "the answer has no result"
        raise MCPError(CONNECTION_CLOSED, what)


def _events(received: bytes) -> list[bytes]:
    """The data of each event of a stream (lines that begin with `data:`, an empty line ends an event)."""
    lines = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events = []
    for block in lines.split(b"\n\n"):
        data = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        if data:
            events.append(b"\n".join(data))
    return events

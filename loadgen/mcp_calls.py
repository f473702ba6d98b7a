"""Calls tools of an MCP server by the stateless version of the protocol: one request a call, nothing between them.

Written out here since a load has to count what fails: the official client ends, with all its calls, when one request
fails. Must not know what the tools do. Read next: `spawning`.
"""

from __future__ import annotations

import itertools
from typing import Any, Self

import aiohttp
import msgspec

from loadgen.driver import fault_kind, message_of, open_session

VERSION = "2026-07-28"
"""Of the protocol; the first without a handshake."""
_META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "luftpause-load", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": VERSION,
    "Mcp-Method": "tools/call",
}


class CallError(Exception):
    """A call did not give what it should. The text is the kind of error; `message` is what the server said."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.message = message


class McpTools:
    """The tools of the MCP server at `url`. `async with` opens and closes its connections."""

    def __init__(self, url: str, token: str | None = None, caller: str = "") -> None:
        self._url = url
        self._token = token
        self._caller = {"x-luftpause-caller": caller} if caller else {}
        self._ids = itertools.count(1)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = open_session(self._token)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._session.close()

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The `CallToolResult` of a call, as JSON, however long it takes. Raises CallError, also if it is an error."""
        params = {"name": tool, "arguments": arguments, "_meta": _META}
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": "tools/call", "params": params}
        headers = _HEADERS | self._caller | {"Mcp-Name": tool}
        try:
            async with self._session.post(self._url, data=msgspec.json.encode(body), headers=headers) as response:
                received = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CallError(fault_kind(error)) from None
        if response.status != 200:
            raise CallError(f"status {response.status}", message_of(received))
        return _result(received, response.content_type == "text/event-stream")


def _result(received: bytes, is_stream: bool) -> dict[str, Any]:
    """The result in the body of an answer, whose last event it is where it is a stream. Raises CallError."""
    if is_stream:
        _, _, received = received.rpartition(b"data: ")
    try:
        result: dict[str, Any] = msgspec.json.decode(received)["result"]
        text = "\n".join(each["text"] for each in result["content"] if each["type"] == "text")
    except (msgspec.DecodeError, KeyError, TypeError):
        raise CallError("unreadable answer", message_of(received)) from None
    if result.get("isError"):
        raise CallError("error of the tool", text)
    return result

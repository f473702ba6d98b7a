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

    async def list(self) -> list[dict[str, Any]]:
        """The tools, as the server describes them. Raises CallError."""
        tools: list[dict[str, Any]] = (await self._ask("tools/list", {}, {}))["tools"]
        return tools

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The `CallToolResult` of a call, as JSON, however long it takes. Raises CallError, also if it is an error."""
        result = await self._ask("tools/call", {"name": tool, "arguments": arguments}, {"Mcp-Name": tool})
        if result.get("isError"):
            raise CallError("error of the tool", text_of(result))
        return result

    async def _ask(self, method: str, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": {**params, "_meta": _META}}
        body = msgspec.json.encode(message)
        headers = _HEADERS | self._caller | {"Mcp-Method": method} | headers
        try:
            async with self._session.post(self._url, data=body, headers=headers) as response:
                received = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CallError(fault_kind(error)) from None
        if response.status != 200:
            raise CallError(f"status {response.status}", message_of(received))
        if response.content_type == "text/event-stream":
            _, _, received = received.rpartition(b"data: ")
        try:
            result: dict[str, Any] = msgspec.json.decode(received)["result"]
        except (msgspec.DecodeError, KeyError, TypeError):
            raise CallError("unreadable answer", message_of(received)) from None
        return result


def text_of(result: dict[str, Any]) -> str:
    """The text of a call's result."""
    return "\n".join(each["text"] for each in result["content"] if each["type"] == "text")

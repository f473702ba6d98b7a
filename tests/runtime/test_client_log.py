"""What is logged of tool servers whose answers cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from runtime import client_log
from runtime.tool_specs import Unknown
from tests.runtime.test_toolbox_failures import tells


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_that_cannot_be_read_is_logged_in_a_line(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    deep = '{"jsonrpc":"2.0","id":%d,"result":' + '{"a":' * 100_000

    async def react(_request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        said = deep % message["id"]
        return web.Response(text=f"data: {said}\n\n" if kind == "text/event-stream" else said, content_type=kind)

    client_log.shorten()
    await tells(react, Unknown("Failed to parse"), stateless=False)
    told = [record for record in caplog.records if record.name.startswith("mcp.")]
    assert any("Error parsing" in record.getMessage() for record in told)
    for record in told:
        assert not record.exc_info
        assert "\n" not in record.getMessage()

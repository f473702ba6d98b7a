"""What an HTTP client that leaves in the middle of its request leaves behind in the runtime: nothing."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from tests.runtime.conformance_server import own_tools
from tests.waiting import wait_until

ERAS = {
    "older": b"mcp-protocol-version: 2025-06-18\r\n",
    "newer": b"mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/list\r\n",
}
HEAD = (
    b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json, text/event-stream\r\n"
    b"content-type: application/json\r\ncontent-length: 1000\r\n"
)


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_leaves_in_its_body_leaves_no_task_and_no_traceback(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, era: str
) -> None:
    async with own_tools(tmp_path) as url:
        idle = len(asyncio.all_tasks())
        port = int(url.removesuffix("/mcp").rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + ERAS[era] + b'\r\n{"jsonrpc":')
        await wait_until(lambda: len(asyncio.all_tasks()) > idle)
        writer.close()
        await writer.wait_closed()
        await wait_until(lambda: len(asyncio.all_tasks()) == idle)
        assert not [record.getMessage() for record in caplog.records if record.exc_info]

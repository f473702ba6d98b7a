"""What the MCP client logs of tool servers, in a line each: of an answer that it cannot read it tells with a traceback,
as if that were a fault here."""

from __future__ import annotations

import logging

_LOGGERS = (
    "client",
    "mcp.client.client",
    "mcp.client.stdio",
    "mcp.client.streamable_http",
    "mcp.shared.jsonrpc_dispatcher",
)
"""Those of the SDK's parts that a connection to a tool server uses."""


def in_one_line(record: logging.LogRecord) -> bool:
    """A filter that lets everything pass, and puts the first line of an error in place of its traceback."""
    if record.exc_info:
        error = record.exc_info[1]
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        record.msg, record.args, record.exc_info = f"{record.getMessage()}: {said}", None, None
    return True


def shorten() -> None:
    """Has it done from here on."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(in_one_line)

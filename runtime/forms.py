"""How a person is asked through an MCP client: a form with one boolean, `allow`, the same for every way of asking.

Must not wait for anybody: who shows the form and how its answer comes back is up to `mcp_server` and `tasks`.
"""

from __future__ import annotations

import contextlib
from typing import Any

from mcp_types import ClientCapabilities, ElicitRequest, ElicitRequestFormParams, ElicitResult

from runtime import approvals
from runtime.refusals import WrongStateError
from runtime.service import Runtime

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"allow": {"type": "boolean", "title": "Allow", "description": "Whether the tool call may be made"}},
    "required": ["allow"],
}


def can_be_shown(capabilities: ClientCapabilities | None) -> bool:
    """Whether the client says that it shows forms; an empty declaration, which is older than modes, says so too."""
    forms = capabilities.elicitation if capabilities is not None else None
    return forms is not None and (forms.form is not None or forms.url is None)


def key(handle: str, question: approvals.Question) -> str:
    """Names a question to clients: never used for another one."""
    return f"{handle}-{question.name}"


def request(question: approvals.Question) -> ElicitRequest:
    """The form."""
    return ElicitRequest(params=ElicitRequestFormParams(message=question.text, requested_schema=FORM))


async def take(runtime: Runtime, handle: str, question: approvals.Question, response: ElicitResult) -> bool:
    """Gives the person's answer to the run; False: the form was dismissed, so the question stays open.

    An answer that comes after another one changes nothing. Raises UnknownRunError or StoreError.
    """
    if response.action == "cancel":
        return False
    allow = response.action == "accept" and (response.content or {}).get("allow") is True
    with contextlib.suppress(WrongStateError):  # it is asked no more
        await runtime.approve(handle, allow, question.name)
    return True

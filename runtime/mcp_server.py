"""The MCP surface: the runtime's operations as tools, for both eras of the protocol.

Runs are detached: a client that leaves, or whose request is cancelled, stops no run. A person is asked through the
client whose `await` or `run` covers the run, where it can ask: until 2025-11-25 by a request to it, since 2026-07-28 by
an answer that asks for input and whose retry carries it. Must not decide anything about runs: that is `service`.
Read next: `tasks`, `forms`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.server.request_state import RequestStateSecurity
from mcp.shared import jsonrpc_dispatcher
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    ElicitResult,
    InputRequiredResult,
    TextContent,
    ToolAnnotations,
)
from mcp_types.version import is_version_at_least
from pydantic import Field

from common.auth import Guard
from common.trace_context import usable
from runtime import approvals, forms, reports, tasks
from runtime.access import Access
from runtime.decisions import Question
from runtime.journal import Journal
from runtime.mcp_tools import A_NUMBER, spawn_request, tool, with_spawn_arguments
from runtime.orders import COUNT_MAX
from runtime.service import AWAIT_S, Runtime
from runtime.tool_descriptions import (
    ALLOW,
    DECIDING_MODEL,
    HANDLE,
    HANDLES,
    INPUT,
    INSTRUCTIONS,
    LABELS,
    MODE,
    QUESTION,
    TIMEOUT,
)

SERVER_NAME = "luftpause"
"""Sealed state of one server is not taken by another: the name must not change between releases."""
VERSION = "0.1.0"
"""Of the release, as clients show it."""
RUN_S = 55.0
"""How long `run` waits: clients commonly give a call 60 s."""
STATE_TTL_S = 30 * 24 * 3600.0
"""How long a person may take to answer a form of the newer era."""
INPUT_REQUIRED_SINCE = "2026-07-28"

TAKE_BACK_S = 1.0
"""How long a client that reads nothing is tried to be told that a question to it is off. The SDK's own 5 s, which
nothing cuts short, are longer than the runtime takes to end."""

Answer = CallToolResult | InputRequiredResult


class Surface:
    """The tools, as methods."""

    def __init__(self, runtime: Runtime, guard: Guard) -> None:
        self._runtime = runtime
        self._guard = guard

    async def spawn(self, ctx: Context, **arguments: Any) -> CallToolResult:
        """Starts a run."""
        journal = await self._spawn(ctx, arguments)
        return _told({"handle": journal.run.run_id, "state": str(journal.run.state)})

    async def run(self, ctx: Context, **arguments: Any) -> Answer:
        """Starts a run and waits for it."""
        if ctx.request_state is not None:
            return await self._observe(ctx, _handles_of(ctx.request_state), "all", RUN_S, is_run=True)
        journal = await self._spawn(ctx, arguments)
        if tasks.are_declared(ctx.request_context):
            return tasks.started(journal.run.run_id)
        return await self._observe(ctx, [journal.run.run_id], "all", RUN_S, is_run=True)

    async def await_(
        self,
        ctx: Context,
        handles: Annotated[list[str], Field(description=HANDLES, max_length=COUNT_MAX)],
        mode: Annotated[Literal["all", "any"], Field(description=MODE)] = "all",
        timeout: Annotated[float, Field(description=TIMEOUT), A_NUMBER] = AWAIT_S,
    ) -> Answer:
        """Waits for runs."""
        return await self._observe(ctx, handles, mode, timeout, is_run=False)

    async def status(
        self,
        ctx: Context,
        handle: Annotated[str | None, Field(description=HANDLE + " Left out: all runs that have not ended.")] = None,
    ) -> CallToolResult:
        """Tells about runs."""
        tree = self._runtime.tree
        access = self.access(ctx.headers)
        now = time.time()
        if handle is None:
            shown = [journal for journal in tree if journal.run.end is None and access.covers(journal)]
        else:
            access.check("handle", [handle])
            found = tree.get("handle", handle)
            above = tree.parent(found)
            shown = [*([above] if above else []), *tree.down(found)]
        return _told({"runs": [reports.listing(each.run, tree.usage(each), now) for each in shown]})

    async def cancel(self, ctx: Context, handle: Annotated[str, Field(description=HANDLE)]) -> CallToolResult:
        """Cancels a run and all below it."""
        self.access(ctx.headers).check("handle", [handle])
        return _told({"cancelled": [journal.run.run_id for journal in await self._runtime.cancel(handle)]})

    async def approve(
        self,
        ctx: Context,
        handle: Annotated[str, Field(description=HANDLE)],
        allow: Annotated[bool, Field(description=ALLOW)],
        question: Annotated[str | None, Field(description=QUESTION)] = None,
    ) -> CallToolResult:
        """Answers what a run asks."""
        self.access(ctx.headers).check_drive("handle", handle)
        journal, allowed = await self._runtime.approve(handle, allow, question)
        return self._results([journal], allowed=allowed)

    async def decide(
        self,
        ctx: Context,
        input: Annotated[str, Field(description=INPUT)],  # noqa: A002 - the argument's name
        labels: Annotated[list[str] | None, Field(description=LABELS, max_length=COUNT_MAX)] = None,
        model: Annotated[str | None, Field(description=DECIDING_MODEL)] = None,
    ) -> CallToolResult:
        """Answers one small question."""
        question = Question(input, None if labels is None else tuple(labels), model)
        access = self.access(ctx.headers)
        caller = self._caller(ctx, access)
        decision = await self._runtime.decide(question, caller, access.decision_class, _traceparent(ctx))
        return _told(msgspec.to_builtins(decision))

    async def tools(self) -> CallToolResult:
        """Tells which tools runs may call."""
        return _told({"servers": tool_servers(self._runtime)})

    async def _spawn(self, ctx: Context, arguments: dict[str, Any]) -> Journal:
        access = self.access(ctx.headers)
        asked = access.check_spawn(spawn_request(arguments))
        return await self._runtime.spawn(asked, self._caller(ctx, access), _traceparent(ctx))

    def _caller(self, ctx: Context, access: Access) -> str:
        return access.caller_of((ctx.headers or {}).get("x-luftpause-caller") or "") or _client_of(ctx)

    def access(self, headers: Mapping[str, str] | None) -> Access:
        """What the token in a request's headers may see; all of it was let in."""
        grant = self._guard.admit((headers or {}).get("authorization"))
        assert grant is not None, "let in by the HTTP surface"
        return Access(grant, self._runtime.tree)

    async def _observe(
        self, ctx: Context, handles: Sequence[str], mode: str, timeout_s: float, *, is_run: bool
    ) -> Answer:
        """Waits for runs, and has a person asked meanwhile where they need it, and the client can and may."""
        access = self.access(ctx.headers)
        access.check("handles", handles)
        deadline = time.monotonic() + timeout_s
        open_questions: set[approvals.Question] = set()
        """Shown to the person, who did not choose: not asked again by this request."""
        for key, response in (ctx.input_responses or {}).items():
            mine = [handle for handle in handles if access.may_drive(self._runtime.tree.get("handles", handle))]
            await self._take_answer(mine, key, response, open_questions)
        while True:
            left_s = max(deadline - time.monotonic(), 0.0) if timeout_s >= 0 else timeout_s
            journals = await self._runtime.await_(handles, mode, left_s)
            asked = [
                (journal, question)
                for journal in journals
                if access.may_drive(journal)
                and (question := approvals.question(journal.run)) is not None
                and question not in open_questions
            ]
            if (
                not asked
                or not forms.can_be_shown(ctx.client_capabilities)
                or (mode == "any" and any(each.run.end for each in journals))
            ):
                return self._results(journals, is_run=is_run)
            if _asks_by_answer(ctx):
                return _input_required(handles, asked)
            for journal, question in asked:
                left_s = deadline - time.monotonic()
                answered = await self._elicit(ctx, question, left_s) if left_s > 0 else None
                await self._answer(journal.run.run_id, question, answered, open_questions)

    async def _take_answer(
        self, handles: Sequence[str], key: str, response: Any, open_questions: set[approvals.Question]
    ) -> None:
        """Takes an answer that came with a retry; one to a question that is no longer asked is ignored."""
        for handle in handles:
            question = approvals.question(self._runtime.tree.get("handles", handle).run)
            if question is not None and key == forms.key(handle, question):
                await self._answer(handle, question, response, open_questions)

    async def _answer(
        self, handle: str, question: approvals.Question, response: Any, open_questions: set[approvals.Question]
    ) -> None:
        is_answer = isinstance(response, ElicitResult)
        if not is_answer or not await forms.take(self._runtime, handle, question, response):
            open_questions.add(question)

    async def _elicit(self, ctx: Context, question: approvals.Question, left_s: float) -> ElicitResult | None:
        """What the person answers, asked by a request to the client; None if there is no answer in time."""
        try:
            # Cancelled after the client's stream is gone, the SDK would try in vain to take the request back.
            async with self._runtime.timeout(left_s):
                related = ctx.request_context.request_id
                form: ElicitResult = await ctx.session.elicit_form(
                    question.text, forms.FORM, related_request_id=related
                )
                return form
        except (TimeoutError, MCPError):
            return None

    def result(self, journal: Journal) -> CallToolResult:
        """What `run` tells of a run."""
        return self._results([journal], is_run=True)

    def _results(self, journals: Sequence[Journal], *, is_run: bool = False, **more: Any) -> CallToolResult:
        tree, now = self._runtime.tree, time.time()
        told = [reports.result(journal.run, tree.usage(journal), now) for journal in journals]
        for each in told:
            if each["state"] == "Running":
                each["note"] = "still running; call await with this handle to go on waiting"
            elif each["state"] == "Sleeping":
                each["note"] = (
                    "waits for tool servers that are not connected, then goes on; await as if it were running"
                )
            elif each["state"] == "AwaitingApproval":
                each["note"] = "waits for a person's approval; answer with approve"
        return _told(told[0] if is_run else {**more, "results": told})


def tool_servers(runtime: Runtime) -> list[dict[str, Any]]:
    """The tool servers and the names of their tools, as JSON."""
    return [
        {"name": server.name, "up": server.up, "reason": server.reason, "tools": list(server.tools)}
        for server in runtime.tools()
    ]


def build(runtime: Runtime, guard: Guard, key: bytes, keep_s: float) -> MCPServer:
    """The MCP server. `key` (32 bytes) seals what clients hold of a question; it must be the same after a restart.

    `keep_s` is how long the runtime keeps ended runs.
    """
    jsonrpc_dispatcher._ABANDON_WRITE_TIMEOUT = TAKE_BACK_S  # noqa: SLF001 - there is no setting
    security = RequestStateSecurity(keys=[key], ttl=STATE_TTL_S)
    surface = Surface(runtime, guard)
    return MCPServer(
        SERVER_NAME,
        instructions=INSTRUCTIONS,
        version=VERSION,
        log_level="WARNING",
        request_state_security=security,
        extensions=[tasks.Tasks(runtime, surface.access, surface.result, keep_s)],
        tools=tools_of(surface),
    )


def tools_of(surface: Surface) -> list[Tool]:
    """The tools, in the order in which clients are told them."""
    reads = ToolAnnotations(read_only_hint=True)
    starts = ToolAnnotations(read_only_hint=False, destructive_hint=False)
    ends = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)
    tools: tuple[tuple[str, Callable[..., Any], ToolAnnotations], ...] = (
        ("spawn", with_spawn_arguments(surface.spawn), starts),
        ("await", surface.await_, reads),
        ("run", with_spawn_arguments(surface.run), starts),
        ("status", surface.status, reads),
        ("cancel", surface.cancel, ends),
        ("approve", surface.approve, starts),
        ("decide", surface.decide, reads),
        ("tools", surface.tools, reads),
    )
    return [tool(name, method, hints) for name, method, hints in tools]


def _told(content: dict[str, Any]) -> CallToolResult:
    text = TextContent(type="text", text=json.dumps(content, ensure_ascii=False))
    return CallToolResult(content=[text], structured_content=content)


def _asks_by_answer(ctx: Context) -> bool:
    return ctx.protocol_version is not None and is_version_at_least(ctx.protocol_version, INPUT_REQUIRED_SINCE)


def _input_required(handles: Sequence[str], asked: Sequence[tuple[Journal, approvals.Question]]) -> InputRequiredResult:
    requests: dict[str, Any] = {
        forms.key(journal.run.run_id, question): forms.request(question) for journal, question in asked
    }
    return InputRequiredResult(input_requests=requests, request_state=json.dumps(list(handles)))


def _handles_of(state: str) -> list[str]:
    """The handles in a state that this server sealed."""
    return [str(handle) for handle in json.loads(state)]


def _client_of(ctx: Context) -> str:
    """Who asks where no caller is named: the session, else the name of the client."""
    params = ctx.session.client_params
    client = params.client_info.name if params is not None else ""
    return (ctx.headers or {}).get("mcp-session-id") or client


def _traceparent(ctx: Context) -> str | None:
    """The W3C trace context of the request, from its `_meta` or its header."""
    meta: Any = ctx.request_context.meta or {}
    return usable(meta.get("traceparent") or (ctx.headers or {}).get("traceparent"))

"""The Tasks extension of MCP for `run`: a client that declares it gets a task at once, and asks how it goes.

    tools/call run  ->  resultType "task", taskId       the run's handle: the task is as durable as the run
    tasks/get       ->  working | input_required, inputRequests | completed, result | cancelled | failed, error
    tasks/update    ->  answers to inputRequests
    tasks/cancel    ->  as the tool `cancel`

A request that does not declare the extension sees none of it. What counts is the declaration in the request itself, so
the extension is served since the version of the protocol that has it there. A run that failed is a completed task with
the result that says so: "failed" means errors of the protocol, which is what a run that moved away has become here.
Must not decide anything about runs: that is `service`.
"""

from __future__ import annotations

import collections
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import CallToolRequestParams, CallToolResult, ElicitResult, RequestParams
from mcp_types.jsonrpc import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field, ValidationError

from runtime import approvals, forms
from runtime.access import Access
from runtime.journal import Journal
from runtime.records import State
from runtime.refusals import RefusedError
from runtime.run import RunState
from runtime.service import Runtime
from runtime.store import StoreError

IDENTIFIER = "io.modelcontextprotocol/tasks"
POLL_MS = 1000
"""How often clients are asked to ask at most."""

RequestContext = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """Names a task."""

    task_id: str


class UpdateParams(TaskParams):
    """Answers to what a task asks."""

    input_responses: dict[str, Any]


class TaskStarted(CallToolResult):
    """What a tool returns whose call becomes a task; the client gets the task in its place."""

    handle: str = Field(exclude=True)


def started(handle: str) -> TaskStarted:
    """The call goes on as the run `handle`."""
    return TaskStarted(content=[], handle=handle)


def are_declared(ctx: RequestContext) -> bool:
    """Whether this request may be answered with a task."""
    capabilities = ctx.session.client_capabilities
    declared = (capabilities.extensions if capabilities is not None else None) or {}
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and IDENTIFIER in declared


class Tasks(Extension):
    """The extension. `access` tells what the headers of a request let see, `result` what the tool tells of a run that
    has ended; ended runs are kept `keep_s` seconds."""

    identifier = IDENTIFIER

    def __init__(
        self,
        runtime: Runtime,
        access: Callable[[Mapping[str, str] | None], Access],
        result: Callable[[Journal], CallToolResult],
        keep_s: float,
    ) -> None:
        self._runtime = runtime
        self._access = access
        self._result = result
        self._keep_s = keep_s
        self._nonce = secrets.token_hex(4)
        self._dismissed: collections.Counter[str] = collections.Counter()
        """How often each open question's form was dismissed."""

    def methods(self) -> Sequence[MethodBinding]:
        """What clients may ask of a task."""
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return (
            MethodBinding("tasks/get", TaskParams, self._get, versions),
            MethodBinding("tasks/update", UpdateParams, self._update, versions),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, versions),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: RequestContext, call_next: CallNext
    ) -> HandlerResult:
        """Puts the task in place of `TaskStarted`: its run is durable by then."""
        del params
        result = await call_next(ctx)
        if not isinstance(result, TaskStarted):
            return result
        return {"resultType": "task", **self._task(self._runtime.tree.get("taskId", result.handle).run, "working")}

    async def _get(self, ctx: RequestContext, params: TaskParams) -> HandlerResult:
        journal = self._find(ctx, params)
        run = journal.run
        if run.end is not None and run.state is State.CANCELLED:
            return self._task(run, "cancelled", statusMessage=run.end.text)
        if run.end is not None and run.state is State.MOVED:
            return self._task(run, "failed", error={"code": INVALID_PARAMS, "message": run.end.text})
        if run.end is not None:
            told = self._result(journal).model_dump(mode="json", by_alias=True, exclude_none=True)
            return self._task(run, "completed", result=told)
        questions = approvals.questions(run)
        if not questions:
            return self._task(run, "working")
        if not (forms.can_be_shown(ctx.session.client_capabilities) and self._access_of(ctx).may_drive(journal)):
            return self._task(run, "working", statusMessage=f"{questions[0].text} Answer with the tool approve.")
        requests = {
            self._key(run, question): forms.request(question).model_dump(mode="json", by_alias=True, exclude_none=True)
            for question in questions
        }
        return self._task(run, "input_required", inputRequests=requests)

    async def _update(self, ctx: RequestContext, params: UpdateParams) -> HandlerResult:
        run = self._find(ctx, params).run
        try:
            self._access_of(ctx).check_drive("taskId", params.task_id)
        except RefusedError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None
        answers = []
        for question in approvals.questions(run):
            about = forms.key(run.run_id, question)
            # Others answer what is no longer asked, or never was.
            key = next((each for each in params.input_responses if each.startswith(f"{about}-")), None)
            if key is not None:
                answers.append((question, _elicited(key, params.input_responses[key])))
        for question, answer in answers:
            await self._answer(run.run_id, question, answer)
        return {}

    async def _cancel(self, ctx: RequestContext, params: TaskParams) -> HandlerResult:
        run = self._find(ctx, params).run
        try:
            await self._runtime.cancel(run.run_id)
        except StoreError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from None
        return {}

    async def _answer(self, handle: str, question: approvals.Question, answer: ElicitResult) -> None:
        about = forms.key(handle, question)
        try:
            is_chosen = await forms.take(self._runtime, handle, question, answer)
        except StoreError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from None
        if is_chosen:
            del self._dismissed[about]
        else:
            self._dismissed[about] += 1

    def _find(self, ctx: RequestContext, params: TaskParams) -> Journal:
        """The run of a request that is as it has to be. Raises MCPError."""
        require_client_extension(ctx, IDENTIFIER)
        if ctx.request is not None:
            named = decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER))
            if named != params.task_id:
                raise MCPError(HEADER_MISMATCH, "Mcp-Name header: expected what taskId is in the body")
        try:
            self._access_of(ctx).check("taskId", [params.task_id])
            return self._runtime.tree.get("taskId", params.task_id)
        except RefusedError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None

    def _access_of(self, ctx: RequestContext) -> Access:
        return self._access(ctx.request.headers if ctx.request is not None else None)

    def _key(self, run: RunState, question: approvals.Question) -> str:
        """Names a form to the client. A form that was dismissed, perhaps before a restart, is not shown again under it.

        An answer is taken under any key of its question, since the form may have been shown before a restart.
        """
        about = forms.key(run.run_id, question)
        return f"{about}-{self._nonce}-{self._dismissed[about]}"

    def _task(self, run: RunState, status: str, **more: Any) -> dict[str, Any]:
        kept_s = None if run.end is None else run.end.at - run.started_at + self._keep_s
        return {
            "taskId": run.run_id,
            "status": status,
            "createdAt": _iso(run.started_at),
            "lastUpdatedAt": _iso(run.updated_at),
            "ttlMs": None if kept_s is None else int(kept_s * 1000),
            "pollIntervalMs": POLL_MS,
            **more,
        }


def _elicited(key: str, response: Any) -> ElicitResult:
    try:
        return ElicitResult.model_validate(response)
    except ValidationError:
        raise MCPError(INVALID_PARAMS, f"inputResponses.{key}: expected the result of an elicitation") from None


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")

"""One sub-agent run through real processes is one tree of spans; a collector that is not there costs it nothing."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import grpc
import pytest

from loadgen.ports import free_ports
from protos import runtime_pb2, runtime_pb2_grpc
from tests.collector import TakenSpan, grpc_collector, http_collector
from tests.stack import Service, Stack, fetched, running_stack, started, wait_healthy

ABOVE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STOP_S_MAX = 5.0

pytestmark = pytest.mark.e2e


@dataclass
class Whole:
    """All services."""

    stack: Stack
    services: list[Service]
    runs: runtime_pb2_grpc.RunsStub
    tools_url: str
    runtime_url: str

    def run(self, **arguments: object) -> runtime_pb2.Run:
        """A run with one tool call, when it has ended."""
        request = runtime_pb2.SpawnRequest(task="look it up", max_tool_calls=1, **arguments)  # type: ignore[arg-type]
        handle = self.runs.Spawn(request).handle
        [run] = self.runs.Await(runtime_pb2.AwaitRequest(handles=[handle])).runs
        assert run.state == runtime_pb2.RUN_STATE_COMPLETED, run.text
        return run


@contextlib.contextmanager
def whole(folder: pathlib.Path, settings: Mapping[str, str], max_in_flight: int | None = None) -> Iterator[Whole]:
    """Engine, scheduler, dataplane, tool server and runtime while the block runs; all end cleanly."""
    tools_port, port, grpc_port = free_ports(3)
    tools = folder / "tools.toml"
    tools.write_text(f'[[server]]\nname = "fake"\nurl = "http://127.0.0.1:{tools_port}/mcp"\n')
    own = {
        "LUFTPAUSE_STATE": str(folder / "state"),
        "LUFTPAUSE_TOOLS_PORT": str(tools_port),
        "LUFTPAUSE_TOOLS_LOOKUP_S": "0",
        "LUFTPAUSE_TOOLS_DEEP_SEARCH_S": "0",
        "LUFTPAUSE_RUNTIME_PORT": str(port),
        "LUFTPAUSE_RUNTIME_GRPC_PORT": str(grpc_port),
        "LUFTPAUSE_RUNTIME_TOOLS": str(tools),
        **settings,
    }
    engine = {"LUFTPAUSE_ENGINE_SPEED": "20", "LUFTPAUSE_ENGINE_TOOL_CALLS": "1"}
    tools_url, runtime_url = f"http://127.0.0.1:{tools_port}", f"http://127.0.0.1:{port}"
    with (
        running_stack(folder, replicas=1, settings={**engine, **settings}, max_in_flight=max_in_flight) as stack,
        started("fakes.toolserver", own, folder / "tools.log") as toolserver,
    ):
        wait_healthy(toolserver, (f"{tools_url}/health",))
        own["LUFTPAUSE_RUNTIME_DATAPLANE"] = stack.base_url.removesuffix("/v1")
        with started("runtime", own, folder / "runtime.log") as runtime:
            wait_healthy(runtime, (f"{runtime_url}/health",))
            with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
                services = [runtime, *stack.services.values()]
                yield Whole(stack, services, runtime_pb2_grpc.RunsStub(channel), tools_url, runtime_url)


@pytest.mark.parametrize("opened", [grpc_collector, http_collector])
def test_a_run_with_a_tool_call_is_one_tree(tmp_path: pathlib.Path, opened: type) -> None:
    with opened() as collector:
        with whole(tmp_path, collector.settings) as services:
            run = services.run(traceparent=ABOVE, tools=runtime_pb2.ToolNames(names=["lookup"]))
            calls = json.loads(fetched(f"{services.tools_url}/effects") or "")["calls"]
            lost = fetched(f"{services.runtime_url}/metrics") or b""
        # All services have ended, and with them the last spans came.
        spans: list[TakenSpan] = collector.spans
    assert b"luftpause_runtime_lost_spans_total 0.0" in lost
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    assert {span.trace_id for span in spans} == {ABOVE[3:35]}

    [agent] = collector.named("invoke_agent")
    assert (agent.service, agent.parent_id) == ("luftpause-runtime", ABOVE[36:52])
    assert agent.attributes["gen_ai.conversation.id"] == run.handle
    assert agent.attributes["luftpause.state"] == "Completed"

    chats = collector.named("chat fake-1b")
    assert [span.parent_id for span in chats] == [agent.span_id] * 2
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in chats] == [["tool_calls"], ["stop"]]
    used = [span.attributes["gen_ai.usage.input_tokens"] for span in chats]
    assert sum(used) == run.own.prompt_tokens > 0

    turns = collector.named("turn fake-1b")
    assert sorted(span.parent_id for span in turns) == sorted(span.span_id for span in chats)
    for name, service in (("admit", "luftpause-scheduler"), ("engine", "luftpause-dataplane")):
        below = collector.named(name)
        assert {span.service for span in below} == {service}
        assert sorted(span.parent_id for span in below) == sorted(span.span_id for span in turns)
        assert [span.attributes["luftpause.replica"] for span in below] == ["engine-0"] * 2
    assert all(span.attributes["luftpause.held_ms"] >= 0 for span in collector.named("admit"))

    [tool] = collector.named("execute_tool lookup")
    assert (tool.parent_id, tool.attributes["gen_ai.tool.name"]) == (agent.span_id, "lookup")
    [call] = [each for each in calls if each["tool"] == "lookup"]
    own = f"00-{tool.trace_id}-{tool.span_id}-01"
    assert own in json.dumps(call), "the tool is told its own span"
    for span in spans:
        parent = by_id.get(span.parent_id)
        # Clocks are one here, and a span is ended a moment after what it tells of.
        assert parent is None or parent.start_ns - 50_000_000 <= span.start_ns <= span.end_ns


def test_a_child_that_waits_for_its_parents_turn_shows_where_and_how_long_in_the_same_tree(
    tmp_path: pathlib.Path,
) -> None:
    with grpc_collector() as collector:
        engine = {"SPEED": "1", "REPLY_TOKENS": "200", "TOOL_CALLS": "0"}
        slow = {**collector.settings, **{f"LUFTPAUSE_ENGINE_{name}": value for name, value in engine.items()}}
        with whole(tmp_path, slow, max_in_flight=1) as services:
            request = runtime_pb2.SpawnRequest(task="parent", traceparent=ABOVE, tools=runtime_pb2.ToolNames())
            parent = services.runs.Spawn(request).handle
            services.run(parent=parent)
            services.runs.Await(runtime_pb2.AwaitRequest(handles=[parent]))
    by_id = {span.span_id: span for span in collector.spans}
    assert {span.trace_id for span in collector.spans} == {ABOVE[3:35]}

    def agent_of(span: TakenSpan) -> TakenSpan:
        return span if span.name.startswith("invoke_agent") else agent_of(by_id[span.parent_id])

    upper, lower = sorted(collector.named("invoke_agent"), key=lambda span: span.parent_id != ABOVE[36:52])
    assert (upper.parent_id, lower.parent_id) == (ABOVE[36:52], upper.span_id)
    [generating] = [span for span in collector.named("engine") if agent_of(span) is upper]
    first, *_ = [span for span in collector.named("admit") if agent_of(span) is lower]
    held_ms = first.attributes["luftpause.held_ms"]
    assert first.attributes["luftpause.replica"] == "engine-0"
    assert held_ms > 0
    assert abs((first.end_ns - first.start_ns) / 1e6 - held_ms) <= 1, "the span lasts as long as it says"
    # Clocks are one here, and a span is ended a moment after what it tells of.
    assert by_id[first.parent_id].attributes["luftpause.held_ms"] >= held_ms - 50, "the dataplane saw it wait"
    assert first.start_ns < generating.end_ns <= first.end_ns + 50_000_000, "its parent's turn had ended"


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_without_its_collector_nothing_waits_and_all_end_in_time(tmp_path: pathlib.Path, silent: bool) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        port = listening.getsockname()[1] if silent else free_ports(1)[0]
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        with whole(tmp_path, settings) as services:
            for _ in range(3):
                services.run(tools=runtime_pb2.ToolNames(names=["lookup"]))
            for service in services.services:
                began = time.monotonic()
                assert service.stop() == 0, service.text()
                assert time.monotonic() - began < STOP_S_MAX, service.name
            lines = [line for service in services.services for line in service.text().splitlines()]
    assert not [line for line in lines if "Traceback" in line]
    told = [line for line in lines if "spans_not_exported" in line]
    assert len(told) <= 3, "one line a service"

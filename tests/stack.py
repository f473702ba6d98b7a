"""The whole stack as real processes on free ports, for tests: fake engines, scheduler, dataplane.

    with running_stack(tmp_path, replicas=2) as stack:
        requests go to stack.base_url

`started` runs any one service. Everything started here is ended when its `with` block is left, and a service that does
not end cleanly fails the test with its log.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.ports import free_ports
from tests.waiting import wait_until_sync

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `settings`, and without any other luftpause setting."""
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith("LUFTPAUSE_")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **settings}


def answers(url: str, token: str | None = None) -> bool:
    """Whether `GET url` answers 2xx."""
    return fetched(url, token) is not None


def fetched(url: str, token: str | None = None) -> bytes | None:
    """The body of `GET url`, or None if it does not answer 2xx."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=2)
    try:
        connection.request("GET", parts.path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.read() if 200 <= response.status < 300 else None
    except (http.client.HTTPException, OSError):
        return None
    finally:
        connection.close()


@dataclass
class Service:
    """A started process, with all it prints in the file `log`."""

    name: str
    process: subprocess.Popen[bytes]
    log: pathlib.Path

    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")

    def stop(self) -> int:
        """Ends it with SIGTERM, then SIGKILL if it does not listen; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def kill(self) -> None:
        """Ends it as a crash would; nothing happens if it has ended."""
        self.process.kill()
        self.process.wait()


def signal_until_ended(process: subprocess.Popen[Any], first: signal.Signals, then: signal.Signals) -> int:
    """Sends `first`, then `then` again and again until `process` has ended; its exit code.

    The dangerous moment is the last one, when a process has given up its signals and still exists.
    """
    process.send_signal(first)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.002)
        process.send_signal(then)
    raise AssertionError(f"it did not end within {STOP_TIMEOUT_S:g} s")


NO_AUTHORITIES = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
"""Services in tests trust no public authority; reading those is a fifth of a service's start."""


def start(module: str, settings: Mapping[str, str], log: pathlib.Path, *arguments: str) -> Service:
    """Starts `python -m module` with `settings` as its environment. The caller ends it."""
    command = [sys.executable, "-m", module, *arguments]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, env=environment(NO_AUTHORITIES | {**settings}), cwd=log.parent, stdout=out, stderr=out
        )
    return Service(module, process, log)


def wait_healthy(service: Service, health_urls: tuple[str, ...]) -> None:
    """Waits until every one of `health_urls` answers. Raises RuntimeError with the log if the service ends instead."""

    def healthy() -> bool:
        if service.process.poll() is not None:
            raise RuntimeError(f"{service.name} ended with {service.process.returncode}: {service.text()}")
        return all(answers(url) for url in health_urls)

    wait_until_sync(healthy, START_TIMEOUT_S, f"{service.name} is healthy")


@contextlib.contextmanager
def started(module: str, settings: Mapping[str, str], log: pathlib.Path, *arguments: str) -> Iterator[Service]:
    """Runs `python -m module` while the block runs, and fails if it then does not end cleanly. See `wait_healthy`."""
    service = start(module, settings, log, *arguments)
    try:
        yield service
    finally:
        was_running = service.process.poll() is None
        code = service.stop()
    if was_running:
        assert code == 0, f"{module} ended with {code} on SIGTERM: {service.text()[-4000:]}"


@dataclass
class Stack:
    """Where the parts of a running stack are."""

    base_url: str
    """For OpenAI clients: ends in /v1."""
    status_url: str
    """The scheduler's HTTP surface."""
    scheduler_target: str
    """host:port of the scheduler's gRPC."""
    engine_urls: list[str]
    """One a replica, in the pool's order; the replicas are named engine-0, engine-1, …"""
    pool: pathlib.Path
    services: dict[str, Service] = field(default_factory=dict)
    """By module name."""


@contextlib.contextmanager
def running_stack(
    folder: pathlib.Path,
    replicas: int = 2,
    settings: Mapping[str, str] | None = None,
    engines: tuple[str, ...] = (),
    dataplane_arguments: tuple[str, ...] = (),
    *,
    classifier: bool = False,
    max_in_flight: int | None = None,
) -> Iterator[Stack]:
    """Runs fake engines, scheduler and dataplane while the block runs; their logs are in `folder`.

    With `classifier`, a further engine is the one-shot replica of that name. `max_in_flight` is every replica's own.
    `settings` are more environment variables, seen by all three. `engines` are URLs of engines that run already: then
    no fake ones are started.
    """
    ports = free_ports(3 + replicas + classifier)
    grpc_port, status_port, dataplane_port, *engine_ports = ports
    engine_urls = list(engines) or [f"http://127.0.0.1:{port}" for port in engine_ports]
    pool = folder / "pool.toml"
    classifier_url = engine_urls.pop() if classifier else ""
    limit = "" if max_in_flight is None else f"max_in_flight = {max_in_flight}\n"
    pool.write_text(
        "".join(f'[[replica]]\nname = "engine-{n}"\nurl = "{url}"\n{limit}' for n, url in enumerate(engine_urls))
    )
    if classifier:
        with pool.open("a") as file:
            file.write(f'[[replica]]\nname = "classifier"\nurl = "{classifier_url}"\nkind = "one-shot"\n')
    shared = {
        "LUFTPAUSE_POOL": str(pool),
        "LUFTPAUSE_STATE": str(folder / "state"),
        "LUFTPAUSE_ENGINE_PORTS": ",".join(map(str, engine_ports)),
        "LUFTPAUSE_SCHEDULER_PORT": str(grpc_port),
        "LUFTPAUSE_SCHEDULER_STATUS_PORT": str(status_port),
        "LUFTPAUSE_DATAPLANE_PORT": str(dataplane_port),
        "LUFTPAUSE_DATAPLANE_SCHEDULER": f"127.0.0.1:{grpc_port}",
        **(settings or {}),
    }
    stack = Stack(
        base_url=f"http://127.0.0.1:{dataplane_port}/v1",
        status_url=f"http://127.0.0.1:{status_port}",
        scheduler_target=f"127.0.0.1:{grpc_port}",
        engine_urls=engine_urls,
        pool=pool,
    )
    parts: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
        ("scheduler", (f"{stack.status_url}/health",), ()),
        ("dataplane", (f"http://127.0.0.1:{dataplane_port}/health",), dataplane_arguments),
    ]
    if not engines:
        parts.insert(0, ("fakes.engine", tuple(f"{url}/health" for url in engine_urls), ()))
    with contextlib.ExitStack() as opened:
        for module, _, arguments in parts:
            log = folder / f"{module}.log"
            stack.services[module] = opened.enter_context(started(module, shared, log, *arguments))
        for module, health_urls, _ in parts:
            wait_healthy(stack.services[module], health_urls)
        if not engines:
            _wait_until_all_serve(stack, replicas + classifier, shared.get("LUFTPAUSE_TOKEN"))
        yield stack


def _wait_until_all_serve(stack: Stack, count: int, token: str | None) -> None:
    """The scheduler may have probed an engine before it listened, and learns its models two seconds later."""

    def all_serve() -> bool:
        replicas = json.loads(fetched(f"{stack.status_url}/status", token) or "{}").get("replicas", [])
        return len(replicas) == count and all(each["healthy"] and each["models"] for each in replicas)

    wait_until_sync(all_serve, START_TIMEOUT_S, "every engine's models are known")

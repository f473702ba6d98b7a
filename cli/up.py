"""`up`: starts the services of one machine and watches them. `supervisor` does the watching, `services` is the table.

Everything that can be wrong with the call is found before the first service is started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from cli import options, ports, processes, replicas, seen, services, state, supervisor, tool_servers, web
from common.model_list import read_models
from common.pool import PoolError

_OTHER_UP_WITHIN_S = supervisor.HEALTHY_WITHIN_S + 10.0
_LOOK_INTERVAL_S = 0.2
_ENGINES = "cli.up.engines"


class Command(TyperCommand):
    """Keeps the order of --engine and --engine-key-env, which belong together."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the base class; the pairs are in `ctx.meta`."""
        try:
            ctx.meta[_ENGINES] = replicas.pair_keys(args)
        except replicas.EngineError as error:
            raise typer.BadParameter(str(error), ctx=ctx) from None
        return super().parse_args(ctx, args)


def _port(what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar="PORT", min=1, max=65535, help=what)
    return option


def up(
    ctx: typer.Context,
    *,
    detach: Annotated[bool, typer.Option("--detach", help="Return once all is healthy; logs go to DIR/logs.")] = False,
    _engine: Annotated[
        list[str],
        typer.Option("--engine", metavar="URL", help="An engine to use, in place of the fake ones; repeat it."),
    ] = [],  # noqa: B006 - typer copies it
    _engine_key_env: Annotated[
        list[str],
        typer.Option(
            "--engine-key-env", metavar="NAME", help="Environment variable with the API key of the --engine before it."
        ),
    ] = [],  # noqa: B006
    pool: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="FILE", envvar="LUFTPAUSE_POOL", help="Pool file (TOML) that describes the engines."),
    ] = None,
    only: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Start these alone, with commas between: {', '.join(services.NAMES)}.")
    ] = "",
    workers: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="Dataplane processes on its port.")] = 1,
    state_folder: options.State = options.DEFAULT_STATE,
    dataplane_port: Annotated[int, _port("HTTP port of the dataplane.")] = 8080,
    scheduler_port: Annotated[int, _port("gRPC port of the scheduler.")] = 5000,
    status_port: Annotated[int, _port("HTTP port of the scheduler's status.")] = 5001,
    runtime_port: Annotated[int, _port("HTTP port of the runtime: MCP and status.")] = 7000,
    runtime_grpc_port: Annotated[int, _port("gRPC port of the runtime.")] = 7001,
    engine_port: Annotated[int, _port("Port of the first fake engine; the other and the classifier follow.")] = 9001,
    tools_port: Annotated[int, _port("Port of the fake tool server.")] = 9100,
) -> None:
    """Start luftpause on this machine, and stop it on Ctrl-C.

    Without --engine and --pool it starts two fake engines and a fake classifier, and without LUFTPAUSE_RUNTIME_TOOLS a
    fake tool server. Where it is up already, it says so and exits 0; the options of that call change nothing, and what
    has ended of a detached instance is started again as it was. It exits 1 if a service ends by itself.
    """
    engines: list[replicas.Engine] = ctx.meta[_ENGINES]
    _check_environment()
    if engines and pool:
        options.misused("--engine and --pool (or LUFTPAUSE_POOL) exclude each other; name the engines in the pool file")
    chosen = services.Ports(
        dataplane=dataplane_port,
        scheduler=scheduler_port,
        status=status_port,
        runtime=runtime_port,
        runtime_grpc=runtime_grpc_port,
        engine=engine_port,
        tools=tools_port,
    )
    names = _names(only, engines_are_real=bool(engines or pool))
    wanted = _wanted(names, chosen, workers)
    fakes = [*map(replicas.Engine, chosen.engine_urls), replicas.Engine(chosen.classifier_url, is_classifier=True)]
    named = engines or fakes

    def settings() -> dict[str, str]:
        file = replicas.prepare(state_folder, pool, named, check=bool(engines or pool))
        shared = services.shared_settings(str(state_folder), str(file))
        return shared | _tools_settings(state_folder, chosen) if "tools" in names else shared

    try:
        _bring_up(state_folder, wanted, chosen, settings, detach=detach)
    except replicas.EngineUrlError as error:
        options.misused(str(error))
    except (PoolError, replicas.EngineError, state.StateError, supervisor.ServiceError) as error:
        options.fail(str(error))


def _bring_up(
    folder: pathlib.Path,
    wanted: list[services.Service],
    chosen: services.Ports,
    settings: Callable[[], dict[str, str]],
    *,
    detach: bool,
) -> None:
    """Starts what is wanted, unless it is up already. Raises what `_run` and `settings` raise, and StateError."""
    state.create(folder)
    with _sole_up(folder) as running:
        if running is not None:
            typer.echo(f"luftpause is up already (state {folder}); {state.command('down', folder)} ends it")
            typer.echo(_addresses(running))
            return
        state.check_room(folder)
        faults = ports.taken(wanted) + ports.missing(wanted, chosen)
        if faults:
            options.fail("\n".join(faults))
        _run(folder, wanted, chosen, settings(), detach=detach)


def _check_environment() -> None:
    """Refuses variables that `up` sets itself or has no use for, and a token that no header can carry."""
    options.token()
    for name, value in os.environ.items():
        option = services.OPTIONS.get(name.upper())
        if option and value:
            options.misused(f"{name} is set, but up sets it itself; unset it and use {option}")
        if name.upper() in services.NOT_ON_LOOPBACK and value:
            options.misused(f"{name} is set, but what up starts listens on loopback, in plain; unset it")


def _tools_settings(folder: pathlib.Path, chosen: services.Ports) -> dict[str, str]:
    """Lets the runtime find the fake tool server."""
    path = folder / "tools.toml"
    path.write_text(services.tools_text(chosen))
    return {"LUFTPAUSE_RUNTIME_TOOLS": str(path)}


def _names(only: str, *, engines_are_real: bool) -> list[str]:
    """The services to start: those named, else all but the fakes of what is real."""
    real = ["engines"] if engines_are_real else []
    if os.environ.get("LUFTPAUSE_RUNTIME_TOOLS"):
        real.append("tools")
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in services.NAMES]
    if unknown:
        options.misused(f"--only: no service '{unknown[0]}'; there are {', '.join(services.NAMES)}")
    return names or [name for name in services.NAMES if name not in real]


def _wanted(names: list[str], chosen: services.Ports, workers: int) -> list[services.Service]:
    """The services of these names; their ports exist and are different."""
    entries = services.table(chosen, workers)
    wanted = [entries[name] for name in services.NAMES if name in names]
    fault = ports.misuse(wanted)
    if fault:
        options.misused(fault)
    return wanted


@contextlib.contextmanager
def _sole_up(folder: pathlib.Path) -> Iterator[state.Instance | None]:
    """Yields None while this is the only `up` of `folder` and nothing is up, else what is up.

    Waits for another `up` that is starting. Raises what `_start_again` raises.
    """
    deadline = time.monotonic() + _OTHER_UP_WITHIN_S
    while True:
        with state.locked(folder) as is_ours:
            instance = state.read(folder)
            if not is_ours and instance is not None and instance.ready:
                yield instance
                return
            if is_ours:
                yield _still_up(folder, instance)
                return
        if time.monotonic() > deadline:
            raise state.StateError(f"another ./luftpause up has been starting in {folder} for too long")
        time.sleep(_LOOK_INTERVAL_S)


def _still_up(folder: pathlib.Path, instance: state.Instance | None) -> state.Instance | None:
    """`instance` if it is detached, made whole. What a killed `up` has left is ended, and its file removed."""
    if instance is None:
        return None
    now = processes.snapshot()
    running = [s for s in instance.services if processes.is_running(s.process, now)]
    if instance.supervisor is None and running:
        ended = [s for s in instance.services if s not in running]
        return _start_again(folder, instance, ended) if ended else instance
    processes.end(instance.processes())
    state.remove(folder)
    return None


def _start_again(folder: pathlib.Path, instance: state.Instance, ended: list[state.ServiceUp]) -> state.Instance:
    """`instance` once its services that have `ended` are started as they were. Raises ServiceError, and ends them then.

    What `up` did not set itself, tokens and keys among it, is taken from the environment of this call.
    """
    processes.end(each.process for each in ended)  # a child that outlived its service may hold the port
    table = services.table(services.Ports(), workers=1)
    watching = supervisor.Supervisor({}, folder / "logs")
    try:
        for each in ended:
            known = table[each.process.name]
            watching.start(dataclasses.replace(known, ports=(), health_urls=each.health_urls, settings=each.settings))
            started = {up.process.name: up for _, up in watching.recorded}
            whole = tuple(started.get(s.process.name, s) for s in instance.services)
            instance = dataclasses.replace(instance, services=whole)
            state.write(folder, instance)
        watching.wait_healthy()
        whole_again = instance
        watching.wait_until_none(lambda: seen.unseen(whole_again))
    except supervisor.Stopped:
        watching.end()
        options.fail("stopped before all was healthy")
    except BaseException:
        watching.end()
        raise
    watching.detach()
    _say(f"started again: {', '.join(each.process.name for each in ended)}")
    return instance


def _run(
    folder: pathlib.Path,
    wanted: list[services.Service],
    chosen: services.Ports,
    settings: dict[str, str],
    *,
    detach: bool,
) -> None:
    """Starts `wanted` and stays until the end, or until all are healthy with `detach`. Raises ServiceError."""
    watching = supervisor.Supervisor(settings, folder / "logs" if detach else None)
    was_healthy = False
    try:
        for service in wanted:
            watching.start(service)
            state.write(folder, _instance(watching, chosen, ready=False))
        watching.wait_healthy()
        instance = _instance(watching, chosen, ready=True, detached=detach)
        watching.wait_until_none(lambda: seen.unseen(instance))
        was_healthy = True
        if detach:
            watching.detach()
        state.write(folder, instance)
        typer.echo(
            f"luftpause {instance.version} is up\n{_addresses(instance)}\n{_to_try(instance, folder, detach=detach)}"
        )
        for fault in tool_servers.faults(tool_servers.told(instance)):
            _say(fault)
        if detach:
            return
        watching.watch()
    except supervisor.Stopped:
        _say("stopping")
    except BaseException:
        _end(folder, watching)
        raise
    _end(folder, watching)
    if not was_healthy:
        options.fail("stopped before all was healthy")


def _end(folder: pathlib.Path, watching: supervisor.Supervisor) -> None:
    for name in watching.end():
        _say(f"{name} did not end within {processes.PATIENCE_S:.0f} s and was killed")
    state.remove(folder)


def _say(text: str) -> None:
    # Whoever read our output may be the reason for the end.
    with contextlib.suppress(OSError):
        typer.echo(f"luftpause: {text}", err=True)


def _instance(
    watching: supervisor.Supervisor, chosen: services.Ports, *, ready: bool, detached: bool = False
) -> state.Instance:
    started = watching.recorded
    return state.Instance(
        version=state.version(),
        ready=ready,
        supervisor=None if detached else watching.itself,
        services=tuple(up for _, up in started),
        ports={flag: port for service, _ in started for flag, port in reversed(service.ports)},
        dataplane_url=chosen.dataplane_url,
        status_url=chosen.status_url,
        scheduler_target=chosen.scheduler_target,
    )


def _addresses(instance: state.Instance) -> str:
    started = {service.process.name for service in instance.services}
    rows = [
        ("dataplane", "dataplane", f"{instance.dataplane_url}/v1  (the base_url of a client)"),
        ("scheduler", "scheduler", f"{instance.scheduler_target}  (gRPC)"),
        ("scheduler", "status", f"{instance.status_url}/status"),
        ("scheduler", "page", f"{instance.status_url}/  (the same for people)"),
        ("runtime", "runtime", f"{_mcp_url(instance, '--runtime-port')}  (an MCP server)"),
        ("tools", "tools", f"{_mcp_url(instance, '--tools-port')}  (a fake MCP tool server)"),
    ]
    labels = ["engine"] * services.FAKE_ENGINES + ["classifier"]
    rows += [
        ("engines", label, url.removesuffix("/health"))
        for service in instance.services
        if service.process.name == "engines"
        for label, url in zip(labels, service.health_urls, strict=False)
    ]
    return "\n".join(f"  {label:<10} {value}" for name, label, value in rows if name in started)


def _mcp_url(instance: state.Instance, option: str) -> str:
    return f"http://{services.HOST}:{instance.ports.get(option)}/mcp"


def _to_try(instance: state.Instance, folder: pathlib.Path, *, detach: bool) -> str:
    started = {service.process.name for service in instance.services}
    header = '"Authorization: Bearer $LUFTPAUSE_TOKEN"' if options.token() else ""
    lines = ["try", f"  {state.command('status', folder)}"]
    model = _a_model(instance.dataplane_url) if "dataplane" in started else None
    if model:
        body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]})
        shown = f"-H {header} " if header else ""
        url = f"{instance.dataplane_url}/v1/chat/completions"
        lines.append(f"  curl -N -i {url} {shown}-H 'content-type: application/json' -d {shlex.quote(body)}")
        lines.append(f"  {state.command('load --agents 4 --duration-s 20', folder)}")
    if "runtime" in started:
        shown = f" --header {header}" if header else ""
        url = _mcp_url(instance, "--runtime-port")
        lines.append(f"  claude mcp add --transport http luftpause {url}{shown}")
    return "\n".join([*lines, f"end it with {state.command('down', folder) if detach else 'Ctrl-C'}"])


def _a_model(dataplane_url: str) -> str | None:
    """A model that the pool serves, if one is known."""
    answer = web.get(f"{dataplane_url}/v1/models", options.token())
    return next(iter(read_models(answer.body) or ()), None)

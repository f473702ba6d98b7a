"""Writes docs/reference.md from the code: settings, commands, pool file, metrics. `--check` fails if it is stale."""

from __future__ import annotations

import argparse
import ast
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, cast

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Run as a file, it finds the checkout's packages all the same.
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402
from pydantic.fields import FieldInfo  # noqa: E402

from cli.app import app  # noqa: E402
from common.config import ServiceConfig  # noqa: E402
from common.grants import CLASSES  # noqa: E402
from dataplane.config import DataplaneConfig  # noqa: E402
from dataplane.exposition import expose  # noqa: E402
from dataplane.metrics import Metrics  # noqa: E402
from fakes.engine.config import EngineConfig  # noqa: E402
from fakes.provider.config import ProviderConfig  # noqa: E402
from fakes.toolserver import ToolServerConfig  # noqa: E402
from runtime import exposition as runtime_exposition  # noqa: E402
from runtime.config import RuntimeConfig  # noqa: E402
from runtime.mcp_server import Surface, tools_of  # noqa: E402
from runtime.metrics import Metrics as RuntimeMetrics  # noqa: E402
from runtime.wire import field_of  # noqa: E402
from scheduler.config import SchedulerConfig  # noqa: E402
from scheduler.exposition import render  # noqa: E402
from scheduler.summary import Summary  # noqa: E402
from scheduler.tally import Tally  # noqa: E402

PATH = ROOT / "docs" / "reference.md"
CONFIGS = (
    ("Scheduler", SchedulerConfig),
    ("Dataplane", DataplaneConfig),
    ("Runtime", RuntimeConfig),
    ("Fake engine", EngineConfig),
    ("Fake hosted provider", ProviderConfig),
    ("Fake tool server", ToolServerConfig),
)
HEAD = """# Reference

Written by `tools/gen_reference.py` from the code; what it means is in the [guide](guide.md) and in
[operations](operations.md).
"""


def reference() -> str:
    """The document."""
    parts = [HEAD, *settings(), *command_line(), *pool_file(), *tokens_file(), *tools_file(), *mcp_tools(), *metrics()]
    return "\n".join(parts).rstrip() + "\n"


def table(*rows: tuple[str, ...]) -> str:
    """A Markdown table; the first row is its head."""
    escaped = [tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def settings() -> Iterator[str]:
    """The settings of every service."""
    yield (
        "## Settings\n\nEach is an environment variable; an empty one counts as unset. Where a name begins with "
        "`LUFTPAUSE_` and is neither here nor in a compose file, every service and command ends with the nearest one, "
        "so name variables of your own otherwise.\n"
    )
    yield "### Of all services\n"
    shared = ServiceConfig.model_fields
    yield _fields(ServiceConfig, shared)
    for title, config in CONFIGS:
        own = {name: field for name, field in config.model_fields.items() if name not in shared}
        yield f"### {title}\n"
        yield _fields(config, own)


def _fields(config: type[ServiceConfig], fields: dict[str, FieldInfo]) -> str:
    rows = [
        (f"`{config.variable(name)}`", _default(field.default), field.description or "")
        for name, field in fields.items()
    ]
    return table(("variable", "default", "what it is"), *rows)


def _default(value: Any) -> str:
    if value is None or value is False or value in ("", (), []):
        return "unset"
    if value is True:
        return "set"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    return f"`{value}`"


def command_line() -> Iterator[str]:
    """Every command and its options."""
    yield "## Command line\n"
    root = typer.main.get_command(app)
    yield from _commands("./luftpause", root)


def _commands(path: str, command: Any) -> Iterator[str]:
    context = typer.Context(command, info_name=path)
    if not hasattr(command, "list_commands"):
        yield from _command(path, command)
        return
    if command.invoke_without_command:
        yield from _command(path, command)
    for name in command.list_commands(context):
        yield from _commands(f"{path} {name}", command.get_command(context, name))


def _command(path: str, command: Any) -> Iterator[str]:
    yield f"### `{path}`\n\n{' '.join((command.help or '').split())}\n"
    rows = [_option(param) for param in command.params if param.name != "help"]
    if rows:
        yield table(("option", "default", "what it is"), *rows)


def _option(param: Any) -> tuple[str, str, str]:
    if param.param_type_name == "argument":
        name = param.metavar or param.name.upper()
        return (f"`{name}`", "needed", param.help or "") if param.required else (f"`{name}…`", "none", param.help or "")
    default = param.show_default if isinstance(param.show_default, str) else _default(param.default)
    default = "needed" if param.required else default
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    metavar = f" `{param.metavar}`" if param.metavar else ""
    environment = f" Environment: `{param.envvar}`." if param.envvar else ""
    return names + metavar, default, (param.help or "") + environment


def pool_file() -> Iterator[str]:
    """The keys of a replica."""
    yield "## Pool file\n\nTOML, one `[[replica]]` table for each. An unknown key is an error that names its line.\n"
    yield _keys("common/pool.py", "Replica")


def tokens_file() -> Iterator[str]:
    """The keys of a token."""
    yield "## Tokens file\n\nTOML, one `[[token]]` table for each. An unknown key is an error that names its line.\n"
    yield _keys("common/tokens.py", "Token")


def tools_file() -> Iterator[str]:
    """The keys of a tool server."""
    yield (
        "## Tools file\n\nNamed by `LUFTPAUSE_RUNTIME_TOOLS`. TOML, one `[[server]]` table for each MCP server, with "
        "either `command` or `url`. An unknown key is an error that names its line.\n"
    )
    yield _keys("runtime/tool_config.py", "Server", but=("folder",))


def _keys(module: str, record: str, but: tuple[str, ...] = ()) -> str:
    """The keys of a table in a file, from the record that they fill; `but` are fields that are no keys."""
    tree = ast.parse((ROOT / module).read_text())
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == record]
    rows = []
    for field, text in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            default = "needed" if field.value is None else f"`{_toml(_value(field.value))}`"
            name = ast.unparse(field.target)
            if name in but:
                continue
            rows.append((f"`{name}`", default.replace("`unset`", "unset"), " ".join(str(text.value.value).split())))
    return table(("key", "default", "what it is"), *rows)


def _value(default: ast.expr) -> object:
    """A default that stands there, or is a constant with a name; made anew for each record, it is an empty table."""
    if isinstance(default, ast.Call):
        return {}
    return {"CLASSES": CLASSES}[default.id] if isinstance(default, ast.Name) else ast.literal_eval(default)


def _toml(value: object) -> str:
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return str(value)


def mcp_tools() -> Iterator[str]:
    """The arguments of the runtime's MCP tools, with their fields in gRPC."""
    yield (
        "## Arguments of the MCP tools\n\nThe gRPC service `luftpause.v1.Runs` "
        "([runtime.proto](../protos/runtime.proto)) takes the same in its requests, by the names of the column gRPC; "
        "its other methods are described there. `run` has the arguments of `spawn`.\n"
    )
    nobody = cast("Any", None)  # it is described, not called
    for tool in tools_of(Surface(nobody, nobody)):
        properties = tool.parameters["properties"]
        if not properties or tool.name == "run":
            continue
        needed = tool.parameters.get("required", ())
        rows = [
            (
                f"`{name}`",
                _json_type(schema),
                "needed" if name in needed else f"`{json.dumps(schema['default'])}`".replace("`null`", "unset"),
                f"`{field_of(name)}`",
                schema["description"],
            )
            for name, schema in properties.items()
        ]
        yield f"### `{tool.name}`\n\n{tool.description}\n"
        yield table(("argument", "type", "default", "gRPC", "what it is"), *rows)


def _json_type(schema: dict[str, Any]) -> str:
    """The type of an argument in a word or two."""
    if "anyOf" in schema:
        return next(_json_type(each) for each in schema["anyOf"] if each.get("type") != "null")
    return f"{_json_type(schema['items'])}s" if schema["type"] == "array" else str(schema["type"])


def metrics() -> Iterator[str]:
    """The Prometheus metrics of the services."""
    gauges = dict.fromkeys(("held", "in_flight", "runs", "connections", "scheduler_connected", "tasks"), 0)
    yield "## Metrics\n\n`GET /metrics` in Prometheus' text format, open without a token.\n"
    for title, text in (
        ("Scheduler, on its status port", render(Summary((), (), ()), Tally())),
        ("Dataplane, summed over its workers", expose(Metrics().snapshot(**gauges))),
        ("Runtime", runtime_exposition.render(RuntimeMetrics(), (), (), writable=True, spans_lost=0, tasks=0)),
    ):
        said = [line.split(" ", 3)[1:] for line in text.decode().splitlines() if line.startswith("# ")]
        types = {name: rest for kind, name, rest in said if kind == "TYPE"}
        rows = [(f"`{name}`", types[name], rest) for kind, name, rest in said if kind == "HELP"]
        yield f"### {title}\n"
        yield table(("name", "type", "what it is"), *rows)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is committed, write nothing")
    text = reference()
    if not parser.parse_args().check:
        PATH.write_text(text, encoding="utf-8")
    elif not PATH.exists() or PATH.read_text(encoding="utf-8") != text:
        sys.exit("docs/reference.md is stale, run tools/gen_reference.py")


if __name__ == "__main__":
    main()

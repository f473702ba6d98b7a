"""The arms of a comparison: ways from agents to engines, each a few lines. Pure. `processes` starts them.

A command may name `{port}` (where it must listen, on loopback), `{port2}` and `{port3}` (further free ones),
`{engines}` (their URLs with spaces between), `{engine_options}` (each with --engine before it), `{servers}` (as an
nginx upstream lists them), `{folder}` (its own, empty) and `{python}`.
"""

from __future__ import annotations

import json
import shlex
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

KNOWN = ("router", "round-robin", "nginx", "smg", "vllm-router", "luftpause")
"""What `named` knows; peers also with a policy, smg:POLICY and vllm-router:POLICY. docs/benchmarks.md explains them."""


class ArmError(Exception):
    """An arm cannot be had; the text says which and why in one line."""


def answers(_body: bytes, _engines: int) -> bool:
    """Any 2xx is good enough."""
    return True


def workers_healthy(body: bytes, engines: int) -> bool:
    """Whether a list of workers, as SMG and vllm-router tell it, has all engines, healthy."""
    try:
        workers = json.loads(body)["workers"]
        return sum(bool(worker["is_healthy"]) for worker in workers) == engines
    except (ValueError, LookupError, TypeError):
        return False


def replicas_serve(body: bytes, engines: int) -> bool:
    """Whether a scheduler's status has all engines healthy, their models known."""
    try:
        replicas = json.loads(body)["replicas"]
        return sum(bool(replica["healthy"] and replica["models"]) for replica in replicas) == engines
    except (ValueError, LookupError, TypeError):
        return False


@dataclass(frozen=True, slots=True)
class Arm:
    """One way from agents to engines."""

    name: str
    command: str
    """What is started. Empty: it runs already, at `url`."""
    config: str = ""
    """Text of the file `{folder}/config`, where it wants one; names are filled in here too."""
    url: str = "http://127.0.0.1:{port}"
    """Its origin; `/v1` follows."""
    ready_url: str = "http://127.0.0.1:{port}/v1/models"
    """Answers 2xx, with a body that `is_ready` accepts, once it has found all engines."""
    is_ready: Callable[[bytes, int], bool] = answers
    """Reads that body; the second argument is the number of engines."""
    session_header: str = ""
    """The header by which it knows which requests belong together, besides x-luftpause-run-id."""
    ends_runs: bool = False
    """Whether it wants to be told the end of a run."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an arm runs: values for the names in its texts."""

    ports: tuple[int, int, int]
    engines: tuple[str, ...]
    folder: str
    python: str

    def words(self, command: str) -> list[str]:
        """The words of a command. Raises ArmError where it has a name in braces that is not known."""
        return shlex.split(self.fill(command))

    def fill(self, text: str) -> str:
        """`text` with the names in it filled in. Raises ArmError."""
        hosts = (urllib.parse.urlsplit(url).netloc for url in self.engines)
        values = {
            "port": self.ports[0],
            "port2": self.ports[1],
            "port3": self.ports[2],
            "engines": shlex.join(self.engines),
            "engine_options": " ".join(f"--engine {shlex.quote(url)}" for url in self.engines),
            "servers": " ".join(f"server {host} max_fails=0;" for host in hosts),
            "folder": shlex.quote(self.folder),
            "python": shlex.quote(self.python),
        }
        try:
            return text.format_map(values)
        except (LookupError, ValueError) as error:
            known = ", ".join(f"{{{name}}}" for name in values)
            raise ArmError(f"'{text}': {error} is none of {known}") from None


LUFTPAUSE = Arm(
    "luftpause",
    "{python} -P -m cli up --only scheduler,dataplane --state {folder}/state --dataplane-port {port} "
    "--scheduler-port {port2} --status-port {port3} {engine_options}",
    ready_url="http://127.0.0.1:{port3}/status",
    is_ready=replicas_serve,
    ends_runs=True,
)
_PLAIN = "{{python}} -P -m loadgen.compare.router --policy {policy} --port {{port}} {{engines}}"
ROUTER = Arm("router", _PLAIN.format(policy="least-connections"))
ROUND_ROBIN = Arm("round-robin", _PLAIN.format(policy="round-robin"))
# Its usual folders belong to root.
_NGINX = """daemon off;
master_process off;
pid {folder}/nginx.pid;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_max_body_size 1g;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  scgi_temp_path {folder}/scgi;
  uwsgi_temp_path {folder}/uwsgi;
  upstream engines {{ least_conn; {servers} keepalive 256; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 3600s;
    }}
  }}
}}
"""
_SMG = (
    "{smg} launch --host 127.0.0.1 --port {{port}} --log-level warn --policy {policy} --worker-urls {{engines}} "
    "--routing-key-headers x-luftpause-run-id --prometheus-host 127.0.0.1 --prometheus-port {{port2}} "
    "--worker-startup-check-interval 1"
)
_VLLM_ROUTER = (
    "{vllm_router} --host 127.0.0.1 --port {{port}} --log-level error {options} --worker-urls {{engines}} "
    "--prometheus-host 127.0.0.1 --prometheus-port {{port2}} --worker-startup-check-interval 1"
)
_WORKERS_URL = "http://127.0.0.1:{port}/workers"


def named(name: str, find: Callable[[str], str | None]) -> Arm:
    """The arm of that name. `find` gives the path of a command, or None. Raises ArmError."""
    kind, _, policy = name.partition(":")
    if kind in ("smg", "vllm-router"):
        return _peer(name, kind, policy, find)
    if name == "nginx":
        return Arm(name, f"{shlex.quote(_found('nginx', find))} -e stderr -c {{folder}}/config", config=_NGINX)
    for arm in (LUFTPAUSE, ROUTER, ROUND_ROBIN):
        if arm.name == name:
            return arm
    raise ArmError(f"no arm '{name}'; there are {', '.join(KNOWN)}, and those of --arm")


def _peer(name: str, kind: str, policy: str, find: Callable[[str], str | None]) -> Arm:
    executable = shlex.quote(_found(kind, find))
    if kind == "smg":
        command = _SMG.format(smg=executable, policy=shlex.quote(policy or "cache_aware"))
        return Arm(name, command, ready_url=_WORKERS_URL, is_ready=workers_healthy)
    options = f"--policy {shlex.quote(policy or 'consistent_hash')}"
    if policy == "program-scheduling":
        options = "--enable-program-scheduling --policy sticky_least_loaded"
    command = _VLLM_ROUTER.format(vllm_router=executable, options=options)
    return Arm(name, command, ready_url=_WORKERS_URL, is_ready=workers_healthy, session_header="x-session-id")


def _found(command: str, find: Callable[[str], str | None]) -> str:
    path = find(command)
    if path is None:
        raise ArmError(f"arm {command}: no command '{command}' on the path or in --peers")
    return path


def given(text: str) -> Arm:
    """The arm of `--arm NAME=COMMAND` or `--arm NAME=URL`. Raises ArmError."""
    name, equals, what = text.partition("=")
    if not (equals and name.strip() and what.strip()):
        raise ArmError(f"--arm {text}: expected NAME=COMMAND with {{port}} and {{engines}} in it, or NAME=URL")
    if what.startswith(("http://", "https://")):
        url = what.rstrip("/").removesuffix("/v1")
        return Arm(name, "", url=url, ready_url=f"{url}/v1/models")
    if "{port}" not in what:
        raise ArmError(f"--arm {name}: the command must name {{port}}, where it is to listen")
    return Arm(name, what)

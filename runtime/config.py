"""The runtime's configuration, read once from the environment. Shared fields are in `common.config`."""

from __future__ import annotations

import pathlib

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.config import ServiceConfig


class RuntimeConfig(ServiceConfig):
    """`LUFTPAUSE_RUNTIME_<FIELD>`, and what `ServiceConfig` shares."""

    model_config = SettingsConfigDict(env_prefix="LUFTPAUSE_RUNTIME_")

    host: str = Field(default="127.0.0.1", description="Address that HTTP and gRPC listen on")
    port: int = Field(default=7000, ge=0, le=65535, description="Port of HTTP: MCP, status and health; 0: any free one")
    grpc_port: int = Field(default=7001, ge=0, le=65535, description="Port of gRPC; 0: any free one")
    hosts: tuple[str, ...] = Field(
        default=(),
        description='Host names by which HTTP is reached, beside loopback, as JSON: `["runtime.example"]`; unset: any '
        "where a token is asked for and it listens on more than loopback",
    )
    origins: tuple[str, ...] = Field(
        default=(),
        description='Origins of web pages that may use HTTP, beside those of its hosts, as JSON: `["https://a.example"]`',
    )
    dataplane: str = Field(default="http://127.0.0.1:8080", description="Base URL of the dataplane, without /v1")
    model: str | None = Field(
        default=None, description="Model of runs that name none; unset: the first that the dataplane lists"
    )
    tools: pathlib.Path | None = Field(
        default=None, description="File of the MCP servers whose tools runs may call (TOML); unset: no tools"
    )
    tools_wait_s: float = Field(
        default=60.0,
        ge=0,
        description="Longest time that a run waits for a tool server that is not connected, in seconds, counted from "
        "its loss, or from the start of a run that names its tools if that was later; then it goes on without",
    )
    session_idle_s: float = Field(
        default=1800.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which an MCP session (until 2025-11-25) ends that has no request in flight and no "
        "open stream; its client gets a 404 then, and initialises anew",
    )
    sessions_max: int = Field(
        default=1000,
        ge=1,
        description="Most MCP sessions of one token, or of all clients where no token is asked for; for a further one "
        "the idlest ends, and where none is idle it is refused (503)",
    )
    keep_s: float = Field(
        default=30 * 86_400.0,
        gt=0,
        description="Seconds that ended runs are kept, counted from the last end in their tree",
    )

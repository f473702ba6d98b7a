"""The scheduler's configuration, read once from the environment. Shared fields are in `common.config`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.config import ServiceConfig


class SchedulerConfig(ServiceConfig):
    """`LUFTPAUSE_SCHEDULER_<FIELD>`, and what `ServiceConfig` shares."""

    model_config = SettingsConfigDict(env_prefix="LUFTPAUSE_SCHEDULER_")

    host: str = Field(default="127.0.0.1", description="Address that gRPC and HTTP listen on")
    port: int = Field(default=5000, ge=0, le=65535, description="Port of gRPC; 0: any free one")
    status_port: int = Field(
        default=5001, ge=0, le=65535, description="Port of HTTP: status, metrics, health and the page; 0: any free one"
    )

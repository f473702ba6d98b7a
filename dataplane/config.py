"""The dataplane's configuration. Read once, in `__main__`; what a field means to a client is in the README."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.config import ServiceConfig


class DataplaneConfig(ServiceConfig):
    """Settings of one dataplane, shared by its workers."""

    model_config = SettingsConfigDict(env_prefix="LUFTPAUSE_DATAPLANE_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address it listens on")
    port: int = Field(default=8080, ge=0, le=65535, description="TCP port it listens on; 0: a free one")
    scheduler: str = Field(default="127.0.0.1:5000", description="host:port of the scheduler's gRPC service")
    workers: int = Field(default=1, ge=1, le=64, description="Processes that share the port")
    body_bytes_max: int = Field(default=32 * 2**20, ge=1024, description="Largest request body, in bytes (413 above)")
    header_bytes_max: int = Field(
        default=16 * 1024, ge=1024, le=60 * 1024, description="Largest request head (line and headers), in bytes (431)"
    )
    header_s: float = Field(default=10, gt=0, description="Seconds from a request's first byte to its whole head (408)")
    body_s: float = Field(default=120, gt=0, description="Seconds from a request's head to its whole body (408)")
    held_max: int = Field(
        default=10_000, ge=1, description="Most turns of one caller that wait for admission in one process (429 above)"
    )
    held_bytes_max: int = Field(
        default=2**30,
        ge=1,
        description="Bytes of the requests of one caller that wait or are being sent, in one process (429 from there)",
    )
    headers_max: int = Field(default=200, ge=1, description="Most headers of a request (431 above)")
    unread_s: float = Field(
        default=60, gt=0, description="Seconds that a client may read nothing of what waits for it before it is cut off"
    )
    keep_alive_s: float = Field(
        default=0,
        ge=0,
        description="Seconds between comments to the client of a streamed turn until its reply begins; 0: none. "
        "With the first one the answer's head, 200, is out",
    )
    idle_s: float = Field(default=75, gt=0, description="Seconds an unused client connection is kept open")

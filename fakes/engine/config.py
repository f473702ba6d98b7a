"""The engine's configuration: `LUFTPAUSE_ENGINE_*`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from common.config import Secret, ServiceConfig
from fakes.engine.errors import ApiError
from fakes.engine.faults import Fault, parse_script
from fakes.engine.latency import PROFILES, Profile
from fakes.engine.metrics import Dialect
from fakes.engine.reply import Rules

_OVERRIDES = ("kv_tokens", "block_tokens", "max_num_seqs", "token_budget", "max_model_len")


class EngineConfig(ServiceConfig):
    """One process; it serves one independent engine on each port."""

    model_config = SettingsConfigDict(env_prefix="LUFTPAUSE_ENGINE_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address to listen on")
    ports: Annotated[tuple[Annotated[int, Field(ge=0, le=65535)], ...], NoDecode] = Field(
        default=(9001,), min_length=1, description="Ports, separated by commas, an engine on each; 0: any that is free"
    )
    model: str = Field(default="fake-1b", min_length=1, description="Name of the model it serves")
    profile: str = Field(default="laptop-1b", description="Device and model simulated: " + ", ".join(PROFILES))
    kv_tokens: int | None = Field(default=None, ge=1, description="KV cache, in tokens; unset: the profile's")
    block_tokens: int | None = Field(default=None, ge=1, description="KV block, in tokens; unset: the profile's")
    max_num_seqs: int | None = Field(default=None, ge=1, description="Most running requests; unset: the profile's")
    token_budget: int | None = Field(default=None, ge=1, description="Most tokens a step; unset: the profile's")
    max_model_len: int | None = Field(
        default=None,
        ge=2,
        description="Most tokens of prompt and reply; unset: the profile's, or what the KV cache holds",
    )
    speed: float = Field(default=1.0, gt=0, description="Factor on the profile's pace; 2: steps take half the time")
    seed: int = Field(default=0, ge=-(2**63), lt=2**63, description="Seed of replies and faults")
    reply_tokens: int = Field(default=48, ge=1, description="Mean length of an answer, in tokens")
    tool_calls: int = Field(
        default=2, ge=0, description="Tool results after which a model that is offered tools answers"
    )
    labels: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("LABEL_0", "LABEL_1"), min_length=1, description="Labels of the classifier, separated by commas"
    )
    metrics: Dialect = Field(default="vllm", description="Whose metrics it shows: vllm, sglang, llamacpp or none")
    key: Secret | None = Field(default=None, description="API key that requests must show; unset: none is asked")
    faults: Annotated[tuple[Fault, ...], NoDecode] = Field(default=(), description="Faults from the start (JSON list)")

    @field_validator("ports", "labels", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    @field_validator("faults", mode="before")
    @classmethod
    def _script(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(parse_script(json.loads(value)))
        except ApiError as error:
            raise ValueError(str(error)) from None

    @field_validator("profile")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in PROFILES:
            raise ValueError(f"expected one of {', '.join(PROFILES)}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> EngineConfig:
        simulated = self.simulated
        if simulated.max_model_len > simulated.kv_tokens // simulated.block_tokens * simulated.block_tokens:
            raise ValueError(
                f"{self.variable('max_model_len')}: expected at most kv_tokens ({simulated.kv_tokens}) in whole blocks"
            )
        return self

    @property
    def simulated(self) -> Profile:
        """The profile with what is overridden."""
        profile = PROFILES[self.profile]
        given = {name: getattr(self, name) for name in _OVERRIDES if getattr(self, name) is not None}
        changed = dataclasses.replace(profile, **given)
        if self.max_model_len is not None:
            return changed
        held = changed.kv_tokens // changed.block_tokens * changed.block_tokens
        return dataclasses.replace(changed, max_model_len=min(changed.max_model_len, held))

    @property
    def rules(self) -> Rules:
        """How replies are made."""
        return Rules(self.seed, self.tool_calls, self.reply_tokens)

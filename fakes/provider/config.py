"""The simulated provider's configuration: `LUFTPAUSE_PROVIDER_*`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.config import Secret, ServiceConfig
from fakes.provider.headers import Family, RetryForm


class ProviderConfig(ServiceConfig):
    """One account at a provider."""

    model_config = SettingsConfigDict(env_prefix="LUFTPAUSE_PROVIDER_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: int = Field(default=9201, ge=0, le=65535, description="Port; 0: any that is free")
    model: str = Field(default="fake-hosted", min_length=1, description="Name of the model it serves")
    window_tokens: int = Field(default=6000, ge=1, description="Tokens that its window holds")
    window_requests: int = Field(default=30, ge=1, description="Requests that its window holds")
    period_s: float = Field(default=60.0, gt=0, description="Period of these two windows, in seconds")
    day_requests: int = Field(
        default=14400,
        ge=1,
        description="Requests that a day holds, for the family groq, which tells these instead of the window's",
    )
    fixed: bool = Field(default=False, description="Windows that are full again at once, rather than refilled slowly")
    family: Family = Field(default="openai", description="Whose headers: openai, groq, anthropic, plain or none")
    retry_after: RetryForm = Field(default="seconds", description="Form of Retry-After: seconds, date, ms or none")
    says: float = Field(default=1.0, ge=1, description="How many times its true limits it tells")
    reply_tokens: int = Field(default=70, ge=1, description="Median length of an answer, in tokens")
    token_ms: float = Field(default=10.0, ge=0, description="Time a token takes, in milliseconds")
    seed: int = Field(default=0, description="Seed of the answers' lengths")
    key: Secret | None = Field(default=None, description="API key that requests must show; unset: none is asked")

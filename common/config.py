"""One frozen configuration a service, read once from the environment; the pool file is in `pool`."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Self

from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServiceConfig(BaseSettings):
    """Base of the services' configurations.

    A subclass sets `env_prefix="LUFTPAUSE_<SERVICE>_"` and adds fields with a default and a description that names the
    unit. `read` fails on a variable with that prefix that no field has, so that a misspelt one is not silently ignored.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    token: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("token", "LUFTPAUSE_TOKEN"),
        description="Token that every client and service must show; unset: everybody is let in",
    )
    pool: pathlib.Path | None = Field(
        default=None,
        validation_alias=AliasChoices("pool", "LUFTPAUSE_POOL"),
        description="Pool file (TOML): the replicas",
    )
    state: pathlib.Path = Field(
        default=pathlib.Path(".luftpause"),
        validation_alias=AliasChoices("state", "LUFTPAUSE_STATE"),
        description="Folder for what the services keep",
    )

    @property
    def token_text(self) -> str | None:
        """The token itself, for comparing and sending; never for printing."""
        return self.token.get_secret_value() if self.token else None

    @classmethod
    def read(cls) -> Self:
        """The configuration from the environment. Ends the process with one line a fault where it is wrong."""
        prefix = cls.model_config.get("env_prefix", "")
        known = {(prefix + name).upper() for name in cls.model_fields}
        unknown = sorted(
            key for key in os.environ if prefix and key.upper().startswith(prefix) and key.upper() not in known
        )
        if unknown:
            sys.exit(f"unknown setting {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        try:
            return cls()
        except ValidationError as error:
            sys.exit("\n".join(f"setting {prefix}{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()))

"""The runtime's tool servers, as its status tells them."""

from __future__ import annotations

import json
from typing import Any

from cli import options, services, state, web


def told(instance: state.Instance) -> list[dict[str, Any]]:
    """Each with `name`, `up`, `reason` and `tools`; none where no runtime is up or it does not say."""
    port = instance.ports.get("--runtime-port")
    if port is None:
        return []
    answer = web.get(f"http://{services.HOST}:{port}/status", options.token())
    try:
        return list(json.loads(answer.body)["servers"])
    except (ValueError, LookupError, TypeError):
        return []


def faults(servers: list[dict[str, Any]]) -> list[str]:
    """A line for each that is not connected."""
    return [f"tool server '{each['name']}' is not connected: {each['reason']}" for each in servers if not each["up"]]

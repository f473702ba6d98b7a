"""Whether the services that `up` started have found each other: the scheduler its engines, the runtime its tool server.

They look for each other every few seconds, so a service that is healthy itself may not be seen yet.
"""

from __future__ import annotations

import json
import pathlib

from cli import options, services, state, tool_servers, web
from common import pool


def unseen(instance: state.Instance) -> list[str]:
    """A line for each engine and tool server of `instance` that another service of it does not know to be up. What
    does not say, as without its token, is passed over. Raises PoolError."""
    return [*_engines(instance), *_tools(instance)]


def _engines(instance: state.Instance) -> list[str]:
    files = {each.settings["LUFTPAUSE_POOL"] for each in instance.services if "LUFTPAUSE_POOL" in each.settings}
    urls = {url for each in instance.services if each.process.name == "engines" for url in each.health_urls}
    if not urls or "scheduler" not in {each.process.name for each in instance.services}:
        return []
    started = {
        replica.name
        for file in files
        for replica in pool.load(pathlib.Path(file)).replicas
        if replica.origin + replica.health_path in urls
    }
    answer = web.get(f"{instance.status_url}/status", options.token())
    try:
        told = {each["name"]: each["healthy"] for each in json.loads(answer.body)["replicas"]}
    except (ValueError, LookupError, TypeError):
        return []
    return [f"the scheduler does not see {name}" for name in sorted(started) if told.get(name) is False]


def _tools(instance: state.Instance) -> list[str]:
    if not any(each.process.name == "tools" for each in instance.services):
        return []
    return tool_servers.faults(
        [each for each in tool_servers.told(instance) if each["name"] == services.FAKE_TOOL_SERVER]
    )

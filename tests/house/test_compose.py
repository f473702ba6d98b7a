"""The compose files: they resolve, what they mount is there and right, and what they ask for is documented."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import urllib.parse
from typing import Any

import pytest
import yaml

from common import pool
from tests.stack import ROOT

ENGINES = ("ollama", "runpod", "testbed")
SIMULATED = {"engine-1", "engine-2", "classifier"}
OURS = ("scheduler", "dataplane")


def read(name: str) -> dict[str, Any]:
    """A compose file, as it is written."""
    document: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return document


def mounted_pools(services: dict[str, Any]) -> set[str]:
    """The default pool files of scheduler and dataplane."""
    volumes = [volume for name in OURS for volume in services[name]["volumes"]]
    return {match[1] for volume in volumes if (match := re.match(r"\$\{LUFTPAUSE_POOL_FILE:-([^}]+)\}", volume))}


@pytest.mark.parametrize("engines", ENGINES)
def test_other_engines_take_the_place_of_the_simulated_ones(engines: str) -> None:
    services = read(f"compose.{engines}.yaml")["services"]
    assert {name for name, service in services.items() if service.get("profiles") == ["simulated"]} == SIMULATED
    assert mounted_pools(services) == {f"./docker/pool.{engines}.toml"}
    base = set(read("compose.yaml")["services"])
    for name in services.keys() - base:
        assert "image" in services[name], f"{name} is neither new nor of compose.yaml"


@pytest.mark.parametrize("engines", ENGINES)
def test_the_pool_of_other_engines_is_right_and_names_services_that_are_there(engines: str) -> None:
    services = read(f"compose.{engines}.yaml")["services"]
    for replica in pool.load(ROOT / "docker" / f"pool.{engines}.toml").replicas:
        host = urllib.parse.urlsplit(replica.url).hostname
        assert host in services or replica.url.startswith("https://"), replica.url
        if replica.key_env:
            assert all(replica.key_env in services[name]["environment"] for name in OURS)


def test_only_loopback_is_published() -> None:
    for path in ROOT.glob("compose*.yaml"):
        for name, service in read(path.name)["services"].items():
            for port in service.get("ports", ()):
                assert port.startswith("127.0.0.1:"), f"{path.name}: {name} publishes {port}"


@pytest.mark.parametrize("engines", ENGINES)
def test_what_they_ask_for_is_documented(engines: str) -> None:
    documented = (ROOT / "docs" / "operations.md").read_text()
    name = f"compose.{engines}.yaml"
    assert name in documented
    for variable in re.findall(r"\$\{([A-Z_]+)", (ROOT / name).read_text()):
        assert variable in documented, f"{name} reads {variable}"


@pytest.mark.parametrize("engines", ENGINES)
def test_compose_resolves_them(engines: str, tmp_path: pathlib.Path) -> None:
    commands = [["docker", "compose"], ["docker-compose"]]
    compose = next((each for each in commands if shutil.which(each[0]) and _runs([*each, "version"])), None)
    if compose is None:
        pytest.skip("docker compose not installed")
    files = ["-f", "compose.yaml", "-f", f"compose.{engines}.yaml"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "RUNPOD_API_KEY": "key"}
    done = subprocess.run(
        [*compose, *files, "config"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    resolved = yaml.safe_load(done.stdout)["services"]
    mounts = [str(volume) for name in OURS for volume in resolved[name]["volumes"]]
    assert sum(f"pool.{engines}.toml" in mount for mount in mounts) == len(OURS), mounts
    assert not [mount for mount in mounts if "docker/pool.toml" in mount]


def _runs(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0

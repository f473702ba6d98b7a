"""Whether the ports that `up` needs are free, before anything is started."""

from __future__ import annotations

import socket
import sys
from collections.abc import Collection, Iterable

from cli import web
from cli.services import HOST, Ports, Service

_MACOS_PORTS = (5000, 7000)
"""Held by AirPlay Receiver."""


def misuse(services: Iterable[Service]) -> str | None:
    """One line that names the option to change, or None where the ports of `services` exist and are different."""
    wanted: dict[int, str] = {}
    for service in services:
        for flag, port in service.ports:
            if port > 65535:
                return f"{flag}: port {port} does not exist; choose a lower one"
            if port in wanted:
                return f"port {port} is wanted twice; change {flag} or {wanted[port]}"
            wanted[port] = flag
    return None


def taken(services: Iterable[Service]) -> list[str]:
    """One line for each port of `services` that is not free, with the option to change."""
    lines = []
    for service in services:
        held = [(flag, port) for flag, port in service.ports if _is_taken(port)]
        whose = _by_whom(service, [port for _, port in held])
        lines += [
            f"port {port} of {service.name} is taken{whose}; choose another one with {flag}{_macos(port)}"
            for flag, port in held
        ]
    return lines


def missing(services: Collection[Service], chosen: Ports) -> list[str]:
    """A line where what `services` cannot be without is neither among them nor up already: a dataplane is not healthy
    before it has a scheduler. All others are, by themselves."""
    names = {service.name for service in services}
    if "dataplane" not in names or "scheduler" in names or _is_taken(chosen.scheduler):
        return []
    what_to_do = "start one too (--only scheduler,dataplane), or name the port of one that is up with --scheduler-port"
    return [f"dataplane without a scheduler: none listens at {chosen.scheduler_target}; {what_to_do}"]


def _by_whom(service: Service, held: list[int]) -> str:
    """Tells of another instance where it is cheap to know: metrics, open without a token, have the service's name.

    A service's gRPC port is beside the one that tells them. The fakes tell none of their own.
    """
    mark = f"luftpause_{service.name}_".encode()
    if any(mark in web.get(f"http://{HOST}:{port}/metrics").body for port in held):
        return " by another luftpause (./luftpause down --state DIR ends it)"
    return ""


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do, so that connections which linger after the last `up` do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    # On macOS one may bind the loopback address beside a socket that listens on all of them.
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0


def _macos(port: int) -> str:
    if sys.platform == "darwin" and port in _MACOS_PORTS:
        return " (macOS itself holds 5000 and 7000, for AirPlay Receiver in the system settings)"
    return ""

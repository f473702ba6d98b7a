"""Whether the ports that `up` needs are free, before anything is started."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable

from cli import web
from cli.services import HOST, Service, is_dataplane

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
    return [
        f"port {port} of {service.name} is taken{_by_whom(service, port)}; choose another one with {flag}{_macos(port)}"
        for service in services
        for flag, port in service.ports
        if _is_taken(port)
    ]


def _by_whom(service: Service, port: int) -> str:
    """The instance there is told where it is cheap to know: a dataplane's health speaks of its scheduler."""
    if service.name != "dataplane":
        return ""
    body = web.get(f"http://{HOST}:{port}/health").body
    return " by another luftpause (./luftpause down --state DIR ends it)" if is_dataplane(body) else ""


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

"""Ports given out: free, and nobody else's for a while."""

from __future__ import annotations

import socket
import subprocess
import sys

from loadgen.ports import free_ports, free_run
from tests.stack import ROOT

TAKE = "from loadgen.ports import free_ports; print(*free_ports(100)); input()"


def test_ports_given_and_not_yet_listened_on_are_not_given_again() -> None:
    given = [*free_ports(20), *range(first := free_run(3), first + 3), *free_ports(20)]
    assert len(set(given)) == len(given)
    for port in given:
        socket.create_server(("127.0.0.1", port)).close()


def test_no_two_processes_are_given_the_same() -> None:
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    given = [*free_ports(100)]
    for taker in takers:
        assert taker.stdout
        given += map(int, taker.stdout.readline().split())
    for taker in takers:
        taker.communicate("\n", timeout=30)
    assert len(given) == 400
    assert len(set(given)) == 400


def test_what_somebody_listens_on_is_passed_over() -> None:
    first = free_run(3)
    with socket.create_server(("127.0.0.1", first + 1)):
        for _ in range(20):
            assert first + 1 not in free_ports(30)
            assert free_run(3) not in range(first - 1, first + 2)

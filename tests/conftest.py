"""Options and fixtures of all tests."""

from __future__ import annotations

import gc
import signal

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about what else the machine does than about the example.
settings.register_profile("house", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


# What a shell starts in the background ignores Ctrl-C, and under nohup a hang-up: so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--histories", type=int, default=150, help="how many histories the scheduler's core is tried on")
    parser.addoption("--fuzz-inputs", type=int, default=100, help="how many inputs each surface is tried on")
    parser.addoption("--fuzz-seed", type=int, help="play the round of inputs again that was shown with this seed")


def pytest_collection_finish() -> None:
    """What all test modules have imported stays: the collector need not look at it after each test."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file's tests left open is found at its last test, not in whichever file the collector runs next."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()

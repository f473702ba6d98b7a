"""Options and fixtures of all tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--histories", type=int, default=500, help="how many histories the scheduler's core is tried on")

"""Fixtures of the runtime's tests."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator

import pytest

from tests.runtime.rig import Rig, rig


@pytest.fixture
async def r(tmp_path: pathlib.Path) -> AsyncIterator[Rig]:
    """A runtime with its engine and scripted tools."""
    async with rig(tmp_path) as made:
        yield made

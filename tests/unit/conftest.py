"""Fixture: a clock of a client."""

from __future__ import annotations

import pytest

from tests.unit.virtual_sleep import VirtualSleep


@pytest.fixture
def virtual_sleep() -> VirtualSleep:
    return VirtualSleep()

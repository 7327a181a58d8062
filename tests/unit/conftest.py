"""Fixtures: the client over each of its transports, and a clock of a client."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.http.aiohttp_transport import AiohttpTransport
from airflow_provider_gangjobs.cluster.http.httpx_transport import HttpxTransport
from tests.unit.virtual_sleep import VirtualSleep

if TYPE_CHECKING:
    from collections.abc import Callable

    Connect = Callable[..., Client]


@pytest.fixture(params=[AiohttpTransport, HttpxTransport], ids=["aiohttp", "httpx"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Create a client with the arguments of `Client`. A test that uses this fixture runs once over each transport."""
    return partial(Client, transport=request.param)


@pytest.fixture
def virtual_sleep() -> VirtualSleep:
    return VirtualSleep()

"""Fixtures: each selected control plane, started once a session (see `targets.py`), and a namespace for each test.

`server` is what tests of the API alone take: for the sandbox it is an API server without controllers.
`namespace` is a namespace in a whole control plane, for tests of what controllers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.api_server import ApiServer, embedded, existing, fresh_namespace
from tests.conformance.builders import config_map, job, pod
from tests.conformance.namespace import Namespace
from tests.conformance.targets import NEWEST_SANDBOX, SANDBOXES, chosen, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import httpx

    from tests.conformance.targets import Target


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as slow on older sandboxes if all releases behave the same, or if the test waits long.

    Tests of Jobs and deletions, most of which wait, run on the oldest and the newest release, between which the Job
    controller has changed.
    """
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if target := parameters.get("target_name"):
            is_older_sandbox = target in SANDBOXES and target != NEWEST_SANDBOX
            is_same_in_all = "server" in getattr(item, "fixturenames", ())
            is_between = target != SANDBOXES[0] and item.path.name.startswith(("test_job_", "test_deletion_"))
            if is_older_sandbox and (is_same_in_all or is_between or item.get_closest_marker("long_wait")):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", params=chosen())
def target_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def target(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with started(target_name, tmp_path_factory.mktemp(f"{target_name}-")) as target:
        yield target


@pytest.fixture(scope="session")
def api(target: Target) -> Iterator[httpx.Client]:
    """The administrator's HTTP client."""
    with target.client() as client:
        yield client


@pytest.fixture
def namespace(target: Target, api: httpx.Client) -> Iterator[Namespace]:
    """A namespace for one test in a control plane without nodes."""
    with Namespace.opened(target, api) as namespace:
        yield namespace


@pytest.fixture
def with_accounts(target_name: str, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace in a control plane whose admission looks up the ServiceAccounts of pods."""
    with (
        started(target_name, tmp_path, service_accounts=True) as target,
        target.client() as api,
        Namespace.opened(target, api) as namespace,
    ):
        yield namespace


@pytest.fixture
async def each_release(target_name: str, request: pytest.FixtureRequest) -> AsyncIterator[ApiServer]:
    """An API server of each release, with an empty namespace."""
    if target_name.startswith("sandbox-"):
        api_server = embedded(target_name.partition("-")[2])
    else:
        api_server = existing(request.getfixturevalue("target").kubeconfig)
    async with api_server as server:
        await fresh_namespace(server)
        yield server


@pytest.fixture
def grouped(each_release: ApiServer) -> ApiServer:
    """A release that serves Workloads."""
    if each_release.release.scheduling_version is None:
        pytest.skip("serves no Workloads")
    return each_release


@pytest.fixture
def server(each_release: ApiServer) -> ApiServer:
    """An API server, for tests of behaviour that is the same in all releases."""
    return each_release


@pytest.fixture
async def stored_pod(server: ApiServer) -> str:
    """The path of a new pod `a`."""
    await server.create(server.core("pods"), pod())
    return server.core("pods", "a")


@pytest.fixture
async def stored_config_map(server: ApiServer) -> str:
    """The path of a new ConfigMap `a` without data."""
    await server.create(server.core("configmaps"), config_map())
    return server.core("configmaps", "a")


@pytest.fixture
async def stored_job(server: ApiServer) -> str:
    """The path of a new Job `a`, which is suspended."""
    await server.create(server.jobs(), job())
    return server.jobs("a")

"""One boot of each chosen control plane a session (see `targets.py`); a namespace for each test.

`world` is what tests of the API alone take: for the sandbox it is an API server without controllers.
`space` is a namespace in a whole control plane, for tests of what controllers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.space import Space
from tests.conformance.targets import NEWEST_SANDBOX, SANDBOXES, chosen, started
from tests.conformance.world import World, embedded, existing, fresh_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx

    from tests.conformance.targets import Target


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a control plane in one worker of pytest-xdist, so that each control plane starts once.

    What is the same in all releases is slow on all sandboxes but the newest.
    """
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if target := parameters.get("target_name"):
            item.add_marker(pytest.mark.xdist_group(target))
            if "world" in getattr(item, "fixturenames", ()) and target in SANDBOXES and target != NEWEST_SANDBOX:
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
def space(target: Target, api: httpx.Client) -> Iterator[Space]:
    """A namespace of the test's own in a whole control plane without nodes."""
    with Space.opened(target, api) as space:
        yield space


@pytest.fixture
async def each_release(target_name: str, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """An API server of each release, and a fresh namespace in it."""
    if target_name.startswith("sandbox-"):
        server = embedded(target_name.partition("-")[2])
    else:
        server = existing(request.getfixturevalue("target").kubeconfig)
    async with server as world:
        await fresh_namespace(world)
        yield world


@pytest.fixture
def grouped(each_release: World) -> World:
    """A release that serves Workloads."""
    if each_release.release.scheduling_version is None:
        pytest.skip("serves no Workloads")
    return each_release


@pytest.fixture
def world(each_release: World) -> World:
    """For what is the same in all releases."""
    return each_release

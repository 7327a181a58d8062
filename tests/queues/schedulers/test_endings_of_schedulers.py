"""The ways in which pods can end (docs/clusters.md), for gangs that Volcano, coscheduling and YuniKorn place.

The scenarios are played all at once, each in a namespace and on nodes of its own. Then each has its test.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.cluster.test_endings_on_real_releases import ROLE_NAMES, play_all
from tests.endings.scenarios import SCENARIOS
from tests.queues.schedulers.cluster import scheduler_tenant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.queues.schedulers.cluster import Cluster

PLACE_ROLES = ["volcano", "coscheduling"]
"""The schedulers whose gangs with roles are played: the newest release of each that places roles."""


@pytest.fixture(scope="module")
def played(cluster: Cluster) -> Mapping[str, BaseException | None]:
    """What went wrong with each scenario."""
    tenant_of = partial(scheduler_tenant, cluster.scheduler, cluster.plane)
    played = play_all(
        cluster.plane,
        [*SCENARIOS, *(ROLE_NAMES if cluster.scheduler in PLACE_ROLES else ())],
        scenarios=SCENARIOS,
        tenant_of=tenant_of,
        gang_scheduler=cluster.scheduler,
    )
    return asyncio.run(played)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_gang_of_a_scheduler_ends_as_documented(name: str, played: Mapping[str, BaseException | None]) -> None:
    if (wrong := played[name]) is not None:
        raise wrong


@pytest.mark.timeout(600)
@pytest.mark.parametrize("running_cluster", PLACE_ROLES, indirect=True)
@pytest.mark.parametrize("name", ROLE_NAMES)
def test_gang_with_roles_ends_as_documented(name: str, played: Mapping[str, BaseException | None]) -> None:
    if (wrong := played[name]) is not None:
        raise wrong

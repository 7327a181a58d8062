"""The ways in which pods can end (docs/clusters.md), for gangs in queues of the real Kueue, with the same results.

The scenarios are played all at once, each in a namespace, in a queue and on nodes of its own. Then each has its test.
Gangs with roles have a cluster of their own, with the JobSet controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.test_endings_on_real_releases import ROLE_NAMES, play_all
from tests.endings.scenarios import SCENARIOS
from tests.queues.tenants import kueue_tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue


Played = Mapping[str, BaseException | None]


def play_in_queues(kueue: Kueue, names: list[str], **defaults: Any) -> Played:
    """Return what went wrong with each scenario."""

    @contextmanager
    def tenant_of(name: str) -> Iterator[Tenant]:
        with kueue_tenant(kueue.plane, name) as tenant:
            kueue.create_queue(tenant.namespace, cpu="20")
            yield tenant

    return asyncio.run(play_all(kueue.plane, names, tenant_of=tenant_of, queue_name="team", **defaults))


@pytest.fixture(scope="module")
def played(kueue: Kueue) -> Played:
    return play_in_queues(kueue, list(SCENARIOS))


@pytest.fixture(scope="module")
def played_with_roles(kueue: Kueue) -> Played:
    return play_in_queues(kueue, ROLE_NAMES, gang="preferred")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_gang_in_a_queue_ends_as_documented(name: str, played: Played) -> None:
    if (wrong := played[name]) is not None:
        raise wrong


@pytest.mark.timeout(600)
@pytest.mark.parametrize("running_cluster", ["roles-1.37-kueue-0.19"], indirect=True)
@pytest.mark.parametrize("name", ROLE_NAMES)
def test_gang_with_roles_in_a_queue_ends_as_documented(name: str, played_with_roles: Played) -> None:
    if (wrong := played_with_roles[name]) is not None:
        raise wrong

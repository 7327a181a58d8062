"""The ways in which pods can end (docs/clusters.md), for gangs in queues of the real Kueue, with the same results.

The scenarios are played all at once, each in a namespace, in a queue and on nodes of its own. Then each has its test.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.cluster.test_endings_on_real_releases import play_all
from tests.endings.scenarios import SCENARIOS
from tests.queues.tenants import kueue_tenant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue


@pytest.fixture(scope="module")
def played(kueue: Kueue) -> Mapping[str, BaseException | None]:
    """What went wrong with each scenario."""

    @contextmanager
    def tenant_of(name: str) -> Iterator[Tenant]:
        with kueue_tenant(kueue.plane, name) as tenant:
            kueue.create_queue(tenant.namespace, cpu="20")
            yield tenant

    return asyncio.run(play_all(kueue.plane, list(SCENARIOS), tenant_of=tenant_of, queue_name="team"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_gang_in_a_queue_ends_as_documented(name: str, played: Mapping[str, BaseException | None]) -> None:
    if (wrong := played[name]) is not None:
        raise wrong

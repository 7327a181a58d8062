"""Fixtures: namespaces for tests on a control plane with a gang scheduler, and the history of their pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.queues.schedulers.cluster import scheduler_tenant
from tests.queues.schedulers.history import watched_pods

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.tenant import Tenant
    from tests.queues.schedulers.cluster import Cluster
    from tests.queues.schedulers.history import History


@pytest.fixture
def tenant(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace for one test, and a ServiceAccount that has exactly the documented rights."""
    with scheduler_tenant(cluster.scheduler, cluster.plane, request.node.name) as tenant:
        yield tenant


@pytest.fixture
def history(tenant: Tenant) -> Iterator[History]:
    """All pods of the namespace at all moments."""
    with watched_pods(tenant.plane, tenant.namespace) as history:
        yield history

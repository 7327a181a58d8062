"""No gang is bound in part for longer than its scheduler needs to bind it, whatever gangs compete for the nodes.

The layouts are drawn: nodes, taints, a node that leaves, and gangs with their sizes and their order of arrival. Every
gang that ends by itself was bound as a whole, and a gang that times out held no node. When a gang that fits gets its
turn is the scheduler's decision, and no part of the property. A gang times out when it can no longer go on, which does
not depend on the speed of the machine (`Watchdog`). The history comes from a watch beside the test.

`GANGJOBS_LAYOUTS=300` plays more layouts than the tier does. With `-s`, each test prints the longest time for which a
gang was bound in part.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from airflow_provider_gangjobs.gang.state.phase import Status
from tests.cluster.control_plane import running_plane
from tests.queues.kueue.manager import Kueue, running_kueue
from tests.queues.layouts import LABEL, Layout, play_layouts
from tests.queues.schedulers.cluster import RELEASE, scheduler_tenant
from tests.queues.schedulers.history import History, watched_pods
from tests.queues.schedulers.programs import running_scheduler
from tests.queues.tenants import kueue_tenant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant

LAYOUTS: Final = int(os.environ.get("GANGJOBS_LAYOUTS", "15"))
AT_ONCE: Final = 15
SETTLED_S: Final = 20.0
"""The time that docs/clusters.md states for all schedulers: they bind the pods of a gang one after the other."""
BATCHES: Final = [range(first, min(first + AT_ONCE, LAYOUTS)) for first in range(0, LAYOUTS, AT_ONCE)]
SCHEDULERS: Final = ("native-1.36", "native-1.37", "kueue", "volcano", "coscheduling", "yunikorn")


@dataclass(frozen=True)
class Placing:
    """A control plane without nodes, and what places gangs on it."""

    name: str
    plane: ControlPlane
    kueue: Kueue | None = None

    def parameters_of(self, layout: Layout, namespace: str) -> Mapping[str, Any]:
        """Parameters of the gangs of a layout. In Kueue, a layout has a queue of its own."""
        if self.kueue is None:
            return {"gang_scheduler": self.name.partition("-")[0]}
        topology = f"{namespace}-{layout.name}"
        levels = [{"nodeLabel": "kubernetes.io/hostname"}]
        self.kueue.create("topologies", {"metadata": {"name": topology}, "spec": {"levels": levels}})
        flavor = {"nodeLabels": {LABEL: layout.name}, "topologyName": topology}
        self.kueue.create_queue(namespace, name=layout.name, cpu="100", flavor=flavor)
        return {"queue_name": layout.name}


@pytest.fixture(scope="module", params=SCHEDULERS)
def placing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placing]:
    """Each scheduler in turn. The schedulers beside the default one run on a release without the Workload API."""
    name: str = request.param
    kind, _, release = name.partition("-")
    with ExitStack() as stack:
        plane = stack.enter_context(running_plane(release or RELEASE, tmp_path_factory.mktemp(f"{name}-")))
        if kind == "kueue":
            yield Placing(name, plane, stack.enter_context(running_kueue(plane, "0.19")))
            return
        if kind != "native":
            stack.enter_context(running_scheduler(kind, plane))
        yield Placing(name, plane)


@pytest.fixture
def tenant(placing: Placing, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace of the test's own, with the documented rights."""
    purpose = request.node.name
    with (
        kueue_tenant(placing.plane, purpose)
        if placing.kueue
        else scheduler_tenant(placing.name, placing.plane, purpose) as tenant
    ):
        yield tenant


@pytest.fixture
def history(tenant: Tenant) -> Iterator[History]:
    """All pods of the namespace at all moments."""
    with watched_pods(tenant.plane, tenant.namespace) as history:
        yield history


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", BATCHES, ids=str)
async def test_a_gang_is_bound_as_a_whole_or_not_at_all(
    placing: Placing, tenant: Tenant, history: History, seeds: range
) -> None:
    def parameters_of(layout: Layout) -> Mapping[str, Any]:
        return placing.parameters_of(layout, tenant.namespace)

    played = await play_layouts(tenant, seeds, parameters_of)
    longest = {one.job: history.longest_partial_s(one.job, one.gang.ranks) for one in played}
    ran = sum(one.event.status is Status.SUCCEEDED for one in played)
    print(f"{placing.name}: {ran} of {len(played)} gangs ran, bound in part for at most {max(longest.values()):.2f} s")
    for one in played:
        assert longest[one.job] < SETTLED_S, str(one)
        most = history.most_bound(one.job)
        if one.event.status is Status.SUCCEEDED:
            assert one.layout.can_hold(one.gang), str(one)
            assert most == one.gang.ranks, str(one)
        if not one.layout.can_hold(one.gang):
            assert (one.event.status, most) == (Status.TIMEOUT, 0), str(one)
    assert ran > len(played) // 4

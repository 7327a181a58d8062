"""No gang is bound in part for longer than its scheduler needs to bind it, whatever gangs compete for the nodes.

Each layout is drawn: how many gangs arrive, how many ranks they have, and how large the ranks are. Every gang either
runs as a whole, or times out without a node for any of its pods. A gang that never fits times out. When a gang that
fits gets its turn is the scheduler's decision, and no part of the property. The history comes from a watch beside the
test.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

import pytest

from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.queues.schedulers.conftest import NODE_CPU, NODES
from tests.queues.schedulers.test_gangs_of_schedulers import SETTLED_S, SHORT

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant
    from tests.queues.schedulers.conftest import Cluster
    from tests.queues.schedulers.history import History

COSCHEDULING: Final = pytest.mark.parametrize("cluster", ["coscheduling"], indirect=True)
LAYOUTS: Final = 5
MILLICORES: Final = (500, 1000, 1300, 2000)
ASSEMBLE_S: Final = 15.0


def fits(ranks: int, millicores: int) -> bool:
    """Whether so many ranks of this size fit onto empty nodes."""
    return ranks <= NODES * (NODE_CPU * 1000 // millicores)


@COSCHEDULING
@pytest.mark.parametrize("seed", range(LAYOUTS))
async def test_a_gang_runs_as_a_whole_or_holds_nothing(
    cluster: Cluster, tenant: Tenant, history: History, seed: int
) -> None:
    drawn = random.Random(seed)
    layout = [(drawn.randint(2, 4), drawn.choice(MILLICORES)) for _ in range(drawn.randint(2, 4))]
    async with GangService.connect(tenant.config) as gangs:
        submissions = [
            await submit_gang(
                gangs, gang_spec(ranks, code=SHORT, cpu=f"{size}m", gang_scheduler=cluster.scheduler), f"run-{number}"
            )
            for number, (ranks, size) in enumerate(layout)
        ]
        deadlines = Deadlines(assemble_s=ASSEMBLE_S)
        events = await asyncio.gather(*(follow_gang(tenant, one, deadlines) for one in submissions))
    for (ranks, size), submission, event in zip(layout, submissions, events, strict=True):
        about = f"{ranks} ranks of {size}m in {layout}: {event}"
        assert history.longest_partial_s(submission.ref.name, ranks) < SETTLED_S, about
        if event.status is Status.SUCCEEDED:
            assert fits(ranks, size), about
            assert history.most_bound(submission.ref.name) == ranks, about
        else:
            assert event.status is Status.TIMEOUT, about
            assert history.most_bound(submission.ref.name) == 0, about

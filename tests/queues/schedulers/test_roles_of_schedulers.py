"""A gang of two roles that Volcano and the coscheduling plugin place: one PodGroup for the pods of both Jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import follow_gang, submit_gang
from tests.cluster.role_gangs import SLEEP, leader_and_workers
from tests.queues.schedulers.test_gangs_of_schedulers import FRAGMENTED, SETTLED_S

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant
    from tests.queues.schedulers.cluster import Cluster
    from tests.queues.schedulers.history import History

PLACES_ROLES: Final = pytest.mark.parametrize(
    "running_cluster", ["volcano", "volcano-1.10", "coscheduling"], indirect=True
)


@PLACES_ROLES
async def test_roles_that_fit_together_run(cluster: Cluster, tenant: Tenant, history: History) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, leader_and_workers(gang_scheduler=cluster.scheduler))
        event = await follow_gang(tenant, submission)
        outcomes = await gangs.outcomes(submission.ref)
    assert event.status is Status.SUCCEEDED, event
    assert [(outcome.role, outcome.message) for outcome in outcomes] == [
        ("leader", "[1, 2]"),
        ("worker", "[0]"),
        ("worker", "[0]"),
    ]
    assert history.longest_partial_s(submission.ref.name, 3) < SETTLED_S
    assert tenant.forbidden_requests() == []


@PLACES_ROLES
async def test_roles_that_fit_only_one_by_one_place_no_pod(cluster: Cluster, tenant: Tenant, history: History) -> None:
    spec = leader_and_workers(leader=SLEEP, worker=SLEEP, cpu=FRAGMENTED, gang_scheduler=cluster.scheduler)
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, spec)
        event = await follow_gang(tenant, submission, Deadlines(assemble_s=10))
    assert (event.status, event.phase, event.counts["placed"]) == (Status.TIMEOUT, "assembling", 0)
    assert history.most_bound(submission.ref.name) == 0

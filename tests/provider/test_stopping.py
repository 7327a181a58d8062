"""The Job of a gang that is to end in a queue of Kueue fails, also if Kueue is faster than the Job controller."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Forbidden, ServerError
from airflow_provider_gangjobs.ending.stop import BRIEF_PAUSES_S, PAUSES_S, finish_stop
from airflow_provider_gangjobs.gang.state.ownership import SweepAction
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stopped import end_patch, stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import read_job, stop_patch
from airflow_provider_gangjobs.kube.resources import KUEUE_GROUP
from airflow_provider_gangjobs.kube.views import end_condition
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.service import GangService
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS
from tests.annotations import LEADER_AND_WORKERS, recorded
from tests.ends import stop_gang
from tests.provider.test_sweep import DELETE, GRACE_S, PROD, Sweeper
from tests.provider.virtual_control_plane import Follower
from tests.provider.virtual_time import in_virtual_time
from tests.sandbox.builders import NAMESPACE

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from tests.provider.submission_cluster import SubmissionCluster

STOP, DEACTIVATE, START = "stop the Job", "deactivate the Workload", "start the Job with a deadline that has passed"


@dataclass
class ClusterWithKueue:
    """The client of a cluster in which Kueue suspends the Job `faster` times before the Job controller can act."""

    cluster: SubmissionCluster
    faster: int = 0
    errors: list[ClusterError] = field(default_factory=list)
    """Errors of the first requests that let the Job start."""
    patches: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster.client, name)

    async def list(self, resource: Any, namespace: str | None = None, **selectors: Any) -> Any:
        if resource.group != KUEUE_GROUP:
            return await self.cluster.client.list(resource, namespace, **selectors)
        return [{"metadata": {"name": "job-train", "namespace": namespace, "uid": "w"}, "spec": {"active": True}}]

    async def patch(self, resource: Any, name: str, namespace: str | None, body: Any, **kind: Any) -> Any:
        spec = body["spec"]
        if resource.group == KUEUE_GROUP:
            self.patches.append(DEACTIVATE)
            return {}
        is_start = spec.get("suspend") is False
        self.patches.append(START if is_start else STOP)
        if is_start and self.errors:
            raise self.errors.pop(0)
        stored = await self.cluster.client.patch(resource, name, namespace, body, **kind)
        if is_start and self.patches.count(START) <= self.faster:
            change(self.cluster, name, {"spec": {"suspend": True}})
        self.cluster.bench.run()
        return stored


def change(cluster: SubmissionCluster, name: str, body: dict[str, Any]) -> None:
    cluster.bench.registry.patch(JOBS, name, NAMESPACE, body, PatchKind.MERGE)


async def submit_queued(cluster: SubmissionCluster) -> GangRef:
    """Submit a gang that waits in a queue of Kueue."""
    ref = (await cluster.submit(key=PROD, policies=DELETE)).ref
    change(cluster, ref.name, {"metadata": {"labels": {LABEL_KUEUE_QUEUE: "team"}}, "spec": {"suspend": True}})
    cluster.bench.run()
    return ref


def state(cluster: SubmissionCluster) -> SubmissionState:
    return state_of(read_job(cluster.jobs()[0]))


@pytest.mark.parametrize("faster", [0, 1, len(PAUSES_S) - 2])
async def test_stopped_gang_fails_although_kueue_suspends_its_job_again(cluster, faster: int):
    ref = await submit_queued(cluster)
    api = ClusterWithKueue(cluster, faster)
    assert await GangService(api).stop(ref, reason="stop")
    assert api.patches == [STOP, *[DEACTIVATE, START] * (faster + 1)]
    assert (state(cluster), cluster.bench.pods()) == (SubmissionState.FAILED, [])


@pytest.mark.parametrize("faster", [0, 1, len(PAUSES_S) - 2])
async def test_main_job_without_a_queue_fails_although_kueue_suspends_it_again(cluster, faster: int):
    """Kueue does so if it is configured with `manageJobsWithoutQueueName`."""
    ref = (await cluster.submit(key=PROD, policies=DELETE)).ref
    change(cluster, ref.name, {"metadata": {"annotations": recorded(roles=LEADER_AND_WORKERS, queue="team")}})
    change(cluster, ref.name, end_patch() | {"spec": {**end_patch()["spec"], "suspend": True}})
    api = ClusterWithKueue(cluster, faster)
    assert await finish_stop(api, ref)
    assert api.patches == [START] * (faster + 1)
    assert end_condition(read_job(cluster.jobs()[0]).view)
    assert cluster.bench.pods() == []


async def test_stop_gives_up_in_time_and_its_gang_does_not_run(cluster):
    ref = await submit_queued(cluster)
    api = ClusterWithKueue(cluster, faster=99)
    assert await GangService(api).stop(ref, reason="stop")
    assert (api.patches.count(START), cluster.time.now) == (len(PAUSES_S), sum(PAUSES_S))
    assert (state(cluster), cluster.bench.pods()) == (SubmissionState.STOPPED, [])


async def test_stop_by_a_process_that_is_killed_waits_less_than_a_second(cluster):
    ref = await submit_queued(cluster)
    api = ClusterWithKueue(cluster, faster=99)
    assert await stop_gang(api, ref, reason="stop", claim_id="ti-1")
    assert (api.patches.count(START), cluster.time.now) == (len(BRIEF_PAUSES_S), sum(BRIEF_PAUSES_S))


ERRORS: dict[str, tuple[list[ClusterError], SubmissionState]] = {
    "conflict": ([Conflict(409, request="")], SubmissionState.FAILED),
    "unavailable twice": ([ServerError(503, request="")] * 2, SubmissionState.FAILED),
    "forbidden": ([Forbidden(403, request="")], SubmissionState.STOPPED),
}


@pytest.mark.parametrize(("errors", "expected"), ERRORS.values(), ids=ERRORS)
async def test_stop_survives_errors_after_the_mark(cluster, errors: list[ClusterError], expected: SubmissionState):
    ref = await submit_queued(cluster)
    assert await GangService(ClusterWithKueue(cluster, 0, list(errors))).stop(ref, reason="stop")
    assert state(cluster) is expected


async def test_sweep_lets_a_stopped_job_fail_that_stayed_suspended_and_tries_again_after_the_grace(cluster):
    ref = await submit_queued(cluster)
    change(cluster, ref.name, stop_patch(stopped_by_user("stop"), read_job(cluster.jobs()[0])))
    sweeper = Sweeper(cluster)
    api = ClusterWithKueue(cluster, faster=len(PAUSES_S))
    assert [await sweeper.look(api=api), await sweeper.look(after_s=GRACE_S, api=api)] == [[], []]
    assert (await sweeper.look(after_s=GRACE_S / 2, api=api), state(cluster)) == ([], SubmissionState.STOPPED)
    assert (await sweeper.look(after_s=GRACE_S / 2, api=api), state(cluster)) == (
        [SweepAction.FINISH],
        SubmissionState.FAILED,
    )
    assert (await sweeper.look(after_s=GRACE_S, api=api), sweeper.asked) == ([], 0)


@in_virtual_time
async def test_follower_lets_a_stopped_job_fail_whose_stop_was_interrupted(plane):
    ref = plane.submit(workers=2, suspend=True)
    plane.registry.patch(
        JOBS, ref.name, NAMESPACE, stop_patch(stopped_by_user("stop"), read_job(plane.job())), PatchKind.MERGE
    )
    event = await Follower(plane, ref).event()
    assert (event.status, event.message) == ("failed", "The gang was stopped: stop")
    await plane.until(lambda: read_job(plane.job()).failed_condition is not None, within_s=60)
    assert plane.pods() == []

"""How pods can end, and what the provider reports: one table, for the sandbox and for real control planes.

Each scenario happens to a gang of two ranks: to one rank, mostly rank 1, or to both. The outcome of each pod and the
verdict are the same on every cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.ending.delete import delete
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.jobs.requests import RetryingRequests
from tests.endings.gang_under_test import LEAVES_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from airflow_provider_gangjobs.cluster.http.transport import PropagationPolicy
    from tests.endings.gang_under_test import GangUnderTest

OK, FAILED, DELETED = (OutcomeKind.SUCCEEDED,), (OutcomeKind.FAILED,), (OutcomeKind.DELETED,)
EVICTED, PREEMPTED, LOST, UNKNOWN = (
    (OutcomeKind.EVICTED,),
    (OutcomeKind.PREEMPTED,),
    (OutcomeKind.LOST,),
    (OutcomeKind.UNKNOWN,),
)

NO_DEADLINES = Deadlines()
Endings = tuple[OutcomeKind, ...]


@dataclass(frozen=True)
class Scenario:
    """What happens to a gang of two ranks, and what the provider reports afterwards."""

    act: Callable[[GangUnderTest], Awaitable[None]]
    status: Status
    code: str
    """The reason of the event."""
    rank_0: Endings
    rank_1: Endings
    """The outcomes of the pods of the rank, in the order in which the pods are created."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    deadlines: Deadlines = NO_DEADLINES
    nodes: tuple[int, ...] = (1, 1)
    """The CPUs of each node."""
    is_slow: bool = False
    """Whether a controller or the provider needs a minute."""
    notes: int | None = 0
    """How many notes the event has; None if the number differs from run to run."""
    rank_0_with_its_gang: Endings | None = None
    """The outcomes of rank 0 where the scheduler preempts all pods of a gang together."""

    def is_as_expected(self, outcomes: Mapping[int | None, Endings]) -> bool:
        """Return whether the pods of both ranks have ended as on some cluster."""
        of_rank_0 = {self.rank_0, self.rank_0_with_its_gang or self.rank_0}
        return outcomes.keys() == {0, 1} and outcomes[0] in of_rank_0 and outcomes[1] == self.rank_1


# -- actions of a person ---------------------------------------------------------------------------------------------


async def person_deletes_pod(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.delete_pod(1)


async def person_forces_pod(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.delete_pod(1, grace_s=0)


async def person_deletes_waiting_pod(gang: GangUnderTest) -> None:
    await gang.pending()
    await gang.delete_pod(1)


async def person_suspends_and_resumes(gang: GangUnderTest) -> None:
    await gang.running()
    first = {pod["metadata"]["uid"] for pod in await gang.pods()}

    async def first_pods_are_being_deleted() -> bool:
        """Kueue resumes an admitted Job, perhaps before the Job controller has seen the suspension."""
        at_work = {pod["metadata"]["uid"] for pod in await gang.pods() if "deletionTimestamp" not in pod["metadata"]}
        if not first & at_work:
            return True
        await gang.patch_job({"suspend": True})
        return False

    async def first_pods_are_gone() -> bool:
        return not first & {pod["metadata"]["uid"] for pod in await gang.pods()}

    await gang.until(first_pods_are_being_deleted)
    await gang.until(first_pods_are_gone)
    await gang.patch_job({"suspend": False})
    await gang.running()
    await gang.end_all()


async def task_deletes_gang(gang: GangUnderTest) -> None:
    await gang.running()
    requests = RetryingRequests(gang.admin, gang.ref.namespace)
    await delete(requests, gang.ref, deleted_by="task etl.cleanup of run r")


def person_deletes_job(propagation_policy: PropagationPolicy) -> Callable[[GangUnderTest], Awaitable[None]]:
    async def act(gang: GangUnderTest) -> None:
        await gang.running()
        await gang.delete_job(propagation_policy)

    return act


async def person_orphans_pods_that_end(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.delete_job("Orphan")
    await gang.until(lambda: _orphaned(gang))
    await gang.end_all()


async def _orphaned(gang: GangUnderTest) -> bool:
    return not any(pod["metadata"].get("ownerReferences") for pod in await gang.pods())


async def person_deletes_job_that_waits(gang: GangUnderTest) -> None:
    await gang.pending()
    await gang.delete_job("Background")


# -- actions of the cluster ------------------------------------------------------------------------------------------


async def drain_evicts(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.evict(1)


async def more_important_pod_preempts(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.create_preempting_pod(await gang.node_of(1))


async def node_vanishes(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.delete_node(await gang.kill_node(1))


async def node_is_out_of_service(gang: GangUnderTest) -> None:
    await gang.running()
    node = await gang.kill_node(1)
    await gang.report_unreachable(node)
    await gang.terminating(1)
    await gang.out_of_service(node)


async def node_comes_back(gang: GangUnderTest) -> None:
    await gang.running()
    node = await gang.kill_node(1)
    await gang.report_unreachable(node)
    await gang.terminating(1)
    await gang.kubelets.reconnect(node)


# -- ends of the program, and the policies of its Job ----------------------------------------------------------------


async def all_succeed(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.end_all()


async def one_fails(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.end(1, 42)


async def one_fails_and_others_succeed(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.end(1, 42)
    await gang.end(0)


async def one_fails_twice(gang: GangUnderTest) -> None:
    first = (await gang.running())[1]["metadata"]["uid"]
    await gang.end(1, 42)
    await gang.until(lambda: _is_replaced(gang, first))
    await gang.running()
    await gang.end(1, 42)


async def one_is_evicted_and_replaced(gang: GangUnderTest) -> None:
    first = (await gang.running())[1]["metadata"]["uid"]
    await gang.evict(1)
    await gang.until(lambda: _is_replaced(gang, first))
    await gang.running()
    await gang.end_all()


async def _is_replaced(gang: GangUnderTest, uid: str) -> bool:
    pods = [pod for pod in await gang.pods() if pod["status"].get("phase") == "Running"]
    return len(pods) == 2 and pods[1]["metadata"]["uid"] != uid


async def leader_succeeds(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.end(0)


async def sidecars_run_on(gang: GangUnderTest) -> None:
    await gang.running()
    for rank in range(2):
        await gang.end_main(rank, message=f'{{"rank": {rank}}}')


async def one_fails_and_sidecars_run_on(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.end_main(1, 3)


async def one_succeeds_and_one_sidecar_runs_on(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.end_main(0)
    await gang.end(1)


async def person_deletes_pod_of_ended_rank(gang: GangUnderTest) -> None:
    await gang.running()
    await gang.end_main(1)
    await gang.delete_pod(1)


async def time_passes(gang: GangUnderTest) -> None:
    """Do nothing until the deadline has passed."""


def job_spec(**spec: Any) -> dict[str, Any]:
    return {"manifest": {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}}


def plain(**spec: Any) -> dict[str, Any]:
    """Return the parameters of a Job that replaces pods, which a gang must not."""
    return {"gang": "off", **job_spec(**spec)}


def rule(action: str, **matches: Any) -> dict[str, Any]:
    return {"podFailurePolicy": {"rules": [{"action": action, **matches}]}}


ON_42 = {"onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}}
ON_DISRUPTION = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
LEAVES_SOON = {"tolerations": LEAVES_AT_ONCE}

SCENARIOS: dict[str, Scenario] = {
    "all succeed": Scenario(all_succeed, Status.SUCCEEDED, "Succeeded", OK, OK),
    "one fails": Scenario(one_fails, Status.FAILED, "AppFailed", DELETED, FAILED),
    "a person deletes a pod": Scenario(person_deletes_pod, Status.FAILED, "PodDeleted", DELETED, DELETED),
    "a person deletes a pod by force": Scenario(person_forces_pod, Status.FAILED, "PodDeleted", DELETED, DELETED),
    "a person deletes a pod that waits": Scenario(
        person_deletes_waiting_pod, Status.FAILED, "PodDeleted", DELETED, DELETED, nodes=(0,), is_slow=True
    ),
    "a person suspends and resumes": Scenario(
        person_suspends_and_resumes, Status.SUCCEEDED, "Succeeded", DELETED + OK, DELETED + OK
    ),
    "the Job is deleted": Scenario(person_deletes_job("Background"), Status.DELETED, "JobDeleted", DELETED, DELETED),
    "the Job is deleted in the foreground": Scenario(
        person_deletes_job("Foreground"), Status.DELETED, "JobDeleted", DELETED, DELETED
    ),
    "a task deletes the gang on purpose": Scenario(task_deletes_gang, Status.DELETED, "GangDeleted", DELETED, DELETED),
    "the Job is deleted, its pods orphaned and at work": Scenario(
        person_deletes_job("Orphan"),
        Status.DELETED,
        "JobDeleted",
        UNKNOWN,
        UNKNOWN,
        is_slow=True,
        notes=1,
    ),
    "the Job is deleted, its pods orphaned and ending": Scenario(
        person_orphans_pods_that_end, Status.DELETED, "JobDeleted", OK, OK
    ),
    "the Job is deleted while it waits": Scenario(
        person_deletes_job_that_waits, Status.DELETED, "JobDeleted", DELETED, DELETED, nodes=(0,)
    ),
    "a drain evicts": Scenario(drain_evicts, Status.FAILED, "Evicted", DELETED, EVICTED),
    "a more important pod preempts": Scenario(
        more_important_pod_preempts, Status.FAILED, "Preempted", DELETED, PREEMPTED, rank_0_with_its_gang=PREEMPTED
    ),
    "the node vanishes": Scenario(node_vanishes, Status.FAILED, "NodeLost", DELETED, LOST, is_slow=True),
    "the node is out of service": Scenario(
        node_is_out_of_service, Status.FAILED, "Evicted", DELETED, EVICTED, spec=LEAVES_SOON, is_slow=True
    ),
    "the node comes back": Scenario(node_comes_back, Status.FAILED, "Evicted", DELETED, EVICTED, spec=LEAVES_SOON),
    "the Job's time to live ends": Scenario(
        all_succeed, Status.SUCCEEDED, "Succeeded", OK, OK, spec={"ttl_after_finished_s": 0}, notes=None
    ),
    "the failed Job's time to live ends": Scenario(
        one_fails, Status.FAILED, "AppFailed", DELETED, FAILED, spec={"ttl_after_finished_s": 0}
    ),
    "the Job's own deadline passes": Scenario(
        time_passes, Status.FAILED, "DeadlineExceeded", DELETED, DELETED, spec=job_spec(activeDeadlineSeconds=2)
    ),
    "the run takes too long": Scenario(
        time_passes, Status.TIMEOUT, "Deadline.running", DELETED, DELETED, deadlines=Deadlines(run_s=1)
    ),
    "the gang cannot be placed": Scenario(
        time_passes,
        Status.TIMEOUT,
        "Deadline.assembling",
        DELETED,
        DELETED,
        deadlines=Deadlines(assemble_s=5),
        nodes=(0,),
    ),
    "a rank fails for the last time": Scenario(
        one_fails_twice, Status.FAILED, "AppFailed", DELETED, FAILED * 2, spec=plain(backoffLimit=1)
    ),
    "a rule about exit codes fails the Job": Scenario(
        one_fails, Status.FAILED, "AppFailed", DELETED, FAILED, spec=job_spec(**rule("FailJob", **ON_42))
    ),
    "a rule about exit codes fails an index": Scenario(
        one_fails_and_others_succeed,
        Status.FAILED,
        "AppFailed",
        OK,
        FAILED,
        spec=plain(backoffLimitPerIndex=1, **rule("FailIndex", **ON_42)),
    ),
    "too many indexes fail": Scenario(
        one_fails, Status.FAILED, "AppFailed", DELETED, FAILED, spec=plain(backoffLimitPerIndex=0, maxFailedIndexes=0)
    ),
    "a disruption that the Job ignores": Scenario(
        one_is_evicted_and_replaced,
        Status.SUCCEEDED,
        "Succeeded",
        OK,
        EVICTED + OK,
        spec=plain(backoffLimit=0, **rule("Ignore", **ON_DISRUPTION)),
    ),
    "all succeed, and sidecars run on": Scenario(
        sidecars_run_on, Status.SUCCEEDED, "Succeeded", OK, OK, is_slow=True, notes=1
    ),
    "all succeed, and one sidecar runs on": Scenario(
        one_succeeds_and_one_sidecar_runs_on, Status.SUCCEEDED, "Succeeded", OK, OK, is_slow=True, notes=1
    ),
    "one fails, and its sidecar runs on": Scenario(
        one_fails_and_sidecars_run_on, Status.FAILED, "AppFailed", DELETED, FAILED, is_slow=True, notes=1
    ),
    "a person deletes the pod of a rank that has succeeded, and whose sidecar runs on": Scenario(
        person_deletes_pod_of_ended_rank, Status.FAILED, "PodDeleted", DELETED, OK
    ),
    "the leader's success is enough": Scenario(
        leader_succeeds,
        Status.SUCCEEDED,
        "Succeeded",
        OK,
        DELETED,
        spec=job_spec(backoffLimit=0, successPolicy={"rules": [{"succeededIndexes": "0"}]}),
    ),
}

ROLE_SCENARIOS = {
    name: scenario
    for name, scenario in SCENARIOS.items()
    if "manifest" not in scenario.spec and "suspends" not in name and "orphaned" not in name
}
"""The scenarios that a gang with roles has, too. Such a gang has no manifest, and so no policies of its Job. A person
who suspends its main Job, or deletes the main Job and orphans its pods, changes one of several Jobs only."""

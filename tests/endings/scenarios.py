"""How pods can end, and what the provider says of it: one table, for the sandbox and for real control planes.

Each scenario hits some ranks of a gang and tells which. What becomes of those and of the others, pod by pod in the
order of their creation, is the same everywhere, as is the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.verbs import Propagation
from airflow_provider_gangjobs.gang.deadlines import Deadlines
from airflow_provider_gangjobs.gang.event import Status
from airflow_provider_gangjobs.gang.outcomes import Ending
from tests.endings.trial import LEAVES_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tests.endings.trial import Trial

OK, FAILED, DELETED = (Ending.SUCCEEDED,), (Ending.FAILED,), (Ending.DELETED,)
EVICTED, PREEMPTED, LOST = (Ending.EVICTED,), (Ending.PREEMPTED,), (Ending.LOST,)

NO_DEADLINES = Deadlines()
Endings = tuple[Ending, ...]


@dataclass(frozen=True)
class Scenario:
    """What happens to a gang of two ranks, and what is told of it afterwards."""

    act: Callable[[Trial], Awaitable[set[int]]]
    """Returns the ranks that were hit."""
    status: Status
    code: str
    """The event's reason."""
    hit: Endings
    others: Endings = DELETED
    spec: Mapping[str, Any] = field(default_factory=dict)
    deadlines: Deadlines = NO_DEADLINES
    nodes: tuple[int, ...] = (1, 1)
    """CPUs of each."""
    is_slow: bool = False
    """It takes a controller or the provider a minute."""
    notes: int | None = 0
    """How many the event has; None if chance decides."""


# -- by a person ---------------------------------------------------------------------------------------------------


async def person_deletes_pod(trial: Trial) -> set[int]:
    await trial.running()
    await trial.delete_pod(1)
    return {1}


async def person_forces_pod(trial: Trial) -> set[int]:
    await trial.running()
    await trial.delete_pod(1, grace_s=0)
    return {1}


async def person_deletes_waiting_pod(trial: Trial) -> set[int]:
    await trial.pending()
    await trial.delete_pod(1)
    return {1}


async def person_suspends_and_resumes(trial: Trial) -> set[int]:
    await trial.running()
    await trial.patch_job({"suspend": True})
    await trial.until(lambda: _none_left(trial))
    await trial.patch_job({"suspend": False})
    await trial.running()
    await trial.end_all()
    return {0, 1}


async def _none_left(trial: Trial) -> bool:
    return not await trial.pods()


def person_deletes_job(propagation: Propagation) -> Callable[[Trial], Awaitable[set[int]]]:
    async def act(trial: Trial) -> set[int]:
        await trial.running()
        await trial.delete_job(propagation)
        return {0, 1}

    return act


async def person_orphans_pods_that_end(trial: Trial) -> set[int]:
    await trial.running()
    await trial.delete_job(Propagation.ORPHAN)
    await trial.until(lambda: _orphaned(trial))
    await trial.end_all()
    return {0, 1}


async def _orphaned(trial: Trial) -> bool:
    return not any(pod["metadata"].get("ownerReferences") for pod in await trial.pods())


async def person_deletes_job_that_waits(trial: Trial) -> set[int]:
    await trial.pending()
    await trial.delete_job(Propagation.BACKGROUND)
    return {0, 1}


# -- by the cluster ------------------------------------------------------------------------------------------------


async def drain_evicts(trial: Trial) -> set[int]:
    await trial.running()
    await trial.evict(1)
    return {1}


async def more_important_pod_preempts(trial: Trial) -> set[int]:
    await trial.running()
    await trial.more_important_pod(await trial.node_of(1))
    return {1}


async def node_vanishes(trial: Trial) -> set[int]:
    await trial.running()
    await trial.delete_node(await trial.kill_node(1))
    return {1}


async def node_is_out_of_service(trial: Trial) -> set[int]:
    await trial.running()
    node = await trial.kill_node(1)
    await trial.not_seen(node)
    await trial.going(1)
    await trial.out_of_service(node)
    return {1}


async def node_comes_back(trial: Trial) -> set[int]:
    await trial.running()
    node = await trial.kill_node(1)
    await trial.not_seen(node)
    await trial.going(1)
    await trial.kubelets.come_back(node)
    return {1}


# -- by its program, under the rules of its Job --------------------------------------------------------------------


async def all_succeed(trial: Trial) -> set[int]:
    await trial.running()
    await trial.end_all()
    return {0, 1}


async def one_fails(trial: Trial) -> set[int]:
    await trial.running()
    await trial.end(1, 42)
    return {1}


async def one_fails_and_others_succeed(trial: Trial) -> set[int]:
    await trial.running()
    await trial.end(1, 42)
    await trial.end(0)
    return {1}


async def one_fails_twice(trial: Trial) -> set[int]:
    first = (await trial.running())[1]["metadata"]["uid"]
    await trial.end(1, 42)
    await trial.until(lambda: _is_replaced(trial, first))
    await trial.running()
    await trial.end(1, 42)
    return {1}


async def one_is_evicted_and_replaced(trial: Trial) -> set[int]:
    first = (await trial.running())[1]["metadata"]["uid"]
    await trial.evict(1)
    await trial.until(lambda: _is_replaced(trial, first))
    await trial.running()
    await trial.end_all()
    return {1}


async def _is_replaced(trial: Trial, uid: str) -> bool:
    pods = [pod for pod in await trial.pods() if pod["status"].get("phase") == "Running"]
    return len(pods) == 2 and pods[1]["metadata"]["uid"] != uid


async def leader_succeeds(trial: Trial) -> set[int]:
    await trial.running()
    await trial.end(0)
    return {0}


async def time_passes(trial: Trial) -> set[int]:
    return {0, 1}


def job_spec(**spec: Any) -> dict[str, Any]:
    return {"manifest": {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}}


def plain(**spec: Any) -> dict[str, Any]:
    """Of a Job that replaces pods, which a gang must not."""
    return {"gang": "off", **job_spec(**spec)}


def rule(action: str, **matches: Any) -> dict[str, Any]:
    return {"podFailurePolicy": {"rules": [{"action": action, **matches}]}}


ON_42 = {"onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}}
ON_DISRUPTION = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
LEAVES_SOON = {"tolerations": LEAVES_AT_ONCE}

SCENARIOS: dict[str, Scenario] = {
    "all succeed": Scenario(all_succeed, Status.SUCCEEDED, "Succeeded", OK),
    "one fails": Scenario(one_fails, Status.FAILED, "AppFailed", FAILED),
    "a person deletes a pod": Scenario(person_deletes_pod, Status.FAILED, "PodDeleted", DELETED),
    "a person deletes a pod by force": Scenario(person_forces_pod, Status.FAILED, "PodDeleted", DELETED),
    "a person deletes a pod that waits": Scenario(
        person_deletes_waiting_pod, Status.FAILED, "PodDeleted", DELETED, nodes=(0,), is_slow=True
    ),
    "a person suspends and resumes": Scenario(person_suspends_and_resumes, Status.SUCCEEDED, "Succeeded", DELETED + OK),
    "the Job is deleted": Scenario(person_deletes_job(Propagation.BACKGROUND), Status.DELETED, "JobDeleted", DELETED),
    "the Job is deleted in the foreground": Scenario(
        person_deletes_job(Propagation.FOREGROUND), Status.DELETED, "JobDeleted", DELETED
    ),
    "the Job is deleted, its pods orphaned and at work": Scenario(
        person_deletes_job(Propagation.ORPHAN),
        Status.DELETED,
        "JobDeleted",
        (Ending.UNKNOWN,),
        is_slow=True,
        notes=1,
    ),
    "the Job is deleted, its pods orphaned and ending": Scenario(
        person_orphans_pods_that_end, Status.DELETED, "JobDeleted", OK
    ),
    "the Job is deleted while it waits": Scenario(
        person_deletes_job_that_waits, Status.DELETED, "JobDeleted", DELETED, nodes=(0,)
    ),
    "a drain evicts": Scenario(drain_evicts, Status.FAILED, "Evicted", EVICTED),
    "a more important pod preempts": Scenario(more_important_pod_preempts, Status.FAILED, "Preempted", PREEMPTED),
    "the node vanishes": Scenario(node_vanishes, Status.FAILED, "NodeLost", LOST, is_slow=True),
    "the node is out of service": Scenario(
        node_is_out_of_service, Status.FAILED, "Evicted", EVICTED, spec=LEAVES_SOON, is_slow=True
    ),
    "the node comes back": Scenario(node_comes_back, Status.FAILED, "Evicted", EVICTED, spec=LEAVES_SOON),
    "the Job's time to live ends": Scenario(
        all_succeed, Status.SUCCEEDED, "Succeeded", OK, spec={"ttl_after_finished_s": 0}, notes=None
    ),
    "the failed Job's time to live ends": Scenario(
        one_fails, Status.FAILED, "AppFailed", FAILED, spec={"ttl_after_finished_s": 0}
    ),
    "the Job's own deadline passes": Scenario(
        time_passes, Status.FAILED, "DeadlineExceeded", DELETED, spec=job_spec(activeDeadlineSeconds=2)
    ),
    "the run takes too long": Scenario(
        time_passes, Status.TIMEOUT, "Deadline.running.ranks", DELETED, deadlines=Deadlines(run_s=1)
    ),
    "the gang cannot be placed": Scenario(
        time_passes,
        Status.TIMEOUT,
        "Deadline.assembling.unschedulable",
        DELETED,
        deadlines=Deadlines(assemble_s=2),
        nodes=(0,),
    ),
    "a rank fails for the last time": Scenario(
        one_fails_twice, Status.FAILED, "AppFailed", FAILED * 2, spec=plain(backoffLimit=1)
    ),
    "a rule about exit codes fails the Job": Scenario(
        one_fails, Status.FAILED, "AppFailed", FAILED, spec=job_spec(**rule("FailJob", **ON_42))
    ),
    "a rule about exit codes fails an index": Scenario(
        one_fails_and_others_succeed,
        Status.FAILED,
        "AppFailed",
        FAILED,
        OK,
        spec=plain(backoffLimitPerIndex=1, **rule("FailIndex", **ON_42)),
    ),
    "too many indexes fail": Scenario(
        one_fails, Status.FAILED, "AppFailed", FAILED, spec=plain(backoffLimitPerIndex=0, maxFailedIndexes=0)
    ),
    "a disruption that the Job ignores": Scenario(
        one_is_evicted_and_replaced,
        Status.SUCCEEDED,
        "Succeeded",
        EVICTED + OK,
        OK,
        spec=plain(backoffLimit=0, **rule("Ignore", **ON_DISRUPTION)),
    ),
    "the leader's success is enough": Scenario(
        leader_succeeds,
        Status.SUCCEEDED,
        "Succeeded",
        OK,
        spec=job_spec(successPolicy={"rules": [{"succeededIndexes": "0"}]}),
    ),
}

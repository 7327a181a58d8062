"""Queues: who decides when the Job of a gang may run, and the checks of a queue before a gang is submitted. Pure.

Nobody decides, or Kueue for a Job, or Kueue for the JobSet of the roles. The submission creates the Job suspended. Its
last step lets the Job run or gives it the label of its queue, which is never removed: Kueue would keep the quota of the
Job.

What could not be read of a queue is no reason to refuse a gang. Whether a queue lists a resource is not checked,
because only Kueue knows which resources its configuration leaves out or replaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.exceptions import GangUnsupported, InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.record import Submitted, to_text
from airflow_provider_gangjobs.kube import well_known as keys

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


class Queue(Struct, frozen=True):
    """Who decides when a Job may run. The submission creates the Job suspended and completes it first."""

    name: str | None = None
    """Name of a LocalQueue of Kueue in the namespace of the gang. Without a queue, a complete Job may run at once."""
    priority: str | None = None
    """Name of a WorkloadPriorityClass; `None` for the priority of the pods."""
    topology: str | None = None
    """`required:LABEL` or `preferred:LABEL`; `None` for any nodes."""
    has_job_set: bool = False
    """The queue has the JobSet of the main Job."""

    @property
    def last_step_name(self) -> str:
        """The last step of a submission, for messages."""
        if self.name is None:
            return "unsuspend the Job"
        return "start the main Job of the gang" if self.has_job_set else "give the Job to its queue"

    def labels(self) -> dict[str, str]:
        """Return the label of the priority. That of the queue follows when the Job is complete."""
        return {keys.LABEL_KUEUE_PRIORITY: self.priority} if self.priority else {}

    def pod_annotations(self) -> dict[str, str]:
        """Return the annotation of the pods that asks Kueue for nodes of one topology domain."""
        found = parse_topology(self.topology) if self.topology else None
        return {f"kueue.x-k8s.io/podset-{found[0]}-topology": found[1]} if found else {}

    def start_patch(self, gang: StoredGang, found: Submitted = Submitted()) -> dict[str, Any]:  # noqa: B008 - a frozen value
        """Return the merge patch of the last step, with which the Job may run.

        Kueue accepts no other queue for a Job that it has let run, so such a Job stays in its queue. The main Job of a
        JobSet has no pods that could start.

        :param found: What the submission has found.
        """
        metadata: dict[str, Any] = {}
        if (mark := replace(found, is_queued=self.name is not None)) != Submitted():
            metadata["annotations"] = {keys.ANNOTATION_SUBMITTED: to_text(mark)}
        if self.name is None or self.has_job_set:
            return {"metadata": metadata, "spec": {"suspend": False}}
        if gang.queue is None or gang.is_suspended:
            metadata["labels"] = {keys.LABEL_KUEUE_QUEUE: self.name}
        return {"metadata": metadata}

    def is_started(self, gang: StoredGang) -> bool:
        """Return whether the last step is done."""
        return not gang.is_suspended if self.name is None else gang.submitted.is_queued


MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"
"""The controller that runs Jobs in other clusters: `spec.managedBy` of a Job, `spec.controllerName` of an
AdmissionCheck."""


def parse_topology(value: str) -> tuple[str, str] | None:
    """Return the mode and the node label of `required:LABEL` or `preferred:LABEL`."""
    mode, colon, label = value.partition(":")
    return (mode, label) if mode in {"required", "preferred"} and colon and label else None


def queue_of_job(gang: StoredGang) -> Queue:
    """Return the queue of a stored Job. The API server adds the label of the LocalQueue `default` to Jobs without a
    queue."""
    if gang.record.has_job_set:
        return Queue(gang.record.queue, has_job_set=True)
    return Queue(gang.record.queue or gang.queue)


QUEUES_SHOWN_MAX: Final = 10
STOP_POLICY_NONE: Final = "None"
"""Value of `spec.stopPolicy` of a queue that is not held."""
_SUSPENDS_UNNAMED: Final = "the cluster suspends each Job that names no queue (manageJobsWithoutQueueName of Kueue)"
_NAME_A_QUEUE: Final = "Give queue_name, or name the queue in the connection"


class QueueFacts(Struct, frozen=True):
    """What the API server shows. `None` means that this is unknown.

    Attributes:
        multikueue_check: the AdmissionCheck of the queue with which Kueue runs Jobs in other clusters.
        topology_levels: the levels of the Topologies of the queue, if the gang names a level.
    """

    local_queues: Mapping[str, Mapping[str, Any]] | None = None
    has_priority: bool | None = None
    multikueue_check: str | None = None
    topology_levels: Collection[str] | None = None


def queue_problems(
    name: str,
    priority: str | None,
    namespace: str,
    facts: QueueFacts,
    connection_defaults: Collection[str] = (),
    *,
    level: str | None = None,
) -> tuple[Problem, ...]:
    """Return the problems of the parameters of a gang in a queue; empty if none are known.

    :param connection_defaults: Which of the parameters come from the connection.
    :param level: The node label that the parameter `topology` names.
    """
    problems = []
    queues, field = facts.local_queues, name_parameter("queue_name", connection_defaults)
    if queues is not None and name not in queues:
        known = sorted(queues)[:QUEUES_SHOWN_MAX]
        remedy = f"Name one of {', '.join(known)}" if known else "Ask an administrator of Kueue for a LocalQueue"
        problems.append(Problem(field, f"{name} is no LocalQueue of namespace {namespace}", remedy))
    if facts.multikueue_check is not None:
        where = f"AdmissionCheck {facts.multikueue_check} lets the pods run in another cluster"
        remedy = "Name a queue that does not dispatch its Jobs to other clusters"
        problems.append(Problem(field, f"{name}: {where}, where nobody records their outcomes", remedy))
    if priority is not None and facts.has_priority is False:
        field = name_parameter("queue_priority", connection_defaults)
        remedy = "Name a WorkloadPriorityClass, or use priority_class"
        problems.append(Problem(field, f"{priority} is no WorkloadPriorityClass of the cluster", remedy))
    if level is not None and facts.topology_levels is not None and level not in facts.topology_levels:
        levels = ", ".join(facts.topology_levels)
        remedy = f"Name one of {levels}" if levels else "Name a queue whose flavors have a Topology, or remove topology"
        problems.append(Problem("topology", f"{level} is a level of no Topology of queue {name}", remedy))
    return tuple(problems)


def topology_problem(topology: str, dialect: str | None) -> Problem | None:
    """Return why the pods of a gang without a queue cannot be placed by its `topology`; `None` if nothing is known.

    :param dialect: The version of the Workload API that places the gang; `None` if something else places the pods.
    """
    if dialect is None:
        remedy = 'Give queue_name, or gang_scheduler="native", or use affinity'
        return Problem("topology", "is given without queue_name, and the Workload API does not place the pods", remedy)
    if topology.startswith("preferred:"):
        remedy = "Give required:LABEL, or queue_name"
        return Problem("topology", f"is {topology}, and the Workload API knows no preference", remedy)
    return None


def name_parameter(parameter: str, connection_defaults: Collection[str]) -> str:
    """Return the name of a parameter for messages, which say if the value comes from the connection."""
    return f"extra {parameter} of the connection" if parameter in connection_defaults else parameter


def admission_checks(cluster_queue: Mapping[str, Any]) -> list[str]:
    """Return the names of the AdmissionChecks of a ClusterQueue, in each version of the API."""
    spec = cluster_queue.get("spec", {})
    strategy = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return [*(spec.get("admissionChecks") or ()), *(str(one["name"]) for one in strategy)]


def held_reason(name: str, facts: QueueFacts) -> str | None:
    """Return why a queue admits nothing at the moment; `None` if it does, or if this is unknown."""
    queue = (facts.local_queues or {}).get(name, {})
    policy = queue.get("spec", {}).get("stopPolicy", STOP_POLICY_NONE)
    if policy != STOP_POLICY_NONE:
        return f"LocalQueue {name} is held: its stopPolicy is {policy}"
    conditions = queue.get("status", {}).get("conditions") or ()
    inactive = (item for item in conditions if item.get("type") == "Active" and item.get("status") == "False")
    return next((f"LocalQueue {name} is not active: {_text(item)}" for item in inactive), None)


def job_without_queue_error(stored: StoredGang) -> InvalidGangSpec | None:
    """Return why a Job that names no queue would never run. A Job that gets the LocalQueue `default` runs when it is
    admitted.

    :param stored: The Job as the server would store it without the label of a queue, and not suspended.
    """
    if stored.queue is not None or not stored.is_suspended:
        return None
    return InvalidGangSpec((Problem("queue_name", f"is not given, and {_SUSPENDS_UNNAMED}", _NAME_A_QUEUE),))


def unnamed_roles_error(stored: StoredGang, *, has_job_set: bool) -> GangUnsupported | None:
    """Return why a gang with roles cannot run where the cluster itself manages Jobs that name no queue.

    :param stored: The main Job as the server stores it without the label of a queue, and not suspended.
    :param has_job_set: The roles are one JobSet, which names its queue. The main Job then has no pods to suspend.
    """
    if (error := given_queue_error(stored)) is not None:
        return error
    if stored.is_suspended and not has_job_set:
        return GangUnsupported(
            f"{_SUSPENDS_UNNAMED}, so it would stop the Jobs of the roles",
            f"{_NAME_A_QUEUE}: then the roles are one JobSet in the queue",
        )
    return None


def given_queue_error(stored: StoredGang) -> GangUnsupported | None:
    """Return why a gang with roles cannot run if the cluster has given its main Job the label of a queue."""
    if stored.queue is None:
        return None
    return GangUnsupported(
        f"the cluster gives each Job that names no queue to Kueue's queue {stored.queue}, and a gang with roles "
        "has such Jobs",
        f"Submit the gang in a namespace that has no LocalQueue of the name {stored.queue}",
    )


def _text(condition: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))

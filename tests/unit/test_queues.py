"""The rules of queues: who starts a Job, what a queue guarantees, and which requests are refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.gang.queues import (
    Queue,
    QueueFacts,
    admission_checks,
    held_reason,
    job_without_queue_error,
    queue_of_job,
    queue_problems,
    unnamed_roles_error,
)
from airflow_provider_gangjobs.gang.render.placement import shape_of, with_queue_of_connection
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.schedulers.external import (
    HOSTNAME,
    QueueTopologies,
    flavor_names,
    topology_guarantee,
)
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_QUEUE,
    ANNOTATION_QUEUED,
    LABEL_KUEUE_PRIORITY,
    LABEL_KUEUE_QUEUE,
)
from tests.manifests import SUSPENDED_MANIFEST


def job(*, suspend: bool = True, label: str | None = None, **annotations: str) -> StoredGang:
    labels = {LABEL_KUEUE_QUEUE: label} if label else {}
    marks = {f"gangjobs.airflow/{name}": value for name, value in annotations.items()}
    return read_job({"metadata": {"name": "j", "labels": labels, "annotations": marks}, "spec": {"suspend": suspend}})


JOBS = {
    "no queue": (job(), Queue(), False, False),
    "started": (job(suspend=False), Queue(), True, True),
    "complete, not yet given to its queue": (job(queue="team"), Queue("team"), False, False),
    "given to its queue": (job(label="team", queue="team", queued="true"), Queue("team"), True, True),
    "put into a queue by the cluster": (job(label="default"), Queue("default"), False, False),
    "started by the queue of the cluster": (job(suspend=False, label="default"), Queue("default"), False, False),
    "in a queue by an earlier release": (job(label="team"), Queue("team"), False, False),
}


@pytest.mark.parametrize(("stored", "queue", "started", "complete"), JOBS.values(), ids=JOBS)
def test_queue_of_a_stored_job(stored: StoredGang, queue: Any, started: bool, complete: bool) -> None:
    found = queue_of_job(stored)
    assert found == queue
    assert (found.is_started(stored), stored.is_submission_complete) == (started, complete)


UNNAMED_JOBS = {
    "nothing manages it": (job(suspend=False), ""),
    "suspended": (job(), "queue_name: is not given, and the cluster suspends each Job that names no queue"),
    "given to a queue": (job(label="default"), ""),
    "given to a queue that has admitted it": (job(suspend=False, label="default"), ""),
}


@pytest.mark.parametrize(("stored", "reason"), UNNAMED_JOBS.values(), ids=UNNAMED_JOBS)
def test_job_without_a_queue_runs_unless_the_cluster_suspends_it(stored: StoredGang, reason: str) -> None:
    error = job_without_queue_error(stored)
    assert (error is not None) == bool(reason)
    assert reason in str(error)


UNNAMED = {
    "nothing manages it": (job(suspend=False), "", ""),
    "suspended": (job(), "manageJobsWithoutQueueName", ""),
    "given to a queue": (job(label="default"), "Kueue's queue default", "Kueue's queue default"),
}


@pytest.mark.parametrize(("stored", "jobs", "job_set"), UNNAMED.values(), ids=UNNAMED)
def test_roles_need_a_cluster_that_leaves_jobs_without_a_queue_alone(
    stored: StoredGang, jobs: str, job_set: str
) -> None:
    for has_job_set, reason in ((False, jobs), (True, job_set)):
        problem = unnamed_roles_error(stored, has_job_set=has_job_set)
        assert (problem is not None) == bool(reason)
        assert reason in str(problem)


def test_job_gets_the_label_of_its_queue_last() -> None:
    queue = Queue("team", "high")
    assert (queue.labels(), queue.annotations()) == ({LABEL_KUEUE_PRIORITY: "high"}, {ANNOTATION_QUEUE: "team"})
    metadata = {"labels": {LABEL_KUEUE_QUEUE: "team"}, "annotations": {ANNOTATION_QUEUED: "true"}}
    assert queue.start_patch(job(queue="team")) == {"metadata": metadata}


def test_job_that_runs_in_another_queue_stays_in_it() -> None:
    patch = Queue("team").start_patch(job(suspend=False, label="default", queue="team"))
    assert patch == {"metadata": {"annotations": {ANNOTATION_QUEUED: "true"}}}


GUARANTEES = {
    "topology to the hostname": (QueueTopologies({"a": "t"}, {"t": ["zone", HOSTNAME]}), True, ""),
    "no topology": (QueueTopologies({"a": "t", "b": None}, {"t": [HOSTNAME]}), False, "its flavor b has no Topology"),
    "topology to the zone": (QueueTopologies({"a": "t"}, {"t": ["zone"]}), False, f"does not end with {HOSTNAME}"),
    "topology without levels": (QueueTopologies({"a": "t"}, {"t": []}), False, f"does not end with {HOSTNAME}"),
    "topology that does not exist": (
        QueueTopologies({"a": "t"}, missing=["Topology t of flavor a"]),
        False,
        "Topology t of flavor a of Kueue queue team does not exist",
    ),
    "no flavors": (QueueTopologies(), False, "has no flavors"),
}


@pytest.mark.parametrize(("topologies", "kept", "reason"), GUARANTEES.values(), ids=GUARANTEES)
def test_queue_keeps_gangs_if_each_flavor_chooses_nodes(topologies: QueueTopologies, kept: bool, reason: str) -> None:
    found = topology_guarantee("team", topologies)
    assert found.kept is kept
    assert reason in found.reason
    assert ("create this object" in found.advice) is bool(topologies.missing)


LEVELS = {
    "of one of the Topologies": (("zone", HOSTNAME), "zone", None),
    "of none": (("zone", HOSTNAME), "rack", f"Name one of zone, {HOSTNAME}"),
    "in a queue without a Topology": ((), "zone", "Name a queue whose flavors have a Topology, or remove topology"),
    "in a queue that cannot be read": (None, "rack", None),
    "no level is named": (("zone",), None, None),
}


@pytest.mark.parametrize(("known", "level", "remedy"), LEVELS.values(), ids=LEVELS)
def test_level_that_no_topology_of_the_queue_has_is_a_problem(known: Any, level: Any, remedy: Any) -> None:
    found = queue_problems("team", None, "ns", QueueFacts(TEAM, topology_levels=known), level=level)
    assert [(problem.path, problem.remedy) for problem in found] == ([("topology", remedy)] if remedy else [])


def test_levels_of_a_queue_that_is_not_complete_are_unknown() -> None:
    levels = {"t": ["zone", HOSTNAME], "u": ["rack", HOSTNAME]}
    assert QueueTopologies({"a": "t", "b": "u"}, levels).all_levels == ("zone", HOSTNAME, "rack")
    assert QueueTopologies({"a": "t", "b": "u"}, levels, ["ResourceFlavor c"]).all_levels is None


def test_flavors_of_a_cluster_queue_are_named_once() -> None:
    groups = [{"flavors": [{"name": "a"}, {"name": "b"}]}, {"flavors": [{"name": "a"}]}]
    assert flavor_names({"spec": {"resourceGroups": groups}}) == ["a", "b"]


TEAM: dict[str, Any] = {"team": {"spec": {}}}
PROBLEMS = {
    "everything exists": (QueueFacts(TEAM, True), "team", []),
    "nothing can be read": (QueueFacts(), "team", []),
    "another queue": (QueueFacts(TEAM, True), "nosuch", ["Name one of team"]),
    "no queue at all": (QueueFacts({}, True), "nosuch", ["Ask an administrator of Kueue for a LocalQueue"]),
    "no such priority": (QueueFacts(TEAM, False), "team", ["Name a WorkloadPriorityClass, or use priority_class"]),
}


@pytest.mark.parametrize(("facts", "name", "remedies"), PROBLEMS.values(), ids=PROBLEMS)
def test_queue_that_does_not_exist_is_a_problem(facts: QueueFacts, name: str, remedies: list[str]) -> None:
    assert [problem.remedy for problem in queue_problems(name, "high", "ns", facts)] == remedies


def test_problem_of_a_queue_of_the_connection_names_the_extra() -> None:
    (problem,) = queue_problems("nosuch", None, "ns", QueueFacts(TEAM), ("queue_name",))
    assert problem.path == "extra queue_name of the connection"


def test_queue_that_runs_its_jobs_in_other_clusters_is_a_problem() -> None:
    (problem,) = queue_problems("team", None, "ns", QueueFacts(TEAM, multikueue_check="far"))
    assert "AdmissionCheck far lets the pods run in another cluster" in problem.what


CHECKS: dict[str, Any] = {
    "none": ({}, []),
    "v1beta1": ({"admissionChecks": ["a", "b"]}, ["a", "b"]),
    "strategy": ({"admissionChecksStrategy": {"admissionChecks": [{"name": "a", "onFlavors": []}]}}, ["a"]),
}


@pytest.mark.parametrize(("spec", "names"), CHECKS.values(), ids=CHECKS)
def test_admission_checks_of_a_cluster_queue_are_read_in_each_version(spec: Any, names: list[str]) -> None:
    assert admission_checks({"spec": spec}) == names


DEFAULTS: dict[str, Any] = {
    "none named": ({}, ("team", "high"), ("queue_name", "queue_priority")),
    "queue named": ({"queue_name": "mine"}, ("mine", "high"), ("queue_priority",)),
    "queue named by a label": ({"labels": {LABEL_KUEUE_QUEUE: "mine"}}, ("mine", "high"), ("queue_priority",)),
    "both named": ({"queue_name": "mine", "queue_priority": "low"}, ("mine", "low"), ()),
    "started by the user": ({"manifest": SUSPENDED_MANIFEST}, (None, None), ()),
}


@pytest.mark.parametrize(("named", "queue", "defaults"), DEFAULTS.values(), ids=DEFAULTS)
def test_connection_names_the_queue_of_gangs_that_name_none(named: Any, queue: Any, defaults: Any) -> None:
    spec = GangSpec(image="a", workers=2, **named)
    shape = with_queue_of_connection(shape_of(spec, manifest_of(spec)), spec, "team", "high")
    assert (shape.kueue_queue, shape.kueue_priority) == queue
    assert shape.connection_defaults == defaults


def test_priority_of_the_connection_needs_a_queue() -> None:
    spec = GangSpec(image="a", workers=2)
    assert with_queue_of_connection(shape_of(spec, {}), spec, None, "high") == shape_of(spec, {})


INACTIVE = {"type": "Active", "status": "False", "reason": "ClusterQueueIsInactive", "message": "Can't submit"}
HELD = {
    "active": ({"spec": {"stopPolicy": "None"}, "status": {"conditions": [{**INACTIVE, "status": "True"}]}}, None),
    "no status yet": ({"spec": {}}, None),
    "held": ({"spec": {"stopPolicy": "Hold"}}, "LocalQueue team is held: its stopPolicy is Hold"),
    "inactive": (
        {"spec": {}, "status": {"conditions": [INACTIVE]}},
        "LocalQueue team is not active: ClusterQueueIsInactive: Can't submit",
    ),
}


@pytest.mark.parametrize(("queue", "reason"), HELD.values(), ids=HELD)
def test_queue_that_is_held_says_so(queue: dict[str, Any], reason: str | None) -> None:
    assert held_reason("team", QueueFacts({"team": queue})) == reason


def test_queue_that_cannot_be_read_is_not_held() -> None:
    assert held_reason("team", QueueFacts()) is None


MULTIKUEUE = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "managedBy": "kueue.x-k8s.io/multikueue",
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "a"}]}},
    },
}
PARTIAL = {"kueue.x-k8s.io/job-min-parallelism": "2"}
REFUSED = {
    "name": ({"queue_name": "Team!"}, "queue_name", "lower-case"),
    "other label": (
        {"queue_name": "team", "labels": {LABEL_KUEUE_QUEUE: "other"}},
        "queue_name",
        "is team, and the label kueue.x-k8s.io/queue-name is other",
    ),
    "priority without a queue": ({"queue_priority": "high"}, "queue_priority", "without queue_name"),
    "topology without a queue": ({"topology": "required:zone"}, "topology", "without queue_name"),
    "topology of another form": ({"queue_name": "q", "topology": "zone"}, "topology", "'zone'"),
    "partial admission": (
        {"annotations": PARTIAL},
        "annotations.kueue.x-k8s.io/job-min-parallelism",
        "fewer ranks than the gang has",
    ),
    "another cluster": ({"manifest": MULTIKUEUE, "image": None}, "manifest.spec.managedBy", "in another cluster"),
}


@pytest.mark.parametrize(("parameters", "path", "text"), REFUSED.values(), ids=REFUSED)
def test_bad_parameters_of_a_queue_are_refused(parameters: dict[str, Any], path: str, text: str) -> None:
    found = validate(GangSpec(**{"image": "a", **parameters}))
    assert [problem.path for problem in found] == [path]
    assert text in str(found[0])


@pytest.mark.parametrize(
    "parameters",
    [
        {"queue_name": "team", "queue_priority": "high", "topology": "required:kubernetes.io/hostname"},
        {"labels": {LABEL_KUEUE_QUEUE: "team"}, "queue_priority": "high", "topology": "preferred:zone"},
        {"annotations": PARTIAL, "gang": "off"},
    ],
    ids=str,
)
def test_good_parameters_of_a_queue_are_accepted(parameters: dict[str, Any]) -> None:
    assert validate(GangSpec(image="a", **parameters)) == ()

"""The rules of queues, the positions of Jobs in them, and for how long a gang has assembled in earlier runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.informer import Notification, informers
from airflow_provider_gangjobs.cluster.kueue import (
    FIRST_READ_AFTER_S,
    NOT_SERVED_READ_EVERY_S,
    READ_EVERY_S,
    RECENT_READ_TIMEOUT_S,
    PendingPositions,
    Position,
    recent_position,
)
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
from airflow_provider_gangjobs.gang.record import AssemblyBaseline, to_text
from airflow_provider_gangjobs.gang.render.placement import shape_of, with_queue_of_connection
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.schedulers import (
    HOSTNAME,
    QueueTopologies,
    flavor_names,
    topology_guarantee,
)
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.gang.state.waiting import earlier_assembly_s, next_assembly_baseline
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.kube.views import KueueWorkloadView, view
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_ASSEMBLY_BASELINE,
    ANNOTATION_STOPPED,
    LABEL_KUEUE_PRIORITY,
    LABEL_KUEUE_QUEUE,
)
from tests.annotations import recorded, submitted
from tests.manifests import SUSPENDED_MANIFEST
from tests.provider.virtual_time import in_virtual_time
from tests.unit.fault_server import Connection, FaultServer, Request, status

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.config import ClusterConfig


# -- The rules of queues: who starts a Job, what a queue guarantees, and which requests are refused ------------------

GIVEN_TO_QUEUE = submitted(is_queued=True)


def job(
    *, suspend: bool = True, label: str | None = None, queue: str | None = None, queued: bool = False
) -> StoredGang:
    labels = {LABEL_KUEUE_QUEUE: label} if label else {}
    marks = {**recorded(queue=queue), **(GIVEN_TO_QUEUE if queued else {})}
    return read_job({"metadata": {"name": "j", "labels": labels, "annotations": marks}, "spec": {"suspend": suspend}})


JOBS = {
    "no queue": (job(), Queue(), False, False),
    "started": (job(suspend=False), Queue(), True, True),
    "complete, not yet given to its queue": (job(queue="team"), Queue("team"), False, False),
    "given to its queue": (job(label="team", queue="team", queued=True), Queue("team"), True, True),
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
    assert queue.labels() == {LABEL_KUEUE_PRIORITY: "high"}
    metadata = {"labels": {LABEL_KUEUE_QUEUE: "team"}, "annotations": GIVEN_TO_QUEUE}
    assert queue.start_patch(job(queue="team")) == {"metadata": metadata}


def test_job_that_runs_in_another_queue_stays_in_it() -> None:
    patch = Queue("team").start_patch(job(suspend=False, label="default", queue="team"))
    assert patch == {"metadata": {"annotations": GIVEN_TO_QUEUE}}


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


# -- The positions of Jobs in their Kueue queues, over HTTP against a server with scripted responses, in virtual
#    time ------------------------------------------------------------------------------------------------------------

PATH = "/apis/visibility.kueue.x-k8s.io/{}/namespaces/ns/localqueues/team/pendingworkloads"
Answer = Callable[[Connection], Awaitable[None]]


def summary(*job_uids: str) -> Answer:
    """The jobs in this order, after one Job of another LocalQueue of the ClusterQueue."""
    items = [
        {"metadata": {"name": uid, "ownerReferences": [{"uid": uid}]}, "positionInClusterQueue": number}
        for number, uid in enumerate(job_uids, 1)
    ]
    return answer(200, {"kind": "PendingWorkloadsSummary", "items": items})


def answer(code: int, body: Any = None) -> Answer:
    async def reply(connection: Connection) -> None:
        await connection.reply(code, body if body is not None else status(code, "Whatever"))

    return reply


async def reset(connection: Connection) -> None:
    connection.reset()


class Visibility:
    """A server that uses each response once, and the last one for all further requests."""

    def __init__(self, *answers: Answer, version: str = "v1beta2") -> None:
        self.answers = list(answers)
        self.path = PATH.format(version)
        self.server = FaultServer(self.handle)

    async def handle(self, request: Request, connection: Connection) -> None:
        if request.path != self.path:
            await connection.reply(404, b"404 page not found")
        else:
            await (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(connection)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.server.requests]


def wait_for(known: PendingPositions, config: ClusterConfig, uid: str) -> tuple[Position, Notification]:
    notification = Notification()
    return known.acquire(config, "ns", "team", uid, notification), notification


@in_virtual_time
async def test_all_gangs_of_a_queue_share_one_read() -> None:
    api = Visibility(summary("b", "a"))
    async with api.server as server:
        known = PendingPositions()
        positions = [wait_for(known, server.config, uid)[0] for uid in "abc"]
        await asyncio.sleep(FIRST_READ_AFTER_S + 1)
        assert [position.number for position in positions] == [3, 2, None]
        late, _ = wait_for(known, server.config, "b")
        assert (late.number, api.paths) == (2, [api.path])
        await informers().aclose()


@in_virtual_time
async def test_gangs_that_are_admitted_at_once_cost_no_request() -> None:
    api = Visibility(summary())
    async with api.server as server:
        known = PendingPositions()
        for uid in "abc":
            wait_for(known, server.config, uid)[0].close()
            await asyncio.sleep(1)
        await asyncio.sleep(READ_EVERY_S)
        assert api.paths == []
        assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_gang_is_notified_when_its_position_is_halved() -> None:
    others = [f"o{number}" for number in range(6)]
    api = Visibility(summary(*others, "a"), summary(*others[1:], "a"), summary(*others[3:], "a"))
    async with api.server as server:
        position, notification = wait_for(PendingPositions(), server.config, "a")
        assert await notification.wait(FIRST_READ_AFTER_S + 1)
        assert position.number == 8
        assert await notification.wait(READ_EVERY_S + 1)
        assert position.number == 7
        assert not await notification.wait(READ_EVERY_S + 1)
        assert position.number == 5
        await informers().aclose()


UNKNOWN = {
    "no right": ([answer(403)], NOT_SERVED_READ_EVERY_S),
    "not served, or no such queue": ([answer(404)], NOT_SERVED_READ_EVERY_S),
    "Kueue is away": ([answer(503)], READ_EVERY_S),
    "connection is lost": ([reset], READ_EVERY_S),
    "something else answers": ([answer(200, {"items": [{"metadata": {}}]})], READ_EVERY_S),
    "login page": ([answer(200, b"<html>")], READ_EVERY_S),
}


@pytest.mark.parametrize(("answers", "pause_s"), UNKNOWN.values(), ids=UNKNOWN)
@in_virtual_time
async def test_position_is_unknown_until_it_can_be_read(
    answers: list[Answer], pause_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    api = Visibility(*answers, summary("a"))
    async with api.server as server:
        position, _ = wait_for(PendingPositions(), server.config, "a")
        await asyncio.sleep(FIRST_READ_AFTER_S + pause_s - 1)
        assert position.number is None
        await asyncio.sleep(2)
        assert position.number == 2
        await informers().aclose()
    assert caplog.records == []


@in_virtual_time
async def test_position_that_cannot_be_read_any_more_is_unknown() -> None:
    api = Visibility(summary("a"), answer(503))
    async with api.server as server:
        position, _ = wait_for(PendingPositions(), server.config, "a")
        await asyncio.sleep(FIRST_READ_AFTER_S + 1)
        assert position.number == 2
        await asyncio.sleep(READ_EVERY_S)
        assert position.number is None
        await informers().aclose()


@in_virtual_time
async def test_older_version_of_the_api_is_read() -> None:
    api = Visibility(summary("a"), version="v1beta1")
    async with api.server as server:
        position, _ = wait_for(PendingPositions(), server.config, "a")
        await asyncio.sleep(FIRST_READ_AFTER_S + 1)
        assert (position.number, api.paths) == (2, [PATH.format("v1beta2"), PATH.format("v1beta1")])
        await informers().aclose()


@in_virtual_time
async def test_gang_that_comes_after_the_last_one_is_read_anew() -> None:
    api = Visibility(summary("a"))
    async with api.server as server:
        known = PendingPositions()
        wait_for(known, server.config, "a")[0].close()
        await asyncio.sleep(2 * READ_EVERY_S)
        position, _ = wait_for(known, server.config, "a")
        await asyncio.sleep(FIRST_READ_AFTER_S + 1)
        assert position.number == 2
        await informers().aclose()


def connect(config: ClusterConfig) -> Client:
    """A client by the clock of the loop."""
    return Client(config, clock=Clock(monotonic=asyncio.get_running_loop().time))


async def silent(connection: Connection) -> None:
    await connection.silence()


@in_virtual_time
async def test_readers_that_look_often_share_one_read_a_minute() -> None:
    api = Visibility(summary("b", "a"), summary("a"))
    async with api.server as server, connect(server.config) as client:
        together = [recent_position(client, "ns", "team", uid) for uid in "abc"]
        assert await asyncio.gather(*together) == [3, 2, None]
        await asyncio.sleep(READ_EVERY_S - 1)
        assert await recent_position(client, "ns", "team", "a") == 3
        assert api.paths == [api.path]
        await asyncio.sleep(1)
        assert await recent_position(client, "ns", "team", "a") == 2
        assert api.paths == [api.path] * 2


@pytest.mark.parametrize(("answers", "pause_s"), UNKNOWN.values(), ids=UNKNOWN)
@in_virtual_time
async def test_reader_that_looks_often_repeats_no_failure(answers: list[Answer], pause_s: float) -> None:
    api = Visibility(*answers, summary("a"))
    async with api.server as server, connect(server.config) as client:
        for _ in range(3):
            assert await recent_position(client, "ns", "team", "a") is None
        assert api.paths.count(api.path) == 1
        await asyncio.sleep(pause_s)
        assert await recent_position(client, "ns", "team", "a") == 2


@in_virtual_time
async def test_silent_server_delays_a_page_once_a_minute_for_two_seconds() -> None:
    api = Visibility(silent, summary("a"))
    async with api.server as server, connect(server.config) as client:
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert await asyncio.gather(*(recent_position(client, "ns", "team", "a") for _ in range(3))) == [None] * 3
        assert await recent_position(client, "ns", "team", "a") is None
        assert loop.time() - started == pytest.approx(RECENT_READ_TIMEOUT_S)
        await asyncio.sleep(READ_EVERY_S)
        assert await recent_position(client, "ns", "team", "a") == 2


# -- For how long a gang has assembled in runs that Kueue has stopped ------------------------------------------------

LATER = "2026-01-01T00:01:00Z"


def stopped(before_ready: int, after_ready: int, preempted: int, admitted_s: int, **state: str) -> KueueWorkloadView:
    """Kueue's Workload of a gang that Kueue has stopped so often, and that was admitted for so long until then.

    :param state: The status of the conditions QuotaReserved and Evicted.
    """
    counts = {
        ("PodsReadyTimeout", "WaitForStart"): before_ready,
        ("PodsReadyTimeout", "WaitForRecovery"): after_ready,
        ("Preempted", ""): preempted,
    }
    evictions = [
        {"reason": reason, "underlyingCause": cause, "count": count}
        for (reason, cause), count in counts.items()
        if count
    ]
    conditions = [
        {"type": kind, "status": status, "reason": "any", "lastTransitionTime": LATER} for kind, status in state.items()
    ]
    status: dict[str, Any] = {
        "conditions": conditions,
        "schedulingStats": {"evictions": evictions},
        "accumulatedPastExecutionTimeSeconds": admitted_s,
    }
    return view(KueueWorkloadView, {"metadata": {}, "spec": {}, "status": status})


def noted(baseline: AssemblyBaseline | None, **annotations: str) -> StoredGang:
    """A Job of a gang with this note."""
    found = {
        **recorded(),
        **annotations,
        **({ANNOTATION_ASSEMBLY_BASELINE: to_text(baseline)} if baseline is not None else {}),
    }
    return read_job({"metadata": {"namespace": "team-a", "name": "train", "uid": "u", "annotations": found}})


EARLIER = {
    "no Workload": (noted(None), None, 0),
    "never stopped": (noted(None), stopped(0, 0, 0, 0), 0),
    "twice not ready in time": (noted(None), stopped(2, 0, 0, 61), 61),
    "preempted, not noted": (noted(None), stopped(2, 0, 1, 90), 0),
    "preempted, noted": (noted(AssemblyBaseline(1, 30)), stopped(2, 0, 1, 90), 60),
    "ran and was stopped, noted": (noted(AssemblyBaseline(1, 3630)), stopped(1, 1, 0, 3660), 30),
    "preempted again, not noted": (noted(AssemblyBaseline(1, 30)), stopped(2, 0, 2, 150), 0),
    "a new Workload": (noted(AssemblyBaseline(1, 30)), stopped(1, 0, 0, 30), 0),
    "a note of an unknown form": (noted(None, **{ANNOTATION_ASSEMBLY_BASELINE: "later"}), stopped(1, 0, 0, 30), 30),
}


@pytest.mark.parametrize(("seen", "workload", "seconds"), EARLIER.values(), ids=EARLIER)
def test_runs_that_kueue_has_stopped_before_all_pods_were_ready_add_up(
    seen: StoredGang, workload: KueueWorkloadView | None, seconds: float
) -> None:
    assert earlier_assembly_s(seen, workload) == seconds


def test_v1beta1_spells_the_time_of_earlier_runs_in_another_way() -> None:
    eviction = {"reason": "PodsReadyTimeout", "underlyingCause": "WaitForStart", "count": 1}
    status = {"schedulingStats": {"evictions": [eviction]}, "accumulatedPastExexcutionTimeSeconds": 61}
    assert earlier_assembly_s(noted(None), view(KueueWorkloadView, {"status": status})) == 61


BASELINES = {
    "no Workload": (noted(None), None, None),
    "not ready in time": (noted(None), stopped(2, 0, 0, 61), None),
    "preempted": (noted(None), stopped(1, 0, 1, 90), AssemblyBaseline(1, 90)),
    "stopped while it ran": (noted(None), stopped(0, 1, 0, 3600), AssemblyBaseline(1, 3600)),
    "noted": (noted(AssemblyBaseline(1, 90)), stopped(1, 0, 1, 90), None),
    "a new Workload": (noted(AssemblyBaseline(1, 30)), stopped(0, 0, 0, 0), AssemblyBaseline()),
    "being stopped": (noted(None), stopped(0, 0, 1, 0, QuotaReserved="True", Evicted="True"), None),
    "stopped": (noted(None), stopped(0, 0, 1, 9, QuotaReserved="False", Evicted="True"), AssemblyBaseline(1, 9)),
    "admitted again": (noted(None), stopped(0, 0, 1, 9, QuotaReserved="True", Evicted="False"), AssemblyBaseline(1, 9)),
    "stopped by the provider": (noted(None, **{ANNOTATION_STOPPED: "why"}), stopped(0, 0, 1, 9), None),
}


@pytest.mark.parametrize(("seen", "workload", "baseline"), BASELINES.values(), ids=BASELINES)
def test_stop_for_another_reason_ends_the_sum(
    seen: StoredGang, workload: KueueWorkloadView | None, baseline: AssemblyBaseline | None
) -> None:
    assert next_assembly_baseline(seen, workload) == baseline

"""All doors tell the same of a gang: the list and the page, which read many gangs, and those that read one gang.

Forty gangs in all phases, with what explains them, are in one namespace of an API server that only lists objects.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from airflow_provider_gangjobs.cli.gangs import _sentence
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.outcome.outcomes import outcome_of
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.reason import because, stopped_by_deadline
from airflow_provider_gangjobs.gang.state.stopped import BY_EXECUTION_TIMEOUT, Stopped, stopped_by_user
from airflow_provider_gangjobs.kube.links import parse_links
from airflow_provider_gangjobs.kube.well_known import (
    LABEL_GANG,
    LABEL_JOB_UID,
    LABEL_KUEUE_JOB_UID,
    LABEL_KUEUE_QUEUE,
    LABEL_PURPOSE,
    LABEL_TASK,
    ObjectPurpose,
)
from airflow_provider_gangjobs.plugins.html import PageContext, render, render_gangs
from airflow_provider_gangjobs.plugins.page_view import Filters, build_gangs_view
from airflow_provider_gangjobs.plugins.rest_documents import GangAnswer
from airflow_provider_gangjobs.tracking.explanation import read_view
from airflow_provider_gangjobs.tracking.gang_listing import list_attempts, list_gangs
from airflow_provider_gangjobs.tracking.harvest.ledger import encode
from airflow_provider_gangjobs.tracking.overview import Overview, explain_gangs
from gangjobs_sandbox.apimachinery import selectors
from tests.documented_links import documented_links
from tests.provider.virtual_time import in_virtual_time
from tests.unit.builders import REF, JobBuilder, PodBuilder, at, condition, job, pod
from tests.unit.fault_server import Connection, FaultServer, Request, config_for, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_provider_gangjobs.gang.view import GangView

pytestmark = in_virtual_time

RANKS = 2
CPU = {"requests": {"cpu": "3"}}


def waiting(made: Callable[[PodBuilder], PodBuilder] = lambda one: one, count: int = RANKS) -> list[PodBuilder]:
    """Return pods that have not started."""
    pods = [made(pod(f"pod-{rank}").rank(rank)) for rank in range(count)]
    for one in pods:
        one.obj["spec"]["containers"][0]["resources"] = CPU
    return pods


def refused(message: str) -> list[PodBuilder]:
    return waiting(lambda one: one.unschedulable(message))


def starting(reason: str, message: str = "") -> list[PodBuilder]:
    return waiting(lambda one: one.on("node-1").waiting(reason, message))


def assembling() -> JobBuilder:
    return job(RANKS).started(3).counts(active=RANKS)


def running() -> JobBuilder:
    return job(RANKS).started(3).counts(active=RANKS, ready=RANKS)


def queued() -> JobBuilder:
    return job(RANKS).label(LABEL_KUEUE_QUEUE, "team").suspended(0)


def stopped(by: Stopped) -> JobBuilder:
    return job(RANKS).started(3).failed(60, "DeadlineExceeded").stopped(by)


def failed(*pods: PodBuilder, reason: str = "BackoffLimitExceeded") -> Case:
    """Return a gang that has failed, whose pods are gone and are in its ledger."""
    return Case(job(RANKS).started(3).failed(63, reason, "has reached its limit"), ended=list(pods))


@dataclass
class Case:
    """A gang, and what explains it."""

    job: JobBuilder
    pods: list[PodBuilder] = field(default_factory=list)
    ended: list[PodBuilder] = field(default_factory=list)
    """Pods whose outcomes were recorded, and that are gone."""
    events: list[dict[str, Any]] = field(default_factory=list)
    workload: dict[str, Any] | None = None
    group: dict[str, Any] | None = None
    claims: dict[str, bool] = field(default_factory=dict)


def about_job(reason: str, message: str) -> dict[str, Any]:
    return {"involvedObject": {"kind": "Job", "uid": REF.uid}, "reason": reason, "message": message, "type": "Warning"}


def about_pod(reason: str, message: str) -> dict[str, Any]:
    involved = {"kind": "Pod", "uid": "uid-pod-0"}
    return {"involvedObject": involved, "reason": reason, "message": message, "type": "Warning"}


def workload(message: str, reason: str = "Pending", **spec: Any) -> dict[str, Any]:
    return {"spec": spec, "status": {"conditions": [condition("QuotaReserved", False, 1, reason, message)]}}


def ended(rank: int, made: Callable[[PodBuilder], PodBuilder]) -> PodBuilder:
    return made(pod(f"pod-{rank}").rank(rank).on("node-1"))


GROUP_ERROR = {"status": {"conditions": [condition("PodGroupScheduled", False, 4, "SchedulerError", "no such class")]}}
DISCOVERED = {"items": [{"metadata": {"name": "kueue.x-k8s.io"}, "versions": [{"version": "v1beta1"}]}]}


def after_start(*pods: PodBuilder, ready: int = 0) -> Case:
    return Case(job(RANKS).started(3).counts(active=RANKS, ready=ready), list(pods))


NODES = "0/3 nodes are available: 3 "
LACKS = "insufficient unused quota for cpu in flavor f, 2 more needed"
EVICTED = [
    condition("Evicted", True, 9, "Preempted", "for another one"),
    condition("QuotaReserved", False, 9, "Pending"),
]
CLAIM_VOLUME = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
CASES: dict[str, Case] = {
    "just-created": Case(job(RANKS).submitted_suspended()),
    "not-processed": Case(job(RANKS)),
    "without-quota": Case(queued(), workload=workload(LACKS)),
    "above-quota": Case(queued(), workload=workload("insufficient quota for cpu in flavor f, request > maximum")),
    "without-queue": Case(queued(), workload=workload("LocalQueue team doesn't exist", "Inadmissible")),
    "deactivated": Case(queued(), workload=workload("", active=False)),
    "without-workload": Case(queued()),
    "preempted-by-queue": Case(queued(), workload={"spec": {}, "status": {"conditions": EVICTED}}),
    "never-fits": Case(assembling(), refused(f"{NODES}Insufficient cpu.")),
    "other-labels": Case(assembling(), refused(f"{NODES}node(s) didn't match Pod's node affinity/selector.")),
    "tainted": Case(assembling(), refused(f"{NODES}node(s) had untolerated taint(s).")),
    "unbound-claim": Case(
        assembling().spec(template={"spec": CLAIM_VOLUME}),
        refused(f"{NODES}pod has unbound immediate PersistentVolumeClaims."),
    ),
    "without-a-cause": Case(assembling(), refused("pod group is unschedulable")),
    "not-scheduled": Case(assembling(), waiting()),
    "group-error": Case(assembling().record(placement="gang:v1beta1"), waiting(), group=GROUP_ERROR),
    "gated": Case(assembling(), waiting(lambda one: one.gated("example.org/gate"))),
    "without-pods": Case(job(RANKS).started(3)),
    "refused-pods": Case(job(RANKS).started(3), events=[about_job("FailedCreate", "exceeded quota: team")]),
    "image": Case(assembling(), starting("ErrImagePull", "no such image")),
    "config": Case(assembling(), starting("CreateContainerConfigError", 'secret "x" not found')),
    "volume": Case(
        assembling(), starting("ContainerCreating"), events=[about_pod("FailedMount", 'configmap "x" not found')]
    ),
    "sandbox": Case(
        assembling(), starting("ContainerCreating"), events=[about_pod("FailedCreatePodSandBox", "no network")]
    ),
    "starting": Case(assembling(), starting("ContainerCreating")),
    "not-ready": after_start(*(pod(f"pod-{n}").rank(n).on("node-1").running() for n in range(RANKS)), ready=1),
    "running": Case(running(), [pod(f"pod-{n}").rank(n).on("node-1").running() for n in range(RANKS)]),
    "finishing": Case(job(RANKS).started(3).decided("FailureTarget", 62, "BackoffLimitExceeded")),
    "succeeded": Case(
        job(RANKS).started(3).complete(60), ended=[ended(n, lambda one: one.succeeded()) for n in range(RANKS)]
    ),
    "not-recorded": Case(
        job(RANKS).started(3).complete(60), [ended(n, lambda one: one.succeeded().held()) for n in range(RANKS)]
    ),
    "exit-code": failed(ended(0, lambda one: one.failed(3)), ended(1, lambda one: one.failed(143, when=62))),
    "signal": failed(ended(0, lambda one: one.failed(139))),
    "memory": failed(ended(1, lambda one: one.failed(137, reason="OOMKilled"))),
    "command": failed(ended(0, lambda one: one.failed(127))),
    "evicted": failed(ended(1, lambda one: one.failed(137).disrupted("EvictionByEvictionAPI", 59))),
    "preempted": failed(ended(1, lambda one: one.failed(137).disrupted("PreemptionByScheduler", 59))),
    "lost": failed(ended(1, lambda one: one.phase("Failed").disrupted("DeletionByPodGC", 59))),
    "without-outcomes": failed(),
    "time-limit": failed(reason="DeadlineExceeded"),
    "cancelled": Case(stopped(stopped_by_user("ana has cancelled it"))),
    "queue-deadline": Case(
        job(RANKS).suspended(30).stopped(stopped_by_deadline(Phase.QUEUED, because("QueueWaits", queue="team"), LACKS))
    ),
    "run-deadline": Case(
        stopped(stopped_by_deadline(Phase.RUNNING, because("Running"), "2/2 ranks")),
        ended=[ended(n, lambda one: one.failed(143, when=60, started=30)) for n in range(RANKS)],
    ),
    "execution-timeout": Case(stopped(BY_EXECUTION_TIMEOUT)),
    "being-deleted": Case(running().deleted(50)),
}


class Lister:
    """An API server that lists the objects of all cases, by their selectors."""

    def __init__(self, cases: dict[str, Case]) -> None:
        self.objects: dict[str, list[dict[str, Any]]] = {
            "nodes": [{"metadata": {"name": "node-1"}, "status": {"allocatable": {"cpu": "2", "pods": "9"}}}]
        }
        for name, case in cases.items():
            self.add(name, case)
        self.server = FaultServer(self.handle)

    def add(self, name: str, case: Case) -> None:
        case.job.record(task=TaskKey("dag", "run", name)).label(LABEL_TASK, name)
        found: dict[str, Iterable[dict[str, Any]]] = {
            "jobs": [case.job.obj],
            "pods": [one.obj for one in case.pods],
            "events": case.events,
        }
        if case.workload is not None:
            labels = {LABEL_KUEUE_JOB_UID: REF.uid}
            metadata = {"name": f"job-{REF.name}-1", "labels": labels, "ownerReferences": [{"uid": REF.uid}]}
            found["workloads"] = [{"metadata": metadata, **case.workload}]
        if case.group is not None:
            found["podgroups"] = [{"metadata": {"name": REF.name, "labels": {LABEL_GANG: REF.name}}, **case.group}]
        if case.ended:
            labels = {LABEL_GANG: REF.name, LABEL_PURPOSE: ObjectPurpose.LEDGER, LABEL_JOB_UID: REF.uid}
            outcomes = [outcome_of(one.view()) for one in case.ended]
            data = {one.uid: encode(one) for one in outcomes}
            found["configmaps"] = [{"metadata": {"name": f"{REF.name}-ledger-0", "labels": labels}, "data": data}]
        for resource, objects in found.items():
            for one in objects:
                # Each gang has its own names and uids.
                written = (
                    json.dumps({"metadata": {}, **one}).replace(f'"{REF.uid}"', f'"uid-{name}"').replace(REF.name, name)
                )
                made = json.loads(written.replace('"uid-pod-', f'"uid-{name}-pod-'))
                metadata = {"name": f"{name}-{resource}", **made["metadata"]}
                made["metadata"] = {**metadata, "namespace": REF.namespace, "resourceVersion": "1"}
                self.objects.setdefault(resource, []).append(made)

    async def handle(self, request: Request, connection: Connection) -> None:
        *above, resource = request.path.strip("/").split("/")
        if resource == "selfsubjectaccessreviews":
            await connection.reply(201, {"status": {"allowed": True}})
        elif resource == "apis":
            await connection.reply(200, DISCOVERED)
        elif above[-1:] in (["persistentvolumeclaims"], ["localqueues"]) or resource == "pendingworkloads":
            await connection.reply(404, status(404, "NotFound"))
        else:
            await connection.reply(200, {"metadata": {"resourceVersion": "1"}, "items": self.items(resource, request)})

    def items(self, resource: str, request: Request) -> list[dict[str, Any]]:
        labels = selectors.parse(request.query.get("labelSelector"))
        fields = selectors.parse_fields(request.query.get("fieldSelector"))
        return [
            one
            for one in self.objects.get(resource, ())
            if labels.matches(one["metadata"].get("labels")) and fields.matches(lambda path, one=one: _value(one, path))
        ]


def _value(found: dict[str, Any], path: str) -> str:
    for name in path.split("."):
        found = found.get(name) or {}
    return str(found or "")


@dataclass
class Told:
    """What the doors tell of a gang: those that read many gangs, and those that read one."""

    listed: GangView
    read: GangView
    requests: list[str]
    """What was sent to read one."""


async def tell() -> dict[str, Told]:
    lister = Lister(CASES)
    async with lister.server as server:
        async with Client(server.config) as client:
            gangs = await list_gangs(client, REF.namespace)
            listed = {view.name: view for view in (await explain_gangs(client, REF.namespace, gangs)).gangs}
        told = {}
        for name in CASES:
            async with Client(config_for(server.url)) as client:  # what one reader has read is cached for others
                before = len(server.requests)
                (gang,) = await list_attempts(client, REF.namespace, name)
                read = await read_view(client, gang)
                sent = [f"{one.method} {one.path}?{sorted(one.query.items())}" for one in server.requests[before:]]
            told[name] = Told(listed[name], read, sent)
    return told


async def test_doors_that_read_many_gangs_tell_what_those_tell_that_read_one() -> None:
    told = await tell()

    assert len(told) >= 40
    names = ("phase", "state", "category", "summary", "remedy", "code", "room", "ranks", "ready")
    differences = {
        f"{name}: {field}": (getattr(one.listed, field), getattr(one.read, field))
        for name, one in told.items()
        for field in names
        if getattr(one.listed, field) != getattr(one.read, field)
    }
    assert differences == {}
    assert all(one.listed.times.items() <= one.read.times.items() for one in told.values())
    assert {one.read.phase for one in told.values()} == set(Phase)
    assert len({one.read.category for one in told.values()}) >= 28
    assert all(one.read.summary for one in told.values())


async def test_every_door_shows_phase_category_reason_and_remedy() -> None:
    for name, one in (await tell()).items():
        view, key = one.read, TaskKey("dag", "run", name)
        tab = render(PageContext(key, view, str(view), "", "deferred", at(120)), nonce="n", part=True)
        page = build_gangs_view(
            Filters(hours=168), [("", Overview((one.listed,)))], (), dag_ids={"dag"}, without_dag=set(), now=at(120)
        )
        page_html = render_gangs(page, at(120), at(120), nonce="n", part=True)
        for shown in (tab, page_html):
            texts = html.unescape(shown)
            assert all(part in texts for part in (view.phase, view.summary, view.remedy)), name
            assert view.category in texts or view.category.lower() == view.phase, name
        answer = json.loads(msgspec.json.encode(GangAnswer(gang=view)))["gang"]
        assert (answer["phase"], answer["category"], answer["summary"]) == (view.phase, view.category, view.summary)
        assert _sentence(view, at(120)).endswith(f": {view.summary}"), name


async def test_tab_and_page_show_the_links_of_the_documentation() -> None:
    name = "memory"
    async with Lister({name: CASES[name]}).server as server:
        config = replace(server.config, links=parse_links(documented_links()))
        async with Client(config) as client:
            gangs = await list_gangs(client, REF.namespace)
            overview = await explain_gangs(client, REF.namespace, gangs)
            (gang,) = await list_attempts(client, REF.namespace, name)
            view = await read_view(client, gang)
    tab = render(PageContext(TaskKey("dag", "run", name), view, str(view), "", "failed", at(120)), nonce="n", part=True)
    page = build_gangs_view(Filters(), [("", overview)], (), dag_ids={"dag"}, without_dag=set(), now=at(120))
    page_html = render_gangs(page, at(120), at(120), nonce="n", part=True)
    start, end = (int(at(second).timestamp() * 1000) for second in (3, 63))
    of_gang = "https://mlflow.example.com/#/experiments/1?searchFilter=tags.run='run'"
    of_rank = f"https://grafana.example.com/d/pods?var-pod=pod-1&from={start}&to={end}"
    found = [re.findall(r'href="(https://[^"]*)"', html.unescape(shown)) for shown in (tab, page_html)]
    assert found == [[of_gang, of_rank], [of_gang]], "the page has one row for all ranks"


async def test_one_gang_is_read_by_at_most_eight_requests_and_none_twice() -> None:
    sent = {name: one.requests for name, one in (await tell()).items()}

    assert {name: requests for name, requests in sent.items() if len(requests) > 8} == {}
    assert {name: requests for name, requests in sent.items() if len(set(requests)) < len(requests)} == {}

"""The check-up of a cluster: small coroutines that read, and pass what they read to the rules of `gang.checkup`.

Each check sends few requests and changes nothing, except `try_gang`, which runs a gang of two pods and deletes it. A
check that fails is a finding of its own: what could not be read is unknown, and the other checks go on.

    async with GangService.connect(config) as service:
        findings = await examine(service, Examination(namespace="ml"))
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import yaml
from msgspec import Struct

from airflow_provider_gangjobs.cluster.errors import ApiError, ClusterError, Forbidden, NotFound, is_webhook_unavailable
from airflow_provider_gangjobs.cluster.http.connections import describe_exception
from airflow_provider_gangjobs.cluster.kueue import VERSIONS, served_versions
from airflow_provider_gangjobs.cluster.served_resources import read_api_group, read_group_names, review
from airflow_provider_gangjobs.ending.submissions import is_half_submitted
from airflow_provider_gangjobs.exceptions import GangJobError
from airflow_provider_gangjobs.gang import checkup
from airflow_provider_gangjobs.gang.checkup import CONTROLLER_SILENT_S, Finding, Health, Right, ok, problem, unknown
from airflow_provider_gangjobs.gang.schedulers import SEPARATE_SCHEDULERS
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, JOBS, KUEUE_GROUP, Resource
from airflow_provider_gangjobs.kube.text import to_one_line
from airflow_provider_gangjobs.kube.yaml_errors import YAML_ERRORS
from airflow_provider_gangjobs.service.gangs import HALF_SUBMITTED_FOR, follow
from airflow_provider_gangjobs.submission.capabilities import probe_job
from airflow_provider_gangjobs.tracking.gang_listing import list_gangs
from airflow_provider_gangjobs.tracking.overview import held_pods

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.service.gangs import GangService

RULES_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", namespaced=False
)
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
KUEUE_NAMESPACE: Final = "kueue-system"
KUEUE_CONFIGURATION: Final = "kueue-manager-config"
KUEUE_MANAGER: Final = "kueue-controller-manager"
"""Where Kueue's own manifests and its Helm chart install it by default."""
TRY_WITHIN_S: Final = 120.0
TRY_IMAGE: Final = "registry.k8s.io/pause:3.10"
"""Every cluster can pull this image, or has it, because it is that of the sandbox of pods."""


class Examination(Struct, frozen=True):
    """What is examined."""

    namespace: str
    queue: str | None = None
    """The LocalQueue that gangs use; `None` for all queues of the namespace."""
    assemble_timeout_s: float | None = None
    """The `assemble_timeout` of the tasks, which is compared with Kueue's."""
    tries_gang: bool = False
    """Run a gang of two pods, the only proof that the feature gates of scheduler and controllers are on."""
    try_within_s: float = TRY_WITHIN_S
    """How long this gang may wait in its queue, and how long it may take to assemble."""
    image: str = TRY_IMAGE
    command: tuple[str, ...] | None = None
    """What these pods run; `None` for the entrypoint of the image. It must not end by itself within seconds."""


Check = Callable[["GangService", Examination], Awaitable[Sequence[Finding]]]


async def examine(service: GangService, what: Examination) -> list[Finding]:
    """Run all checks, and return their findings in order. If the server cannot be reached, that is the only finding."""
    connection = await check_connection(service)
    findings = [connection]
    if connection.health is Health.PROBLEM:
        return findings
    checks = {**CHECKS, "placement": check_placement} if what.tries_gang else CHECKS
    for name, check in checks.items():
        try:
            findings += await check(service, what)
        except Forbidden as error:
            findings.append(unknown(name, f"it may not be read: {to_one_line(error)}"))
        except (ClusterError, GangJobError) as error:
            findings.append(unknown(name, to_one_line(error)))
    return findings


async def check_connection(service: GangService) -> Finding:
    """Ask the server for its version."""
    check = "connection"
    try:
        version = await service.client.version()
    except ClusterError as error:
        refused = "Renew the credentials of the connection, or check that the address is that of an API server"
        other = "Check the address, the kubeconfig and its context, and that this machine reaches the cluster"
        return problem(check, to_one_line(error), refused if isinstance(error, ApiError) else other)
    return ok(check, f"Kubernetes {version.get('gitVersion', 'of an unknown release')} answers")


async def check_clocks(service: GangService, what: Examination) -> Sequence[Finding]:
    """Compare the clock of the server with that of this machine."""
    clock = service.client.server_clock
    return [checkup.judge_skew(clock.ahead_s if clock.is_known else None)]


async def check_rights(service: GangService, what: Examination) -> Sequence[Finding]:
    """Ask which rights the connection has: all at once, and one by one where that answer is not complete."""
    wanted = checkup.wanted_rights(await read_group_names(service.client))
    body = {
        "apiVersion": RULES_REVIEWS.api_version,
        "kind": RULES_REVIEWS.kind,
        "spec": {"namespace": what.namespace},
    }
    status = (await service.client.create(RULES_REVIEWS, body)).get("status") or {}
    missing = {right: verbs for right in wanted if (verbs := right.missing_verbs(status.get("resourceRules") or ()))}
    asked = missing if status.get("incomplete") else {}
    asked = {**asked, **{right: right.verbs for right in wanted if right.in_all_namespaces}}
    missing |= {right: await _denied(service, what.namespace, right, verbs) for right, verbs in asked.items()}
    return checkup.judge_rights({right: verbs for right, verbs in missing.items() if verbs}, wanted, what.namespace)


async def _denied(service: GangService, namespace: str, right: Right, verbs: Sequence[str]) -> tuple[str, ...]:
    where = None if right.in_all_namespaces else namespace
    answers = [(verb, await review(service.client, verb, right.group, right.resource, where)) for verb in verbs]
    return tuple(verb for verb, is_granted in answers if not is_granted)


async def check_admission(service: GangService, what: Examination) -> Sequence[Finding]:
    """POST a Job of two pods as a dry run, which quotas, policies and webhooks may refuse."""
    check = "admission of Jobs"
    try:
        await service.client.create(JOBS, probe_job(what.namespace), what.namespace, dry_run=True)
    except NotFound:
        remedy = "Create the namespace, or correct the namespace of the connection or the command"
        return [problem(check, f"namespace {what.namespace} does not exist", remedy)]
    except ApiError as error:
        if is_webhook_unavailable(error):
            return [
                problem(check, to_one_line(error), "Start the controller of this webhook, or remove its configuration")
            ]
        if error.transient:
            raise
        return [problem(check, to_one_line(error), _admission_remedy(error))]
    return [ok(check, "the API server would store a Job")]


_DENIED: Final = re.compile(r"denied (?:the )?request")
"""A part of the messages of admission webhooks, and of ValidatingAdmissionPolicies."""


def _admission_remedy(error: ApiError) -> str:
    if _DENIED.search(error.message):
        return "Change the policy behind this webhook, or give the gang what the policy asks for"
    if isinstance(error, Forbidden) and "cannot create" in error.message:
        return "Give the connection the rights that `gangjobs rbac` prints"
    return "Correct what the message names"


async def check_workload_api(service: GangService, what: Examination) -> Sequence[Finding]:
    """Find out whether the API server stores a gang."""
    found = await service.capabilities()
    evidence = "; ".join(found.unknown.values()) or found.gates[0].evidence
    findings = [checkup.judge_workload_api(found.holds_gangs, found.dialects, evidence, found.release or "")]
    if found.holds_gangs and not what.tries_gang:
        why = "no request shows whether the feature gates of scheduler and controller manager are on"
        findings.append(unknown("placement", why, "Run gangjobs doctor --try, which runs a gang of two pods"))
    return findings


async def check_schedulers(service: GangService, what: Examination) -> Sequence[Finding]:
    """Find out which schedulers beside the default one are installed."""
    reasons = {}
    for scheduler in SEPARATE_SCHEDULERS:
        if scheduler.api_group is None:  # no request shows YuniKorn
            continue
        group = await read_api_group(service.client, scheduler.api_group)
        reasons[scheduler.name] = scheduler.guarantee(group).reason
    return [checkup.judge_schedulers(reasons, service.client.config.gang_scheduler)]


async def check_queues(service: GangService, what: Examination) -> Sequence[Finding]:
    """Read the LocalQueues of the namespace, and the version and configuration of Kueue."""
    named = what.queue or service.client.config.queue_name
    served = await served_versions(service.client)
    if served is None:
        return [unknown("queues", "the API server does not say whether Kueue is installed")]
    version = next((version for version in VERSIONS if version in served), None)
    if version is None:
        missing = problem("queues", f"queue {named} is named, and Kueue is not installed", "Install Kueue")
        return [missing] if named else [ok("queues", "Kueue is not installed")]
    queues = await service.client.list(Resource(KUEUE_GROUP, version, "localqueues", "LocalQueue"), what.namespace)
    return [checkup.judge_queues(queues, named, what.namespace), await _kueue_version(service, version)]


async def _kueue_version(service: GangService, served: str) -> Finding:
    check = "Kueue"
    try:
        manager = await service.client.get(DEPLOYMENTS, KUEUE_MANAGER, KUEUE_NAMESPACE)
    except (Forbidden, NotFound) as error:
        return unknown(check, f"its API is {served}; its version may not be read or is elsewhere: {to_one_line(error)}")
    image = _image_of(manager)
    if not (manager.get("status") or {}).get("readyReplicas"):
        return problem(check, f"no replica of {KUEUE_MANAGER} is ready ({image})", "Start the manager of Kueue")
    return ok(check, f"its API is {served}, its manager {image}")


def _image_of(manager: Mapping[str, Any]) -> str:
    return str(manager["spec"]["template"]["spec"]["containers"][0]["image"])


async def check_pods_ready(service: GangService, what: Examination) -> Sequence[Finding]:
    """Compare Kueue's `waitForPodsReady` with the time that tasks leave their gangs to assemble."""
    if not await served_versions(service.client):
        return []
    check = "waitForPodsReady of Kueue"
    stored = await service.client.get(CONFIGMAPS, KUEUE_CONFIGURATION, KUEUE_NAMESPACE)
    text = next(iter((stored.get("data") or {}).values()), "")
    try:
        configuration = yaml.safe_load(text)
    except YAML_ERRORS as error:
        return [
            unknown(check, f"ConfigMap {KUEUE_CONFIGURATION} is not YAML: {to_one_line(describe_exception(error))}")
        ]
    if not isinstance(configuration, Mapping):
        return [unknown(check, f"ConfigMap {KUEUE_CONFIGURATION} has no configuration")]
    image = ""
    with suppress(Forbidden, NotFound):
        image = _image_of(await service.client.get(DEPLOYMENTS, KUEUE_MANAGER, KUEUE_NAMESPACE))
    return [checkup.judge_pods_ready(configuration, image, what.assemble_timeout_s)]


async def check_leftovers(service: GangService, what: Examination) -> Sequence[Finding]:
    """Look for half-submitted gangs, for Jobs that the Job controller ignores, and for held pods without a Job."""
    client = service.client
    held = await held_pods(client, what.namespace)
    gangs = await list_gangs(client, what.namespace)
    now = client.server_clock.now()
    half = [gang.ref.name for gang in gangs if is_half_submitted(gang, now=now, older_than=HALF_SUBMITTED_FOR)]
    silent = [gang.ref.name for gang in gangs if _is_ignored(gang, now)]
    for gang in gangs:
        held.pop(gang.ref, None)
    orphans = sorted(pod.metadata.name for pods in held.values() for pod in pods)
    installations = Counter(gang.installation for gang in gangs)
    return [
        checkup.judge_half_submitted(half),
        checkup.judge_controller(silent),
        checkup.judge_held_pods(orphans),
        checkup.judge_installations(installations),
    ]


def _is_ignored(gang: StoredGang, now: datetime) -> bool:
    """Return whether the Job controller has not started the main Job, which is not suspended, for a long time."""
    main = gang.main
    if main.is_suspended or gang.is_ended or main.status.start_time is not None or main.created_at is None:
        return False
    return (now - main.created_at).total_seconds() > CONTROLLER_SILENT_S


async def check_placement(service: GangService, what: Examination) -> Sequence[Finding]:
    """Find out whether the cluster places a gang."""
    return [await try_gang(service, what)]


async def try_gang(service: GangService, what: Examination) -> Finding:
    """Run a gang of two pods until both run, and delete it."""
    check = "placement"
    spec = GangSpec(
        image=what.image,
        command=what.command,
        workers=2,
        name="gangjobs-doctor",
        namespace=what.namespace,
        resources={"cpu": "10m", "memory": "16Mi"},
        queue_name=what.queue,
        rendezvous=False,
        assemble_timeout_s=what.try_within_s,
        termination_grace_s=0,
    )
    began = service.client.clock.monotonic()
    try:
        submission = await service.submit(spec, submission_id=f"doctor-{secrets.token_hex(5)}")
    except GangJobError as error:
        return problem(check, to_one_line(error), error.remedy or "Correct what the message names")
    limit_s, why_left = what.try_within_s, ""
    try:
        async with asyncio.timeout(limit_s + CONTROLLER_SILENT_S):  # the deadlines begin when the Job controller acts
            event = await follow(
                service.client.config,
                submission.ref,
                until="running",
                deadlines=Deadlines(queue_s=limit_s, assemble_s=limit_s),
            )
        found = _judge_try(event, submission.decision, service.client.clock.monotonic() - began)
    except TimeoutError:
        found = checkup.judge_controller([submission.ref.name])
    finally:
        try:
            await service.delete(submission.ref, deleted_by="gangjobs doctor")
        except ClusterError as error:
            why_left = to_one_line(error)
    if why_left:
        return problem(check, f"{found.what}; it was not deleted: {why_left}", f"Run gangjobs delete {submission.ref}")
    return found


def _judge_try(event: GangEvent, decision: str, seconds: float) -> Finding:
    check = "placement"
    if event.status in (Status.RUNNING, Status.SUCCEEDED):
        return ok(check, f"a gang of two pods ran after {seconds:.0f} s ({decision})")
    message = to_one_line(event.message) or event.reason
    if event.status is Status.ERROR:
        return unknown(check, f"the gang of two pods could not be followed: {message}")
    return problem(check, f"a gang of two pods did not run: {message}", event.remedy or "See the message")


CHECKS: Final[Mapping[str, Check]] = {
    "clocks": check_clocks,
    "rights": check_rights,
    "admission of Jobs": check_admission,
    "Workload API": check_workload_api,
    "schedulers": check_schedulers,
    "queues": check_queues,
    "waitForPodsReady of Kueue": check_pods_ready,
    "leftovers": check_leftovers,
}
"""The checks after that of the connection, by the name of the finding if a check cannot be made."""

__all__ = ["CHECKS", "Examination", "examine", "try_gang"]

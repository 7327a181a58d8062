"""Render the Job of a spec, and the objects that the Job owns. Pure: the same spec and attempt give the same objects.

The Job is always rendered suspended. The submission resumes it when all other objects exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.gang.identity import TaskKey, job_set_job_name, owned_by, owned_by_job, role_job_name
from airflow_provider_gangjobs.gang.queues import Queue, parse_topology
from airflow_provider_gangjobs.gang.record import Record, StoredClaim, to_text
from airflow_provider_gangjobs.gang.render import files
from airflow_provider_gangjobs.gang.render.placement import (
    Placement,
    PlacementDecision,
    Shape,
    completion_mode,
    rendezvous_of,
    shape_of,
    time_limit,
)
from airflow_provider_gangjobs.gang.render.pod_template import gang_template, labels_of, role_template
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.schedulers import SchedulingGroup
from airflow_provider_gangjobs.gang.spec import roles_of, spec_of_role
from airflow_provider_gangjobs.kube import well_known as keys
from airflow_provider_gangjobs.kube.quantity import format_amounts, requests_of, total_of
from airflow_provider_gangjobs.kube.resources import JOB_SETS
from airflow_provider_gangjobs.kube.well_known import ObjectPurpose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.gang.identity import Attempt
    from airflow_provider_gangjobs.gang.schedulers import GangScheduler
    from airflow_provider_gangjobs.gang.spec import GangSpec, RoleRanks
    from airflow_provider_gangjobs.kube.views import Object

TTL_AFTER_FINISHED_S: Final = 7 * 24 * 3600
"""A week: time to look at a failed gang, and to read a result later."""


def render_job(
    spec: GangSpec,
    attempt: Attempt,
    decision: PlacementDecision,
    scheduler: GangScheduler | None = None,
    shape: Shape | None = None,
) -> Object:
    """Render the Job of a valid spec, suspended, or the main Job of a gang with roles.

    :param shape: The shape of the gang, if it has defaults of the connection.
    """
    manifest = manifest_of(spec)
    shape = shape or shape_of(spec, manifest)
    if spec.roles is not None:
        return render_first_role(spec, attempt, decision, scheduler, shape)
    queue = Queue(shape.kueue_queue, shape.kueue_priority, spec.topology)
    template = gang_template(spec, manifest, shape, attempt)
    template["metadata"]["annotations"] |= queue.pod_annotations()
    record = _record_of(spec, attempt, decision, shape, queue, (template, shape.size))
    metadata = _metadata(spec, manifest, attempt, queue, record)
    job_spec = {**_job_spec(spec, manifest, shape, decision), "template": template}
    job: Object = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job_spec}
    if decision.placement is Placement.GANG and scheduler is not None:
        return scheduler.with_link(job, group_of(job, shape))
    return job


def _record_of(
    spec: GangSpec,
    attempt: Attempt,
    decision: PlacementDecision,
    shape: Shape,
    queue: Queue,
    *templates: tuple[Object, int],
) -> Record:
    """Return the record of a gang of one Job.

    :param templates: The pod templates of the gang, and the number of their ranks.
    """
    key = attempt.key
    return Record(
        submission_id=attempt.submission_id,
        task=key if isinstance(key, TaskKey) else None,
        spec_hash=spec.hash,
        fields=spec.field_digests,
        placement=str(decision),
        requests=format_amounts(total_of((requests_of(template["spec"]), ranks) for template, ranks in templates)),
        queue=queue.name,
        restarts=spec.restarts if spec.is_supervised else None,
        restarts_alone=spec.is_supervised and shape.size > 1 and rendezvous_of(spec, shape) is None,
        disruptions=attempt.disruptions,
    )


def render_first_role(
    spec: GangSpec, attempt: Attempt, decision: PlacementDecision, scheduler: GangScheduler | None, shape: Shape
) -> Object:
    """Render the main Job of a gang with roles: the Job of the first role, or a Job without pods."""
    roles, queue = roles_of(spec), Queue(shape.kueue_queue, has_job_set=True)
    templates = [(role_template(spec, role, attempt), role.size) for role in roles]
    record = _record_of(spec, attempt, decision, shape_of(spec, {}), queue, *templates)
    metadata = _metadata(spec, {}, attempt, queue, replace(record, roles=roles, ttl_s=_ttl_s(spec, {})))
    if shape.kueue_queue is not None:
        return _without_pods(_role_job(spec, roles[0], attempt, decision, None, metadata))
    metadata["labels"][keys.LABEL_GANG_ROLE] = roles[0].name
    return _role_job(spec, roles[0], attempt, decision, scheduler, metadata)


def _without_pods(job: Object) -> Object:
    """Return the main Job of a gang whose roles are a JobSet, from the Job of its first role.

    It runs no pod by its template, and has no time limit, because it runs from its submission on.
    """
    job_spec = {name: value for name, value in job["spec"].items() if name != "activeDeadlineSeconds"}
    return {**job, "spec": {**job_spec, "parallelism": 0}}


def render_role(
    spec: GangSpec,
    role: RoleRanks,
    attempt: Attempt,
    decision: PlacementDecision,
    scheduler: GangScheduler | None,
    main_job_uid: str,
) -> Object:
    """Render the Job of a role that is not the first one, suspended. The main Job owns it.

    The Job has no label of its task, so whoever lists the gangs of a task finds the main Job only.
    """
    metadata: Object = {
        "name": role_job_name(attempt.name, role.name),
        "namespace": attempt.namespace,
        **_role_metadata(spec, role, attempt),
        "ownerReferences": [owned_by_job(attempt.name, main_job_uid, blocks_deletion=True)],
    }
    job = _role_job(spec, role, attempt, decision, scheduler, metadata)
    job["spec"]["template"]["metadata"]["labels"][keys.LABEL_JOB_UID] = main_job_uid
    return job


def render_job_set(
    spec: GangSpec, attempt: Attempt, decision: PlacementDecision, shape: Shape, main_job_uid: str
) -> Object:
    """Render the JobSet of a gang with roles in a queue, suspended. The main Job owns the JobSet.

    The JobSet has one Job for each role, and no label of its queue. Without a failure policy, it fails when one of its
    Jobs has failed. The Service of the gang gives the host names.
    """
    queue = Queue(shape.kueue_queue, shape.kueue_priority)
    return {
        "apiVersion": JOB_SETS.api_version,
        "kind": JOB_SETS.kind,
        "metadata": {
            "name": attempt.name,
            "namespace": attempt.namespace,
            "labels": {
                **attempt.claim.labels,
                **_without_queue(spec.labels),
                **queue.labels(),
                **_labels_of_role_job(attempt),
            },
            "annotations": dict(spec.annotations),
            # Kueue would leave a JobSet alone that a Job controls.
            "ownerReferences": [owned_by("batch/v1", "Job", attempt.name, main_job_uid, blocks_deletion=True)],
        },
        "spec": {
            "suspend": True,
            "network": {"enableDNSHostnames": False},
            "replicatedJobs": [_replicated_job(spec, role, attempt, decision, main_job_uid) for role in roles_of(spec)],
        },
    }


def _replicated_job(
    spec: GangSpec, role: RoleRanks, attempt: Attempt, decision: PlacementDecision, main_job_uid: str
) -> Object:
    metadata = _role_metadata(spec, role, attempt)
    first_job = job_set_job_name(attempt.name, roles_of(spec)[0].name)
    job = _role_job(spec, role, attempt, decision, None, metadata, first_job=first_job)
    metadata["labels"] = {**_without_queue(metadata["labels"]), keys.LABEL_JOB_UID: main_job_uid}
    del job["spec"]["suspend"]  # the JobSet controller suspends and resumes the Jobs of a JobSet
    job["spec"]["template"]["metadata"]["labels"][keys.LABEL_JOB_UID] = main_job_uid
    return {"name": role.name, "replicas": 1, "template": {"metadata": metadata, "spec": job["spec"]}}


def _role_metadata(spec: GangSpec, role: RoleRanks, attempt: Attempt) -> Object:
    return {
        "labels": {
            **attempt.claim.labels,
            **spec.labels,
            **_labels_of_role_job(attempt),
            keys.LABEL_GANG_ROLE: role.name,
        },
        "annotations": dict(spec.annotations),
    }


def _labels_of_role_job(attempt: Attempt) -> dict[str, str]:
    return {name: value for name, value in labels_of(attempt).items() if name != keys.LABEL_TASK}


def _without_queue(labels: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in labels.items() if name not in {keys.LABEL_KUEUE_QUEUE, keys.LABEL_KUEUE_PRIORITY}
    }


def _role_job(
    spec: GangSpec,
    role: RoleRanks,
    attempt: Attempt,
    decision: PlacementDecision,
    scheduler: GangScheduler | None,
    metadata: Object,
    *,
    first_job: str | None = None,
) -> Object:
    role_spec = spec_of_role(spec, role.name)
    job_spec = _job_spec(role_spec, {}, shape_of(role_spec, {}), decision)
    # The first Job that ends must not be deleted while another one runs. The main Job gets its time to live at the end.
    del job_spec["ttlSecondsAfterFinished"]
    job_spec["template"] = role_template(spec, role, attempt, first_job=first_job)
    job: Object = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job_spec}
    if decision.placement is Placement.GANG and scheduler is not None:
        return scheduler.with_link(job, group_of(job, shape_of(spec, {})))
    return job


def group_of(job: Mapping[str, Any], shape: Shape) -> SchedulingGroup:
    """Return the scheduling group of the pods of a rendered Job, which all Jobs of a gang share."""
    metadata, template = job["metadata"], job["spec"]["template"]
    topology = parse_topology(shape.group_topology) if shape.group_topology else None
    return SchedulingGroup(
        name=metadata["labels"][keys.LABEL_GANG],
        namespace=metadata["namespace"],
        min_count=shape.min_count or shape.size,
        topology=topology[1] if topology else None,
        resource_claims=shape.group_claims,
        priority_class=template["spec"].get("priorityClassName"),
        pod_annotations=template.get("metadata", {}).get("annotations", {}),
    )


def render_service(spec: GangSpec, attempt: Attempt, job_uid: str) -> Object | None:
    """Render the headless Service, unless rendezvous is off."""
    settings = rendezvous_of(spec, shape_of(spec, manifest_of(spec)))
    if settings is None:
        return None
    supervisor = [{"name": files.PORT_NAME, "port": files.PORT}] if spec.is_supervised else []
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": attempt.name,
            "namespace": attempt.namespace,
            "labels": {keys.LABEL_GANG: attempt.name, keys.LABEL_PURPOSE: ObjectPurpose.RENDEZVOUS.value},
            "ownerReferences": [owned_by_job(attempt.name, job_uid)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {keys.LABEL_GANG: attempt.name},
            "ports": [{"name": "rendezvous", "port": settings.port}, *supervisor],
        },
    }


def render_files(spec: GangSpec, attempt: Attempt, job_uid: str, *, supervisor_key: str = "") -> Object | None:
    """Render the ConfigMap of the gang's files; `None` if it has no files.

    :param supervisor_key: A new key, by which the supervisors of the gang authenticate each other if it has some.
    """
    own = files.files_of(spec)
    if not own:
        return None
    if spec.is_supervised:
        own[files.KEY_FILE] = supervisor_key
    owner = owned_by_job(attempt.name, job_uid)
    return files.config_map_of(own, job=attempt.name, namespace=attempt.namespace, owner=owner)


def _metadata(spec: GangSpec, manifest: Object, attempt: Attempt, queue: Queue, record: Record) -> Object:
    in_manifest, limit, claim = manifest.get("metadata", {}), time_limit(spec, manifest), attempt.claim
    source = limit.source if limit is not None else ""
    stored = StoredClaim(id=claim.id, max_tries=claim.max_tries, policies=claim.policies, time_limit=source)
    annotations = {keys.ANNOTATION_RECORD: record.to_text(), keys.ANNOTATION_CLAIM: to_text(stored)}
    given = {**claim.labels, **in_manifest.get("labels", {}), **spec.labels}
    labels = {**given, **queue.labels(), **labels_of(attempt)}
    # With this label, Kueue could let the Job run before the Job has its Service, its files and its group.
    labels.pop(keys.LABEL_KUEUE_QUEUE, None)
    return {
        **in_manifest,
        "name": attempt.name,
        "namespace": attempt.namespace,
        "labels": labels,
        "annotations": {**in_manifest.get("annotations", {}), **spec.annotations, **annotations},
    }


def _job_spec(spec: GangSpec, manifest: Object, shape: Shape, decision: PlacementDecision) -> Object:
    job = dict(manifest.get("spec", {}))
    if shape.shared_claims:
        del job["scheduling"]  # the group has the claims
    job["suspend"] = True
    job["parallelism"] = shape.parallelism
    if shape.completions is not None:
        job["completions"] = shape.completions
    job["completionMode"] = completion_mode(spec, manifest)
    if not manifest or decision.placement is Placement.GANG:
        job.setdefault("backoffLimit", 0)
    # With this policy the Job controller counts a pod only after it has ended, so its counters agree with the outcomes.
    job["podReplacementPolicy"] = "Failed"
    limit = time_limit(spec, manifest)
    if limit is not None:
        job["activeDeadlineSeconds"] = limit.seconds
    job["ttlSecondsAfterFinished"] = _ttl_s(spec, manifest)
    return job


def _ttl_s(spec: GangSpec, manifest: Object) -> int:
    if spec.ttl_after_finished_s is not None:
        return spec.ttl_after_finished_s
    in_manifest: int = manifest.get("spec", {}).get("ttlSecondsAfterFinished", TTL_AFTER_FINISHED_S)
    return in_manifest

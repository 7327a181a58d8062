"""A JobSet is a gang: each replicated Job is a role, and the only one all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.convert.host_names import map_texts
from airflow_provider_gangjobs.convert.task import Part, Task, merged, pods
from airflow_provider_gangjobs.kube.well_known import COMPLETION_INDEX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.convert.documents import Document

_JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
_KEPT: Final = ("name", "replicas", "template", "parallelism", "completions", "completionMode")


def convert(document: Document) -> Task:
    """Return the workload of a JobSet."""
    spec = dict(document.data["spec"])
    jobs, network = spec.pop("replicatedJobs"), spec.pop("network", {})
    claims = [
        claim["metadata"]["name"] for policy in spec.get("volumeClaimPolicies", ()) for claim in policy["templates"]
    ]
    for job in jobs:
        _add_claims(document, job["template"]["spec"]["template"]["spec"], claims)
    task = Task(document, merged([_part(document, job) for job in jobs]), network.get("subdomain", document.name))
    is_one_job = len(jobs) == 1 and jobs[0].get("replicas", 1) == 1
    for job in jobs:
        fields = {**job, **({} if is_one_job else job["template"]["spec"])}
        task.leave_out({name: value for name, value in fields.items() if name not in _KEPT})
    if restarts := spec.get("failurePolicy", {}).get("maxRestarts"):
        task.parameters["retries"] = restarts
    task.take_limits(spec)
    task.leave_out(spec)
    task.warn_about(r"jobset\.sigs\.k8s\.io/[\w-]+", "the pods of a gang have no such name or number")
    return task


def _part(document: Document, job: dict[str, Any]) -> Part:
    name, spec, replicas = job["name"], job["template"]["spec"], job.get("replicas", 1)
    template, pods_of_job, prefix = template_of(job["template"]), spec.get("parallelism", 1), f"{document.name}-{name}"
    if replicas > 1 and pods_of_job == 1:  # the index of a Job is that of its pod here
        template = map_texts(template, lambda text: text.replace(_JOB_INDEX, COMPLETION_INDEX))
        return Part(name, pods(replicas, template), prefix, "-0")
    if replicas == 1:
        spec = {"completionMode": "Indexed", "backoffLimit": 0, **spec, "template": template}
        return Part(name, spec, f"{prefix}-0")
    return Part(name, pods(replicas * pods_of_job, template), f"{prefix}-0")


def _add_claims(document: Document, pod: dict[str, Any], claims: Sequence[str]) -> None:
    """Add the volumes of the claims that the containers mount, with the names that JobSet gives to the claims."""
    mounted = {mount["name"] for one in pod["containers"] for mount in one.get("volumeMounts", ())}
    for name in (name for name in claims if name in mounted):
        volume = {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{document.name}"}}
        pod["volumes"] = [*pod.get("volumes", ()), volume]


def template_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the pods of a Job template, with its labels and annotations, because the gang is one Job."""
    template: dict[str, Any] = job["spec"]["template"]
    own, of_pods = job.get("metadata", {}), template.get("metadata", {})
    both = {kind: {**own.get(kind, {}), **of_pods.get(kind, {})} for kind in ("labels", "annotations")}
    return {**template, "metadata": {**of_pods, **both}}

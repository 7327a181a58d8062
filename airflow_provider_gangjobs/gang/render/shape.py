"""The shape of a gang: how many pods, how they are numbered, and who else has a say in it.

Read from the spec and its manifest together, before anything is rendered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.labels import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous

if TYPE_CHECKING:
    from collections.abc import Mapping

INDEXED: Final = "Indexed"
NON_INDEXED: Final = "NonIndexed"


@dataclass(frozen=True)
class Shape:
    """What decides whether the pods can be a gang (KEP-5547), and what is left to others."""

    parallelism: int
    completions: int | None
    indexed: bool
    backoff_limit: int
    per_index_backoff: bool = False
    min_count: int | None = None
    user_gang_link: str | None = None
    """Path of a gang link that the manifest brings: it is respected, and nothing of ours is created."""
    controller: str | None = None
    """`Kind/name` of a controller that owns the Job, by the manifest's ownerReferences."""
    kueue_queue: str | None = None
    """Kueue's queue. With it, Kueue decides when the Job starts."""
    subdomain: str | None = None
    """The manifest's own Service for its pods' names."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.completions or self.parallelism


def shape_of(spec: GangSpec, manifest: Mapping[str, Any]) -> Shape:
    """The shape that `render` gives the Job. Both must have passed the structural checks."""
    job = manifest.get("spec", {})
    pod = _pod_spec(spec, job)
    return Shape(
        parallelism=_first(spec.workers, job.get("parallelism"), 1),
        completions=_first(spec.workers, job.get("completions"), None if manifest else 1),
        indexed=completion_mode(spec, manifest) == INDEXED,
        backoff_limit=_first(job.get("backoffLimit"), 0),
        per_index_backoff="backoffLimitPerIndex" in job,
        min_count=spec.min_workers,
        user_gang_link=_user_gang_link(job, pod),
        controller=_controller(manifest),
        kueue_queue={**manifest.get("metadata", {}).get("labels", {}), **spec.labels}.get(LABEL_KUEUE_QUEUE),
        subdomain=pod.get("subdomain"),
    )


def completion_mode(spec: GangSpec, manifest: Mapping[str, Any]) -> str:
    """The manifest's own mode; Indexed where the size was given by `workers`, or there is no manifest."""
    default = NON_INDEXED if manifest and spec.workers is None else INDEXED
    return str(manifest.get("spec", {}).get("completionMode", default))


def rendezvous_of(spec: GangSpec, shape: Shape) -> Rendezvous | None:
    """How ranks find each other, or None. On by default for more than one rank, if ranks are numbered."""
    if isinstance(spec.rendezvous, Rendezvous):
        return spec.rendezvous
    wanted = shape.size > 1 and shape.indexed if spec.rendezvous is None else spec.rendezvous
    return Rendezvous() if wanted else None


def _pod_spec(spec: GangSpec, job: Mapping[str, Any]) -> dict[str, Any]:
    user = job.get("template", {}).get("spec", {})
    return {**user, **((spec.pod_overrides or {}).get("spec") or {})}


def _user_gang_link(job: Mapping[str, Any], pod: Mapping[str, Any]) -> str | None:
    if "scheduling" in job:
        return "spec.scheduling"
    links = (name for name in ("schedulingGroup", "workloadRef") if pod.get(name))
    return next((f"spec.template.spec.{name}" for name in links), None)


def _controller(manifest: Mapping[str, Any]) -> str | None:
    owners = manifest.get("metadata", {}).get("ownerReferences", [])
    return next((f"{o.get('kind')}/{o.get('name')}" for o in owners if o.get("controller") is True), None)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)

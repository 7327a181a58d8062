"""Versions of the Workload API that are newer than the provider: dry runs show whether they can be used.

A newer version is expected to have the fields of the newest known one. A server drops fields that it does not know, so
a dry run of a Job, a Workload and a PodGroup shows whether the link and the group are kept.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.errors import ClusterError, Forbidden
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.cluster.resources import JOBS, Resource
from airflow_provider_gangjobs.gang.schedulers.base import SchedulingGroup
from airflow_provider_gangjobs.submission.probe_job import PROBE, PROBE_SIZE, probe_job

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.schedulers.base import ApiKind
    from airflow_provider_gangjobs.gang.schedulers.native import Dialect

log = logging.getLogger(__name__)

PROVEN_FOR_S: Final = 600.0
"""How long the result of the dry runs of a version is used."""
_REFERENCE: Final = "workloadRef"
"""The field by which a PodGroup refers to its Workload."""


async def why_unusable(client: Client, dialect: Dialect, namespace: str) -> str:
    """Return why a version of the Workload API cannot be used; empty if dry runs keep the link and the group.

    :param namespace: The namespace of the dry runs, in which the provider may create Jobs.
    """
    known = loop_local(_Results).known
    key = client.config.key, dialect.version
    reason, expires_at = known.get(key, ("", 0.0))
    if client.clock.monotonic() >= expires_at:
        reason = await _dry_run(client, dialect, namespace)
        known[key] = reason, client.clock.monotonic() + PROVEN_FOR_S
        result = f"It is not used: {reason}" if reason else "It is used, because dry runs keep the link and the group"
        log.info("scheduling.k8s.io/%s is newer than this release of the provider. %s", dialect.version, result)
    return reason


class _Results:
    def __init__(self) -> None:
        self.known: dict[tuple[str, str], tuple[str, float]] = {}


async def _dry_run(client: Client, dialect: Dialect, namespace: str) -> str:
    group = SchedulingGroup(PROBE, namespace, PROBE_SIZE, PROBE_SIZE)
    workload, pod_group = dialect.workload(group, ""), dialect.pod_group(group, "", "")
    try:
        stored = await client.create(JOBS, dialect.with_link(probe_job(namespace), group), namespace, dry_run=True)
        if not dialect.has_link(stored, group):
            return f"a dry run drops {dialect.link_path}"
        for kind, rendered in zip(dialect.objects, (workload, pod_group), strict=True):
            if rendered is not None and not await _keeps_spec(client, kind, rendered, namespace):
                return f"a dry run drops fields of the {kind.kind}"
    except ClusterError as error:
        return f"the server refuses a dry run: {error}"
    return ""


async def _keeps_spec(client: Client, kind: ApiKind, rendered: dict[str, Any], namespace: str) -> bool:
    """Return whether the server would store all fields of the spec of a Workload or a PodGroup.

    The server refuses a PodGroup whose Workload does not exist. That shows that the server knows the reference, and the
    other fields are checked without it.
    """
    metadata = {name: value for name, value in rendered["metadata"].items() if name != "ownerReferences"}
    body = {**rendered, "metadata": metadata}
    try:
        stored = await client.create(Resource(*kind), body, namespace, dry_run=True)
    except Forbidden as error:
        if _REFERENCE not in body["spec"] or PROBE not in error.message or "not found" not in error.message:
            raise
        spec = {name: value for name, value in body["spec"].items() if name != _REFERENCE}
        return await _keeps_spec(client, kind, {**body, "spec": spec}, namespace)
    return _contains(stored.get("spec"), body["spec"])


def _contains(stored: Any, wanted: Any) -> bool:
    """Return whether all fields of `wanted` are in `stored`, which may have further fields with defaults."""
    if isinstance(wanted, dict):
        return isinstance(stored, dict) and all(_contains(stored.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(stored, list) and len(stored) == len(wanted)
        return same and all(_contains(*pair) for pair in zip(stored, wanted, strict=True))
    return bool(stored == wanted)


__all__ = ["why_unusable"]

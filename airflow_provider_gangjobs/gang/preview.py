"""The objects that a submission would create, without a cluster.

Only a cluster knows the version of the Workload API that it serves, and the UIDs of its objects. The preview shows the
version that is named, or else the newest known one, and placeholders for UIDs. Values of the connection, such as its
namespace and its queue, are not in the preview.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import yaml
from msgspec.structs import replace

from airflow_provider_gangjobs.exceptions import GangUnsupported
from airflow_provider_gangjobs.gang.identity import Claim, build_attempt, main_job_name_max
from airflow_provider_gangjobs.gang.render.job_manifest import (
    group_of,
    render_files,
    render_job,
    render_job_set,
    render_role,
    render_service,
)
from airflow_provider_gangjobs.gang.render.placement import (
    Placement,
    Shape,
    decide_placement,
    shape_of,
)
from airflow_provider_gangjobs.gang.render.user_manifest import (
    manifest_of,
    requested_name,
    requested_namespace,
    with_parsed_manifest,
)
from airflow_provider_gangjobs.gang.schedulers import KUEUE, KueueTopology, dialects_of, select_scheduler
from airflow_provider_gangjobs.gang.spec import GangPolicy, roles_of
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.kube.text import plain_scalar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.render.user_manifest import Change
    from airflow_provider_gangjobs.gang.schedulers import GangScheduler
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.kube.views import Object

JOB_UID: Final = "UID-OF-THE-JOB"
WORKLOAD_UID: Final = "UID-OF-THE-WORKLOAD"
CHECKPOINT_DIGEST: Final = "DIGEST-WITH-THE-UID-OF-THE-NAMESPACE"
SUPERVISOR_KEY: Final = "KEY-OF-THE-SUPERVISORS"


def preview(spec: GangSpec, key: TaskKey) -> tuple[Object, ...]:
    """Return the objects that the first attempt of a task would create, in order.

    Raises:
        InvalidGangSpec: the spec is invalid.
        GangUnsupported: a gang is required, and pods of this shape are a gang on no cluster.
    """
    require_valid(spec)
    spec = with_parsed_manifest(spec)
    shape = shape_of(spec, manifest_of(spec))
    has_job_set = spec.roles is not None and shape.kueue_queue is not None
    scheduler = _scheduler(spec, shape, has_job_set=has_job_set)
    decision = decide_placement(shape, GangPolicy(spec.gang), scheduler=scheduler.name if scheduler else None)
    if decision.placement is Placement.REFUSED:
        raise GangUnsupported(decision.detail)
    if decision.placement is not Placement.GANG:
        scheduler = None
    attempt = build_attempt(
        key,
        Claim(""),
        namespace=requested_namespace(spec) or "default",
        number=0,
        name=requested_name(spec),
        name_max=main_job_name_max(roles_of(spec), has_job_set=has_job_set),
    )
    attempt = replace(attempt, checkpoint_digest=CHECKPOINT_DIGEST)
    job = render_job(spec, attempt, decision, scheduler, shape)
    if has_job_set:
        jobs = [render_job_set(spec, attempt, decision, shape, JOB_UID)]
    else:
        jobs = [render_role(spec, role, attempt, decision, scheduler, JOB_UID) for role in roles_of(spec)[1:]]
    files = render_files(spec, attempt, JOB_UID, supervisor_key=SUPERVISOR_KEY)
    owned = [*jobs, render_service(spec, attempt, JOB_UID), files]
    if scheduler is not None and scheduler.objects:
        group = group_of(job, shape)
        owned += scheduler.workload(group, JOB_UID), scheduler.pod_group(group, JOB_UID, WORKLOAD_UID)
    return (job, *(one for one in owned if one is not None))


def _scheduler(spec: GangSpec, shape: Shape, *, has_job_set: bool) -> GangScheduler | None:
    if has_job_set or spec.gang_scheduler == KUEUE:
        return KueueTopology()
    named = select_scheduler(spec.gang_scheduler, shape.scheduler_name)
    if named is not None:
        return named
    return dialects_of(spec.gang_scheduler)[0]


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and no value as a reference to another one."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
for _kind in (str, int, float):
    _Dumper.add_multi_representer(_kind, lambda dumper, value: dumper.represent_data(plain_scalar(value)))


def to_yaml(objects: Iterable[Object], changes: Iterable[Change] = ()) -> str:
    """Return the objects as YAML documents, which `kubectl` can read, after a comment for each change."""
    return "".join(f"# {change}\n" for change in changes) + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False)

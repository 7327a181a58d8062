"""Checks of the Job: its kind, its shape, its numbers, and its containers."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.render.gang_placement import ineligibility_reason, is_single_pod
from airflow_provider_gangjobs.gang.render.shape import INDEXED, NON_INDEXED, rendezvous_of
from airflow_provider_gangjobs.gang.schedulers.base import DEFAULT_SCHEDULER
from airflow_provider_gangjobs.gang.schedulers.native import DIALECT_NAMES
from airflow_provider_gangjobs.gang.schedulers.selection import (
    AUTO,
    NATIVE,
    SCHEDULER_NAMES,
    owner_of,
    select_scheduler,
)
from airflow_provider_gangjobs.gang.spec import GangPolicy, Rendezvous
from airflow_provider_gangjobs.gang.validation.parsed_spec import TEMPLATE, ParsedSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

INDEXED_PARALLELISM_MAX: Final = 100_000
"""Limit of the API server for Indexed Jobs."""
JOB_BYTES_MAX: Final = 1024 * 1024
"""etcd accepts 1.5 MiB by default, which includes managedFields and status."""

_SERVER_FIELDS: Final = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "managedFields",
)
_AT_LEAST: Final = {"workers": 1, "min_workers": 1, "restarts": 0, "termination_grace_s": 0, "ttl_after_finished_s": 0}
_POSITIVE: Final = ("assemble_timeout_s", "run_timeout_s", "execution_timeout_s", "progress_timeout_s")
_PORTS: Final = range(1, 65536)


def check_kind(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that the manifest is a batch/v1 Job, and not a copy of a Job from the API server."""
    manifest = parsed.manifest
    if parsed.spec.manifest is None:
        if parsed.spec.image is None:
            yield Problem("image", "is missing", "Give image, or manifest with a whole Job")
        return
    given = f"{manifest.get('apiVersion', 'no apiVersion')} {manifest.get('kind', 'no kind')}"
    if given != "batch/v1 Job":
        yield Problem("manifest", f"is {given}", "Give apiVersion: batch/v1 and kind: Job")
        return
    copied = [name for name in _SERVER_FIELDS if name in manifest.get("metadata", {})]
    copied = [f"metadata.{name}" for name in copied] + ["status"] * ("status" in manifest)
    if copied:
        yield Problem("manifest", f"has {', '.join(copied)} of a live object", "Remove what the server writes")
    for name in ("selector", "manualSelector"):
        if name in manifest.get("spec", {}):
            yield Problem(f"manifest.spec.{name}", "is chosen by the server", "Remove it")


def check_numbers(parsed: ParsedSpec) -> Iterator[Problem]:
    spec = parsed.spec
    for parameter, least in _AT_LEAST.items():
        value = getattr(spec, parameter)
        if value is not None and value < least:
            yield Problem(parameter, f"is {value}", f"Give {least} or more")
    for parameter in _POSITIVE:
        value = getattr(spec, parameter)
        if value is not None and value <= 0:
            yield Problem(parameter, f"is {value:g} s", "Give more than 0, or leave it out for no limit")
    size = parsed.shape.size
    if spec.min_workers is not None and spec.min_workers > size:
        yield Problem("min_workers", f"is {spec.min_workers}, and the gang has {size}", "Give at most workers")
    if parsed.shape.indexed and parsed.shape.parallelism > INDEXED_PARALLELISM_MAX:
        yield Problem(
            "workers", f"is {parsed.shape.parallelism}", f"An Indexed Job has {INDEXED_PARALLELISM_MAX} at most"
        )
    if isinstance(spec.rendezvous, Rendezvous) and spec.rendezvous.port not in _PORTS:
        yield Problem("rendezvous.port", f"is {spec.rendezvous.port!r}", "Give a port from 1 to 65535")


def check_choices(parsed: ParsedSpec) -> Iterator[Problem]:
    spec, mode = parsed.spec, parsed.manifest.get("spec", {}).get("completionMode", INDEXED)
    if spec.gang not in list(GangPolicy):
        yield Problem("gang", f"is {spec.gang!r}", f"Choose one of {', '.join(GangPolicy)}")
    if spec.dialect is not None and spec.dialect not in DIALECT_NAMES:
        yield Problem("dialect", f"is {spec.dialect!r}", f"Choose one of {', '.join(DIALECT_NAMES)}")
    yield from _check_scheduler(parsed)
    if mode not in {INDEXED, NON_INDEXED}:
        yield Problem("manifest.spec.completionMode", f"is {mode!r}", f"Choose {INDEXED} or {NON_INDEXED}")
    if spec.image_pull_policy not in {None, "Always", "IfNotPresent", "Never"}:
        yield Problem("image_pull_policy", f"is {spec.image_pull_policy!r}", "Choose Always, IfNotPresent or Never")


def _check_scheduler(parsed: ParsedSpec) -> Iterator[Problem]:
    spec, scheduler_name = parsed.spec, parsed.shape.scheduler_name
    chosen = spec.gang_scheduler
    if chosen is not None and chosen not in SCHEDULER_NAMES:
        yield Problem("gang_scheduler", f"is {chosen!r}", f"Choose one of {', '.join((AUTO, *SCHEDULER_NAMES))}")
        return
    owner = owner_of(scheduler_name)
    owner_name = owner.name if owner else NATIVE if scheduler_name == DEFAULT_SCHEDULER else None
    if chosen is not None and owner_name not in (None, chosen):
        yield Problem(
            "gang_scheduler",
            f"is {chosen!r}, and the pods name the scheduler {scheduler_name!r}",
            "Keep one of the two",
        )
    scheduler = select_scheduler(chosen, scheduler_name)
    if spec.dialect is not None and scheduler is not None:
        yield Problem("dialect", f"is {spec.dialect!r}, and {scheduler.name} places the gang", "Leave dialect out")


def check_shape(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that a required gang has a valid shape (KEP-5547), and that a rendezvous has ranks."""
    shape, job = parsed.shape, parsed.manifest.get("spec", {})
    must_be_gang = parsed.spec.gang == GangPolicy.REQUIRED and not shape.user_gang_link and not is_single_pod(shape)
    if must_be_gang and (reason := ineligibility_reason(shape)):
        yield Problem(
            "workers" if parsed.spec.manifest is None else "manifest.spec",
            f"cannot be a gang: {reason}",
            'Give workers, completionMode: Indexed and backoffLimit: 0, or set gang="preferred" or "off"',
        )
    links = [name for name in ("schedulingGroup", "workloadRef") if parsed.pod.get(name)]
    if "scheduling" in job and links:
        yield Problem("manifest.spec.scheduling", f"is given together with the pods' {links[0]}", "Keep one of the two")
    if rendezvous_of(parsed.spec, shape) and not shape.indexed:
        yield Problem("rendezvous", "needs ranks, and completionMode is NonIndexed", "Set completionMode: Indexed")


def check_restart_policy(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that the kubelet does not restart one rank of a gang alone."""
    policy = parsed.pod.get("restartPolicy", "Never")
    path = f"{TEMPLATE}.spec.restartPolicy"
    if policy not in {"Never", "OnFailure"}:
        yield Problem(path, f"is {policy!r}, which a Job may not have", "Set it to Never")
    elif policy == "OnFailure" and parsed.spec.gang == GangPolicy.REQUIRED and not is_single_pod(parsed.shape):
        yield Problem(path, "is OnFailure, and a rank that restarts alone has lost its peers", "Set it to Never")


def check_containers(parsed: ParsedSpec) -> Iterator[Problem]:
    if not parsed.pod.get("containers"):
        yield Problem(f"{TEMPLATE}.spec.containers", "has none left", "Do not remove all of them by pod_overrides")
    seen: set[object] = set()
    for path, container in parsed.containers():
        if not container.get("image"):
            yield Problem(f"{path}.image", "is missing", _image_remedy(parsed, container))
        elif re.search(r"\s", str(container["image"])):
            # The API server accepts such a name, and the kubelet does not.
            where = "image" if container["image"] == parsed.spec.image else f"{path}.image"
            yield Problem(
                where, f"is {container['image']!r:.80}, which has white space", "Correct the name of the image"
            )
        name = container.get("name")
        if name in seen:
            yield Problem(f"{path}.name", f"{name!r} is given twice", "Rename one of the containers")
        seen.add(name)


def _image_remedy(parsed: ParsedSpec, container: Mapping[str, Any]) -> str:
    """Return what to do about a container without an image, by which `pod_overrides` may mean that of the rank."""
    ranks = parsed.pod["containers"][0].get("name")
    if container.get("name") == ranks:
        return "Give image"
    return f"Give image, or name the container {ranks} if you mean that of the rank"


def check_size(parsed: ParsedSpec) -> Iterator[Problem]:
    size = len(json.dumps([parsed.manifest, parsed.template], default=str))
    if size > JOB_BYTES_MAX:
        yield Problem(
            "manifest", f"makes a Job of about {size} bytes", f"At most {JOB_BYTES_MAX}: use files or a volume"
        )

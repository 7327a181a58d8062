"""Checks of the place where the ranks keep their checkpoints, and of other folders on volumes of the pods."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.checkpoints import (
    MOUNT_PATH,
    REMEDY,
    VOLUME,
    CheckpointPlace,
    place_of,
)
from airflow_provider_gangjobs.gang.render.shape import rendezvous_of
from airflow_provider_gangjobs.gang.validation.parsed_spec import TEMPLATE, ParsedSpec
from airflow_provider_gangjobs.kube.names import problem_with_dns_subdomain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOST_WITH_THE_POD: Final = ("emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image")
"""Kinds of volumes that are read-only or do not outlive their pod."""


def check_checkpoints(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that the place exists, as far as the spec says, and outlives the pods."""
    spec = parsed.spec
    if spec.checkpoints is None:
        if not spec.keep_checkpoints:
            yield Problem("keep_checkpoints", "is False without checkpoints", "Give checkpoints, or leave it out")
        return
    try:
        place = place_of(spec.checkpoints)
    except ValueError as error:
        yield Problem("checkpoints", str(error), REMEDY)
        return
    yield from _place(parsed, place)
    is_alone = rendezvous_of(spec, parsed.shape) is None and parsed.shape.size > 1
    if not spec.keep_checkpoints and (spec.rendezvous is False or is_alone):
        what = "is False, and the ranks are independent: none of them knows when all have succeeded"
        yield Problem("keep_checkpoints", what, "Leave it out, and remove the folder of the run later")


def _place(parsed: ParsedSpec, place: CheckpointPlace) -> Iterator[Problem]:
    if place.claim and (wrong := problem_with_dns_subdomain(place.claim)):
        yield Problem("checkpoints", wrong, "Give the name of a PersistentVolumeClaim of the namespace")
    if place.folder and (wrong := folder_problem(parsed.pod, PurePosixPath(place.folder), "checkpoints")):
        yield Problem("checkpoints", f"{place.folder} {wrong}", REMEDY)
    if place.volume:
        volumes = {volume.get("name"): volume for volume in parsed.pod.get("volumes", [])}
        if place.volume not in volumes:
            yield Problem("checkpoints", f"names the volume {place.volume!r}, which the pods do not have", REMEDY)
        elif wrong := _loss(volumes[place.volume], "checkpoints"):
            yield Problem("checkpoints", f"is {wrong}", REMEDY)
    if place.claim or place.volume:
        yield from _names(parsed)


def _names(parsed: ParsedSpec) -> Iterator[Problem]:
    if any(volume.get("name") == VOLUME for volume in parsed.pod.get("volumes", [])):
        yield Problem(f"{TEMPLATE}.spec.volumes", f"has {VOLUME!r}, which holds the checkpoints", "Rename it")
    for path, container in parsed.containers():
        if any(str(mount.get("mountPath")).rstrip("/") == MOUNT_PATH for mount in container.get("volumeMounts", [])):
            yield Problem(f"{path}.volumeMounts", f"has {MOUNT_PATH}, where the checkpoints are", "Mount it elsewhere")


def folder_problem(pod: Mapping[str, Any], folder: PurePosixPath, what: str) -> str:
    """Return why files in a folder of the main container would be lost or could not be written; empty if they stay.

    :param pod: The spec of the pod.
    :param what: What the files are, for the message.
    """
    mounts = [
        mount for mount in pod["containers"][0].get("volumeMounts", []) if folder.is_relative_to(mount["mountPath"])
    ]
    if not mounts:
        return f"is on no volume of the ranks, so the {what} would be lost with the pods"
    mount = max(mounts, key=lambda each: len(each["mountPath"]))
    if mount.get("readOnly"):
        return f"is on volume {mount['name']!r}, which is mounted read-only"
    volume: Mapping[str, Any] = next((v for v in pod.get("volumes", []) if v.get("name") == mount["name"]), {})
    loss = _loss(volume, what)
    return f"is on {loss}" if loss else ""


def _loss(volume: Mapping[str, Any], what: str) -> str:
    kind = next((kind for kind in LOST_WITH_THE_POD if kind in volume), None)
    return f"volume {volume.get('name')!r} of kind {kind}, which cannot keep {what}" if kind else ""

"""Checks of gangs with supervisors: restarts, and the place of their checkpoints and other files that last."""

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.checkpoints import MOUNT_PATH, REMEDY, VOLUME, CheckpointPlace, place_of
from airflow_provider_gangjobs.gang.render.files import KEY_FILE, PORT, RUN_PATH, RUN_VOLUME, supervisor_programs
from airflow_provider_gangjobs.gang.render.placement import rendezvous_of
from airflow_provider_gangjobs.gang.spec import find_supervised
from airflow_provider_gangjobs.gang.validation.parsed_spec import TEMPLATE, ParsedSpec
from airflow_provider_gangjobs.gang.validation.pod_checks import check_volume_of_provider
from airflow_provider_gangjobs.kube.names import problem_with_dns_subdomain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_provider_gangjobs.gang.spec import GangSpec


RESTARTS_MAX: Final = 1000


def check_restarts(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check the parameters of restarts, and that each rank has a program that a supervisor can start again."""
    spec = parsed.spec
    if spec.restarts > RESTARTS_MAX:
        yield Problem("restarts", f"is {spec.restarts}", f"Give at most {RESTARTS_MAX}")
    codes: Sequence[Any] = spec.no_restart_on_exit_codes
    if any(isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= 255 for code in codes):
        what = f"is {list(codes)!r:.80}, which are not all numbers from 1 to 255"
        yield Problem("no_restart_on_exit_codes", what, "Give exit codes of a program that fails")
    elif codes and not spec.restarts:
        yield Problem("no_restart_on_exit_codes", "is given without restarts", "Give restarts, or leave it out")
    if spec.is_supervised:
        yield from _program(parsed)
        yield from _gang(parsed)
        yield from _names_of_the_supervisor(parsed)


def _program(parsed: ParsedSpec) -> Iterator[Problem]:
    reason = parameter_of(parsed.spec)
    if not (parsed.pod.get("containers") or [{}])[0].get("command"):
        path = "command" if parsed.spec.manifest is None else f"manifest.{TEMPLATE}.spec.containers[0].command"
        what = f"is missing with {reason}, and the provider does not know the entrypoint of the image"
        yield Problem(path, what, "Give the command of the program, which the supervisor of each rank starts")
    if parsed.pod.get("restartPolicy", "Never") != "Never":
        what = f"is {parsed.pod['restartPolicy']} with {reason}, and the kubelet would restart one rank alone"
        yield Problem(f"{TEMPLATE}.spec.restartPolicy", what, "Set it to Never")


def _gang(parsed: ParsedSpec) -> Iterator[Problem]:
    spec, shape, reason = parsed.spec, parsed.shape, parameter_of(parsed.spec)
    if not shape.indexed:
        yield Problem(reason, "needs ranks, and completionMode is NonIndexed", "Set completionMode: Indexed")
    if spec.min_workers is not None and spec.min_workers < shape.size:
        what = f"is {spec.min_workers} with {reason}, and all {shape.size} ranks restart together"
        yield Problem("min_workers", what, "Leave min_workers out")
    rendezvous = rendezvous_of(spec, shape)
    if rendezvous is not None and rendezvous.port == PORT:
        yield Problem("rendezvous.port", f"is {PORT}, where the supervisors listen", "Give another port")


def _names_of_the_supervisor(parsed: ParsedSpec) -> Iterator[Problem]:
    programs = supervisor_programs()
    for name in (*programs, KEY_FILE):
        if name in parsed.spec.files and parsed.spec.files[name] != programs.get(name):
            yield Problem(f"files.{name}", "is a file of the provider", "Choose another name")
    yield from check_volume_of_provider(parsed, RUN_VOLUME, RUN_PATH, "the files of the supervisor")


def parameter_of(spec: GangSpec) -> str:
    """Return the parameter of the operator because of which a gang has supervisors."""
    return (find_supervised(partial(getattr, spec)) or "restarts").removesuffix("_s")


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
    yield from _place_of_checkpoints(parsed, place)
    is_alone = rendezvous_of(spec, parsed.shape) is None and parsed.shape.size > 1
    if not spec.keep_checkpoints and (spec.rendezvous is False or is_alone):
        what = "is False, and the ranks are independent: none of them knows when all have succeeded"
        yield Problem("keep_checkpoints", what, "Leave it out, and remove the folder of the run later")


def _place_of_checkpoints(parsed: ParsedSpec, place: CheckpointPlace) -> Iterator[Problem]:
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
        yield from check_volume_of_provider(parsed, VOLUME, MOUNT_PATH, "the checkpoints")


def folder_problem(pod: Mapping[str, Any], folder: PurePosixPath, what: str) -> str:
    """Return why files in a folder of the main container would be lost or could not be written; empty if they stay.

    :param pod: The spec of the pod.
    :param what: What the files are, for the message.
    """
    mounts = [
        mount
        for mount in pod["containers"][0].get("volumeMounts", [])
        if isinstance(path := mount.get("mountPath"), str) and folder.is_relative_to(path)
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

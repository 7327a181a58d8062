"""Checks of gangs whose programs a supervisor restarts in their pods."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.render.shape import rendezvous_of
from airflow_provider_gangjobs.gang.render.supervisor import (
    PORT,
    RUN_PATH,
    RUN_VOLUME,
    SUPERVISOR_FILES,
)
from airflow_provider_gangjobs.gang.spec import find_supervised
from airflow_provider_gangjobs.gang.validation.parsed_spec import TEMPLATE, ParsedSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        yield from _names(parsed)


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


def _names(parsed: ParsedSpec) -> Iterator[Problem]:
    for name in SUPERVISOR_FILES:
        if name in parsed.spec.files:
            yield Problem(f"files.{name}", "is a file of the provider", "Choose another name")
    if any(volume.get("name") == RUN_VOLUME for volume in parsed.pod.get("volumes", [])):
        yield Problem(f"{TEMPLATE}.spec.volumes", f"has {RUN_VOLUME!r}, which the supervisor uses", "Rename it")
    for path, container in parsed.containers():
        if any(str(mount.get("mountPath")).rstrip("/") == RUN_PATH for mount in container.get("volumeMounts", [])):
            what = f"has {RUN_PATH}, which the supervisor uses"
            yield Problem(f"{path}.volumeMounts", what, "Mount the volume elsewhere")


def parameter_of(spec: GangSpec) -> str:
    """Return the parameter of the operator because of which a gang has supervisors."""
    return (find_supervised(partial(getattr, spec)) or "restarts").removesuffix("_s")

"""Validation: everything that is wrong with a request, at once, before anything is created.

The API server refuses much of this late, when a pod is made, or one fault at a time. Each problem names
where, what, and the remedy. A new rule is a new function in the table.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.spec import GangSpec, Logs, OnFinish, OnKill, Reattach, Results
from airflow_provider_gangjobs.gang.validation import env, job, metadata, resources, structure, volumes
from airflow_provider_gangjobs.gang.validation.parsed_spec import Check, ParsedSpec

if TYPE_CHECKING:
    from enum import StrEnum
import re
from dataclasses import replace

CHECKS: Final[tuple[Check, ...]] = (
    job.check_choices,
    job.check_numbers,
    job.check_shape,
    metadata.check_names,
    metadata.check_labels,
    metadata.check_placement,
    job.check_containers,
    job.check_restart_policy,
    env.check_env,
    resources.check_resources,
    volumes.check_volumes,
    volumes.check_files,
    job.check_size,
)
"""Run on what has a sound structure."""

CHOICES: Final[dict[str, type[StrEnum]]] = {
    "reattach": Reattach,
    "results": Results,
    "logs": Logs,
    "on_finish": OnFinish,
    "on_kill": OnKill,
}


def validate(spec: GangSpec) -> tuple[Problem, ...]:
    """All that is wrong with the spec; empty if nothing is. Raises nothing.

    What has not even the right structure is told and then left out, so that the rest is still checked.
    """
    parsed = ParsedSpec(spec)
    problems = list(structure.check_structure(parsed))
    if not any(problem.path.startswith("manifest") for problem in problems):
        problems += job.check_kind(parsed)
    broken = {_PARAMETER.split(problem.path)[0] for problem in problems}
    sound = ParsedSpec(_without(spec, broken)) if broken else parsed
    problems += _content(sound, untold=not broken & {"image", "manifest", "pod_overrides"})
    return tuple(dict.fromkeys(problems))


_PARAMETER: Final = re.compile(r"[.\[]")


def _without(spec: GangSpec, parameters: set[str]) -> GangSpec:
    default = GangSpec()
    return replace(spec, **{name: getattr(default, name) for name in parameters})


def _content(parsed: ParsedSpec, *, untold: bool) -> list[Problem]:
    """Problems of a sound parsed. A missing image is not reported when its cause has been (`untold`)."""
    try:
        _ = parsed.template
    except ValueError as exc:
        return [Problem("pod_overrides", f"cannot be merged: {exc}", "Give each item of a list its name")]
    found = chain.from_iterable(check(parsed) for check in CHECKS)
    return [problem for problem in found if untold or not problem.path.endswith(".image")]


def validate_choices(**chosen: Any) -> tuple[Problem, ...]:
    """What is wrong with the parameters that do not shape the Job (`CHOICES`): values that are none of theirs."""
    return tuple(
        Problem(name, f"is {value!r}", f"Choose one of {', '.join(CHOICES[name])}")
        for name, value in chosen.items()
        if value not in list(CHOICES[name])
    )


def require_valid(spec: GangSpec, **chosen: Any) -> None:
    """Nothing, if the spec and the choices are sound.

    Raises:
        InvalidGangSpec: with every problem found.
    """
    problems = validate_choices(**chosen) + validate(spec)
    if problems:
        raise InvalidGangSpec(problems)

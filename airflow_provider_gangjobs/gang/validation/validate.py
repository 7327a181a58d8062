"""Validation: reports all problems of a spec at once, before any object is created.

The API server finds many of them late, when the Job controller creates pods, and one at a time. To add a rule, add a
function to `CHECKS`.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.spec import GangSpec, validate_choices
from airflow_provider_gangjobs.gang.validation import (
    checkpoint_checks,
    job_checks,
    metadata_checks,
    pod_checks,
    restart_checks,
    role_checks,
    structure_checks,
)
from airflow_provider_gangjobs.gang.validation.parsed_spec import Check, ParsedSpec

CHECKS: Final[tuple[Check, ...]] = (
    job_checks.check_choices,
    job_checks.check_numbers,
    job_checks.check_shape,
    metadata_checks.check_names,
    metadata_checks.check_labels,
    metadata_checks.check_placement,
    metadata_checks.check_queue_parameters,
    job_checks.check_containers,
    job_checks.check_restart_policy,
    restart_checks.check_restarts,
    pod_checks.check_env,
    pod_checks.check_resources,
    pod_checks.check_volumes,
    pod_checks.check_files,
    checkpoint_checks.check_checkpoints,
    job_checks.check_size,
)
"""Checks of specs that passed the structural checks."""


def validate(spec: GangSpec) -> tuple[Problem, ...]:
    """Return all problems of a spec. The function never raises.

    Parameters of a wrong structure are reported and then reset, so that the others are still checked.
    """
    if spec.roles is not None:
        return role_checks.validate_roles(spec, validate)
    parsed = ParsedSpec(spec)
    problems = list(structure_checks.check_structure(parsed))
    if not any(problem.path.startswith("manifest") for problem in problems):
        problems += job_checks.check_kind(parsed)
    broken = {_PARAMETER.split(problem.path)[0] for problem in problems}
    sound = ParsedSpec(_without(spec, broken)) if broken else parsed
    problems += _check_content(sound, report_missing_image=not broken & {"image", "manifest", "pod_overrides"})
    return tuple(dict.fromkeys(problems))


_PARAMETER: Final = re.compile(r"[.\[]")


def _without(spec: GangSpec, parameters: set[str]) -> GangSpec:
    default = GangSpec()
    return replace(spec, **{name: getattr(default, name) for name in parameters})


def _check_content(parsed: ParsedSpec, *, report_missing_image: bool) -> list[Problem]:
    """Return the problems of a spec that passed the structural checks.

    :param report_missing_image: False if a parameter that can give the image was reset.
    """
    try:
        _ = parsed.template
    except ValueError as exc:
        return [Problem("pod_overrides", f"cannot be merged: {exc}", "Give each item of a list its name")]
    found = chain.from_iterable(check(parsed) for check in CHECKS)
    return [problem for problem in found if report_missing_image or not problem.path.endswith(".image")]


def require_valid(spec: GangSpec, **chosen: Any) -> None:
    """Validate a spec and the parameters that do not shape the Job.

    Raises:
        InvalidGangSpec: The error has all problems.
    """
    problems = validate_choices(**chosen) + validate(spec)
    if problems:
        raise InvalidGangSpec(problems)

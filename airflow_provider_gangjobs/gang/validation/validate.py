"""Validation: reports all problems of a spec at once, before any object is created, and reads a spec from a document.

The API server finds many problems late, when the Job controller creates pods, and one at a time. To add a rule, add a
function to `CHECKS`.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.spec import GangPolicy, GangSpec, Rendezvous
from airflow_provider_gangjobs.gang.validation import (
    job_checks,
    pod_checks,
)
from airflow_provider_gangjobs.gang.validation.parsed_spec import Check, ParsedSpec, check_structure, parameter_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


NAME_CHARACTERS_MAX: Final = 80


def read_spec(document: Mapping[str, Any]) -> GangSpec:
    """Return the spec in a document: the parameters of a `GangSpec`, or a whole Job. The values are not validated.

    Raises:
        InvalidGangSpec: the document has names that are no parameters.
    """
    if "kind" in document:
        return GangSpec(manifest=document)
    if problems := tuple(_unknown_parameters(document)):
        raise InvalidGangSpec(problems)
    parameters = dict(document)
    if parameters.get("gang") is False:
        parameters["gang"] = GangPolicy.OFF  # YAML reads the word as a boolean
    match parameters.get("rendezvous"):
        case {"port": int(port), **others} if not others:
            parameters["rendezvous"] = Rendezvous(port)
    return GangSpec(**parameters)


def _unknown_parameters(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of names that are no parameters. Only the first one names the page of all parameters."""
    page = "docs/api/spec.md has the parameters"
    for name in document:
        if name not in GangSpec.__struct_fields__:
            import difflib  # imports regular expressions, which a valid gang does not need

            close = difflib.get_close_matches(str(name)[:NAME_CHARACTERS_MAX], GangSpec.__struct_fields__, 1)
            remedy, page = (f"Did you mean {close[0]}?", page) if close else (page, "")
            yield Problem(f"{name!s:.{NAME_CHARACTERS_MAX}}", "is no parameter of a GangSpec", remedy)


CHECKS: Final[tuple[Check, ...]] = (
    job_checks.check_choices,
    job_checks.check_numbers,
    job_checks.check_shape,
    job_checks.check_names,
    job_checks.check_labels,
    job_checks.check_placement,
    job_checks.check_queue_parameters,
    job_checks.check_containers,
    job_checks.check_restart_policy,
    pod_checks.check_restarts,
    pod_checks.check_env,
    pod_checks.check_host_names,
    pod_checks.check_resources,
    pod_checks.check_volumes,
    pod_checks.check_files,
    pod_checks.check_checkpoints,
    job_checks.check_size,
)
"""Checks of specs that passed the structural checks."""


def validate(spec: GangSpec) -> tuple[Problem, ...]:
    """Return all problems of a spec. The function never raises.

    Parameters of a wrong structure are reported and then reset, so that the others are still checked.
    """
    if spec.roles is not None:
        return job_checks.validate_roles(spec, validate)
    parsed = ParsedSpec(spec)
    problems = list(check_structure(parsed))
    if not any(problem.path.startswith("manifest") for problem in problems):
        problems += job_checks.check_kind(parsed)
    broken = {parameter_in(problem.path) for problem in problems}
    sound = ParsedSpec(_without(spec, broken)) if broken else parsed
    problems += _check_content(sound, report_missing_image=not broken & {"image", "manifest", "pod_overrides"})
    return tuple(dict.fromkeys(problems))


def _without(spec: GangSpec, parameters: set[str]) -> GangSpec:
    default = GangSpec()
    return replace(spec, **{name: getattr(default, name) for name in parameters})


def _check_content(parsed: ParsedSpec, *, report_missing_image: bool) -> list[Problem]:
    """Return the problems of a spec that passed the structural checks.

    :param report_missing_image: False if a parameter that can give the image was reset.
    """
    try:
        _ = parsed.template
    except (TypeError, ValueError) as exc:  # a list of finalizers may have a list
        return [Problem("pod_overrides", f"cannot be merged: {exc}", "Give each item of a list its name")]
    found = chain.from_iterable(check(parsed) for check in CHECKS)
    return [problem for problem in found if report_missing_image or not problem.path.endswith(".image")]


def require_valid(spec: GangSpec) -> None:
    """Validate a spec.

    Raises:
        InvalidGangSpec: The error has all problems.
    """
    if problems := validate(spec):
        raise InvalidGangSpec(problems)

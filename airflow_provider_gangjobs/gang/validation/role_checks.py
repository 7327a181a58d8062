"""Checks of the roles of a gang. The parameters of each role are checked as those of a gang of one Job."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.render.shape import shape_of
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.roles import (
    ROLE_NAME_MAX,
    ROLE_PARAMETERS,
    roles_of,
    spec_of_role,
)
from airflow_provider_gangjobs.gang.schedulers.kueue_topology import KUEUE
from airflow_provider_gangjobs.gang.schedulers.native import NativeDialect
from airflow_provider_gangjobs.gang.schedulers.selection import AUTO, select_scheduler
from airflow_provider_gangjobs.gang.schedulers.yunikorn import YuniKorn
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.validation.job_checks import INDEXED_PARALLELISM_MAX
from airflow_provider_gangjobs.kube.text import pluralize

ROLES_MIN: Final = 2
ROLES_MAX: Final = 8
"""Each role is a Job, which costs two requests, and pods of one gang have few kinds."""
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_GANG_PARAMETERS: Final = frozenset(GangSpec.__struct_fields__) - {*ROLE_PARAMETERS, "roles"}
_REFUSED: Final = {
    "manifest": "describes one Job only",
    "min_workers": "does not say which roles may start with fewer ranks",
    "topology": "applies to each role separately",
}
"""Parameters that a gang with roles cannot have, and why."""

ValidateGang = Callable[[GangSpec], tuple[Problem, ...]]


def validate_roles(spec: GangSpec, validate: ValidateGang) -> tuple[Problem, ...]:
    """Return all problems of the spec of a gang with roles, by the check of a gang of one Job."""
    problems = [*_form(spec.roles), *_refused(spec)]
    if problems:
        return tuple(problems)
    problems += [*_scheduler(spec), *_size(spec)]
    for name in spec.roles or {}:
        role = spec_of_role(spec, name)
        found = validate(role)
        problems += [_of_role(problem, name) for problem in found]
        if not found:
            problems += _pods(role, name)
    return tuple(dict.fromkeys(problems))


def _form(roles: Any) -> Iterator[Problem]:
    if not isinstance(roles, Mapping):
        yield Problem("roles", f"is {type(roles).__name__}, not a mapping", 'Give {"leader": {...}, "worker": {...}}')
        return
    if not ROLES_MIN <= len(roles) <= ROLES_MAX:
        remedy = f"Give {ROLES_MIN} to {ROLES_MAX} roles, or leave roles out for a gang whose ranks are all alike"
        yield Problem("roles", f"has {pluralize(len(roles), 'role')}", remedy)
    for name, role in roles.items():
        yield from _name(name)
        if not isinstance(role, Mapping):
            yield Problem(
                f"roles.{name}", f"is {type(role).__name__}, not a mapping", "Give the parameters of the role"
            )
        else:
            yield from _keys(name, role)


def _name(name: Any) -> Iterator[Problem]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield Problem(
            "roles", f"has the role {name!r}", "Use lower-case letters, digits and hyphens, and begin with a letter"
        )
    elif len(name) > ROLE_NAME_MAX:
        what = f"has the role {name}, whose name has {len(name)} characters"
        yield Problem("roles", what, f"Use at most {ROLE_NAME_MAX}: host names contain the name")


def _keys(name: Any, role: Mapping[Any, Any]) -> Iterator[Problem]:
    for key in role:
        path = f"roles.{name}.{key}"
        if key in _GANG_PARAMETERS:
            yield Problem(path, "belongs to the whole gang", f"Give {key} as a parameter of the gang")
        elif key not in ROLE_PARAMETERS:
            similar = difflib.get_close_matches(str(key), ROLE_PARAMETERS, n=1)
            yield Problem(path, "is no parameter of a role", f"Choose {similar[0] if similar else _choices()}")


def _choices() -> str:
    return f"one of {', '.join(ROLE_PARAMETERS)}"


def _refused(spec: GangSpec) -> Iterator[Problem]:
    for parameter in ROLE_PARAMETERS:
        if getattr(spec, parameter) is not None:
            yield Problem(parameter, "is given together with roles", f"Give {parameter} in each role that needs it")
    for parameter, why in _REFUSED.items():
        if getattr(spec, parameter) is not None:
            yield Problem(parameter, f"is given together with roles, and {why}", f"Leave {parameter} out")
    if spec.keep_suspended:
        yield Problem(
            "keep_suspended", "is given together with roles, whose Jobs the submission starts in order", "Remove it"
        )


def _scheduler(spec: GangSpec) -> Iterator[Problem]:
    queue = shape_of(spec, {}).kueue_queue
    if queue is not None and spec.gang_scheduler not in {None, AUTO, KUEUE}:
        what = f"is {spec.gang_scheduler}, and the gang is in the queue {queue}, where only Kueue places roles"
        yield Problem("gang_scheduler", what, "Leave out gang_scheduler or the queue")
    if spec.dialect == NativeDialect.name:
        what = f"is {NativeDialect.name!r}, in which each Job makes a group of its own"
        yield Problem("dialect", what, "Leave dialect out: then the provider makes one group for all roles")
    if isinstance(select_scheduler(spec.gang_scheduler, spec.scheduler_name), YuniKorn):
        what = "is yunikorn, whose task group has pods of one kind only"
        yield Problem("gang_scheduler", what, "Choose native, volcano or coscheduling for a gang with roles")


def _size(spec: GangSpec) -> Iterator[Problem]:
    workers = [role.get("workers") for role in (spec.roles or {}).values()]
    if all(number is None or (isinstance(number, int) and number >= 1) for number in workers):
        size = sum(role.size for role in roles_of(spec))
        if size > INDEXED_PARALLELISM_MAX:
            yield Problem("roles", f"have {size} ranks together", f"A gang has {INDEXED_PARALLELISM_MAX} at most")


def _pods(role: GangSpec, name: str) -> Iterator[Problem]:
    path = f"roles.{name}.pod_overrides"
    shape = shape_of(role, manifest_of(role))
    overrides = (role.pod_overrides or {}).get("spec") or {}
    if shape.user_gang_link:
        yield Problem(path, f"sets {shape.user_gang_link}", "Remove it: the provider links the pods of all roles")
    if shape.scheduler_name != role.scheduler_name:
        yield Problem(
            path, f"sets schedulerName to {shape.scheduler_name}", "Give scheduler_name as a parameter of the gang"
        )
    for field, parameter in {"priorityClassName": "priority_class", "subdomain": "rendezvous"}.items():
        if field in overrides:
            yield Problem(
                path, f"sets {field}, which all pods of a gang share", f"Give {parameter} as a parameter of the gang"
            )


_PARAMETER: Final = re.compile(r"[.\[]")


def _of_role(problem: Problem, name: str) -> Problem:
    """Return the problem with the path of the role, unless the parameter belongs to the gang."""
    root = _PARAMETER.split(problem.path)[0]
    if root in _GANG_PARAMETERS:
        return problem
    return Problem(f"roles.{name}.{problem.path}", problem.what, problem.remedy)

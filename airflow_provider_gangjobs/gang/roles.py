"""Roles: a gang of several Jobs whose pods are placed together, such as a leader and its workers.

The Job of the first role is the main Job: it has the name, labels and annotations of a gang of one Job, and owns
everything else. A rank in the gang is the rank in the role plus the number of ranks of the roles before.

In a queue of Kueue, the main Job has no pods, and owns a JobSet with the Jobs of all roles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.identity import JOB_NAME_MAX

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.spec import GangSpec

ROLE_NAME_MAX: Final = 20
"""The name of a Job is `<main Job>-<role>`. A host name has 63 characters, and ends with the rank."""
HOST_NAME_MAX: Final = 63


class RoleRanks(Struct, frozen=True):
    """A role and its ranks."""

    name: str
    size: int
    """Number of ranks of the role."""
    offset: int
    """Rank in the gang of the first rank of the role."""


def roles_of(spec: GangSpec) -> tuple[RoleRanks, ...]:
    """Return the roles of a valid spec in their order; empty for a gang of one Job."""
    roles, offset = [], 0
    for name, role in (spec.roles or {}).items():
        roles.append(RoleRanks(name, role.get("workers") or 1, offset))
        offset += roles[-1].size
    return tuple(roles)


def spec_of_role(spec: GangSpec, role: str) -> GangSpec:
    """Return the spec of one role, as that of a gang of one Job. The role must have known parameters only."""
    return replace(spec, roles=None, **(spec.roles or {})[role])


def role_job_name(main_job: str, role: str) -> str:
    """Return the name of the Job of a role that is not the first one."""
    return f"{main_job}-{role}"


def job_set_job_name(job_set: str, role: str) -> str:
    return f"{job_set}-{role}-0"


def main_job_name_max(roles: tuple[RoleRanks, ...], *, has_job_set: bool = False) -> int:
    """Return how many characters the name of the gang may have, so that the host names of all ranks are valid."""
    names = [job_set_job_name("", role.name) if has_job_set else role_job_name("", role.name) for role in roles]
    tails = [len(f"{name}-{role.size - 1}") for name, role in zip(names, roles, strict=True)]
    return min([JOB_NAME_MAX, *(HOST_NAME_MAX - tail for tail in (tails if has_job_set else tails[1:]))])

"""Selection: which gang schedulers there are, and which of them places a gang.

The scheduler that the user names is used, else the scheduler that owns the `schedulerName` of the pods, else the one
that the connection names, else the Workload API of Kubernetes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.schedulers.base import DEFAULT_SCHEDULER
from airflow_provider_gangjobs.gang.schedulers.coscheduling import Coscheduling
from airflow_provider_gangjobs.gang.schedulers.kueue_topology import KUEUE, KueueTopology
from airflow_provider_gangjobs.gang.schedulers.native import find_dialect
from airflow_provider_gangjobs.gang.schedulers.volcano import Volcano
from airflow_provider_gangjobs.gang.schedulers.yunikorn import YuniKorn

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.schedulers.base import GangScheduler, SeparateScheduler

AUTO: Final = "auto"
"""Value of `gang_scheduler` that leaves the choice to `select_scheduler`, as does no value."""
NATIVE: Final = "native"
"""Value of `gang_scheduler` for the Workload API of Kubernetes, in the dialect that discovery selects."""
SEPARATE_SCHEDULERS: Final[tuple[SeparateScheduler, ...]] = (Volcano(), Coscheduling(), YuniKorn())
"""Gang schedulers that run beside the default scheduler."""
LINK_KEYS: Final = frozenset(scheduler.link[1] for scheduler in SEPARATE_SCHEDULERS)
"""Labels and annotations by which a user links pods to a group of one of these schedulers."""
SCHEDULER_NAMES: Final = (NATIVE, KUEUE, *(scheduler.name for scheduler in SEPARATE_SCHEDULERS))


def select_scheduler(
    named: str | None, scheduler_name: str | None, default: str | None = None
) -> SeparateScheduler | None:
    """Return the scheduler beside the default scheduler that places a gang; `None` for the Workload API.

    :param named: `gang_scheduler` of the gang.
    :param scheduler_name: `schedulerName` of the pods.
    :param default: `gang_scheduler` of the connection.
    """
    if named not in (None, AUTO):
        return find_separate(named)
    owner = owner_of(scheduler_name)
    if owner is not None or scheduler_name == DEFAULT_SCHEDULER:
        return owner
    return find_separate(default)


def find_separate(name: str | None) -> SeparateScheduler | None:
    return next((scheduler for scheduler in SEPARATE_SCHEDULERS if scheduler.name == name), None)


def owner_of(scheduler_name: str | None) -> SeparateScheduler | None:
    """Return the scheduler to which a `schedulerName` belongs by default, or `None`."""
    return next((scheduler for scheduler in SEPARATE_SCHEDULERS if scheduler_name in scheduler.scheduler_names), None)


def find_scheduler(detail: str) -> GangScheduler | None:
    """Return the scheduler that `PlacementDecision.detail` of a gang names, or `None`."""
    return KueueTopology() if detail == KUEUE else find_separate(detail) or find_dialect(detail)


def separate_scheduler_of(decision: str | None) -> SeparateScheduler | None:
    """Return the scheduler beside the default scheduler that an annotation such as `gang:volcano` names."""
    placement, _, detail = (decision or "").partition(":")
    return find_separate(detail) if placement == "gang" else None


def names_cause(message: str) -> bool:
    """Return whether a scheduler's message about one pod names the cause for which its gang waits."""
    return all(scheduler.names_cause(message) for scheduler in SEPARATE_SCHEDULERS)


def says_refused(message: str) -> bool:
    """Return whether a scheduler's message about one pod says that its gang could not be placed, but not why."""
    return any(scheduler.says_refused(message) for scheduler in SEPARATE_SCHEDULERS)

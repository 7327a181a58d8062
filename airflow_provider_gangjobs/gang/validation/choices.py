"""Choices: checks the parameters of a task that do not shape the Job. This module is cheap to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.spec import Logs, OnFinish, OnKill, Reattach, Results, WaitUntil

if TYPE_CHECKING:
    from enum import StrEnum

CHOICES: Final[dict[str, type[StrEnum]]] = {
    "reattach": Reattach,
    "results": Results,
    "logs": Logs,
    "on_finish": OnFinish,
    "on_kill": OnKill,
    "wait_until": WaitUntil,
}


def validate_choices(**chosen: Any) -> tuple[Problem, ...]:
    """Return the problems of the parameters that do not shape the Job (`CHOICES`)."""
    return tuple(
        Problem(name, f"is {value!r}", f"Choose one of {', '.join(CHOICES[name])}")
        for name, value in chosen.items()
        if value not in list(CHOICES[name])
    )

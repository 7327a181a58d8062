"""Tells in the log how a gang proceeds: one line for each change, none per look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.gang.state.observation import Observation


@dataclass
class PhaseLog:
    """Called at each change of phase, or of what is waited for; remembers the last one."""

    log: Logger
    last: Observation | None = field(default=None, init=False)

    def __call__(self, observation: Observation) -> None:
        self.log.info("%s", observation.line)
        self.last = observation

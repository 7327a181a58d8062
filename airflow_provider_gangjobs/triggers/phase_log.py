"""Logs the progress of a gang: one line for each change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.gang.state.observation import Observation


@dataclass
class PhaseLog:
    """Logs each observation that it is called with, and keeps the last one.

    The caller calls it when the phase of the gang changes, or when the gang waits for something else.
    """

    log: Logger
    last: Observation | None = field(default=None, init=False)

    def __call__(self, observation: Observation) -> None:
        self.log.info("%s", observation.line)
        self.last = observation

"""A clock of a client in which time passes only while the client sleeps."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from airflow_provider_gangjobs.cluster.clock import Clock


@dataclass
class VirtualSleep:
    """The time of the clock, and all pauses, in seconds."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)

    @property
    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now, sleep=self.sleep, random=random.Random(7))

"""Callbacks that tests name by their dotted path, like those of a module in the plugins folder."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from airflow_provider_gangjobs.triggers.callbacks import GangJobCallback

CALLS: list[dict[str, Any]] = []
"""The arguments of each call of a recorder."""
PROGRESS: list[dict[str, Any]] = []
"""The arguments of each call of `on_progress`."""
MAY_END = threading.Event()
"""Ends the calls that hang."""


class Recorder(GangJobCallback):
    @staticmethod
    def on_phase_change(**given: Any) -> None:
        CALLS.append(given)


class AsyncRecorder(GangJobCallback):
    @staticmethod
    async def on_phase_change(**given: Any) -> None:
        await asyncio.sleep(0)
        CALLS.append(given)


class ProgressRecorder(GangJobCallback):
    @staticmethod
    def on_phase_change(**given: Any) -> None: ...

    @staticmethod
    def on_progress(**given: Any) -> None:
        PROGRESS.append(given)


class Faulty(GangJobCallback):
    @staticmethod
    def on_phase_change(**given: Any) -> None:
        raise StopIteration("no such channel")


class Exiting(GangJobCallback):
    @staticmethod
    def on_phase_change(**given: Any) -> None:
        raise SystemExit(3)


class Hanging(GangJobCallback):
    @staticmethod
    def on_phase_change(**given: Any) -> None:
        CALLS.append(given)
        MAY_END.wait()


class NoCallback:
    """A class without the method."""

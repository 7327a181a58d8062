"""Gangs with roles that tests on real control planes run."""

from __future__ import annotations

from typing import Any, Final

from airflow_provider_gangjobs.gang.spec import GangSpec
from tests.cluster.gangs import MEET

SLEEP: Final = "import time; time.sleep(3000)"


def leader_and_workers(*, leader: str = MEET, worker: str = MEET, cpu: str = "1", **changes: Any) -> GangSpec:
    """Return a gang of one leader and two workers, each with its program."""
    common = {"image": "python:3.12", "resources": {"cpu": cpu}}
    roles = {
        "leader": {**common, "command": ["python", "-c", leader]},
        "worker": {**common, "command": ["python", "-c", worker], "workers": 2},
    }
    return GangSpec(roles=roles, **changes)

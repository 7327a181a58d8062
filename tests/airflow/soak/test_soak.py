"""Two minutes of the soak. `python -m tests.airflow.soak.soak` runs it for longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow.soak.soak import run_soak
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

SEED = 14


@pytest.mark.airflow
@pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)
def test_guarantees_hold_while_processes_are_killed_and_users_interfere(tmp_path: Path) -> None:
    figures, violations, history = run_soak(tmp_path, minutes=2.0, gangs=40, seed=SEED)
    history.save(tmp_path / "history.jsonl")

    assert not violations, f"{figures}\n" + "\n".join(map(str, violations))
    assert min(figures.worker_kills, figures.clears, figures.marks, figures.ended_in_triggerer) > 0, figures

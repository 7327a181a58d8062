"""DAGs for Airflow: the triggerer ends the task of each gang, as it does by default."""

from __future__ import annotations

from benchmarks.pipeline.mapped_gangs import mapped_gangs
from benchmarks.pipeline.sizes import ENDED_IN_TRIGGERER

mapped_gangs(ENDED_IN_TRIGGERER)

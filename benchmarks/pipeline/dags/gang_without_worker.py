"""DAGs for Airflow: the triggerer submits each gang, too."""

from __future__ import annotations

from benchmarks.pipeline.mapped_gangs import mapped_gangs
from benchmarks.pipeline.sizes import WITHOUT_WORKER

mapped_gangs(WITHOUT_WORKER, start_from_trigger=True)

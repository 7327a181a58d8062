"""DAGs for Airflow: a worker ends the task of each gang."""

from __future__ import annotations

from benchmarks.pipeline.mapped_gangs import mapped_gangs
from benchmarks.pipeline.sizes import WITH_WORKERS

mapped_gangs(WITH_WORKERS, end_from_trigger=False)

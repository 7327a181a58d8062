"""A DAG whose task says whether its process found the modules of task processes imported."""

from __future__ import annotations

import sys

from airflow.sdk import DAG, task

with DAG("preloaded", schedule=None):

    @task
    def is_preloaded() -> bool:
        return "airflow_provider_gangjobs.preload" in sys.modules

    is_preloaded()

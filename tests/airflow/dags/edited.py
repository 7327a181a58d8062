"""Gangs that run until this file is edited and their tasks are cleared, and one whose parameters differ at each try."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, get_current_context

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

COMMAND = "sleep 3000"
RANK_WRITES_ITS_TRY = 'sleep 20; printf %s "$TRY" > "$GANG_RESULT_PATH"'
COMMON: dict[str, Any] = {"task_id": "gang", "image": "i", "workers": 2, "resources": {"cpu": "100m", "memory": "64Mi"}}


class WorkerDiesAfterSubmission(GangJobOperator):
    """An operator whose process ends in its first try, after the submission and before the deferral."""

    def defer(self, **kwargs: Any) -> None:  # type: ignore[override]
        if get_current_context()["ti"].try_number == 1:
            os._exit(1)
        super().defer(**kwargs)


with DAG("edited", schedule=None):
    GangJobOperator(**COMMON, command=["sh", "-c", COMMAND])

with DAG("edited_kept", schedule=None):
    GangJobOperator(**COMMON, command=["sh", "-c", COMMAND], on_kill="keep")

with DAG("differs_at_each_try", schedule=None):
    WorkerDiesAfterSubmission(
        **COMMON,
        command=["sh", "-c", RANK_WRITES_ITS_TRY],
        env={"TRY": "{{ ti.try_number }}"},
        retries=1,
        retry_delay=timedelta(0),
    )

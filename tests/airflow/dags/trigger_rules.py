"""Deferred gangs between tasks that fail and are skipped: each gang runs, or is skipped, by its trigger rule."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, TriggerRule

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

with DAG("trigger_rules", schedule=None):

    def gang(task_id: str, script: str, trigger_rule: TriggerRule = TriggerRule.ALL_SUCCESS) -> GangJobOperator:
        return GangJobOperator(
            task_id=task_id,
            image="busybox",
            command=["sh", "-c", script],
            resources={"cpu": "100m"},
            skip_on_exit_code=99,
            trigger_rule=trigger_rule,
            assemble_timeout=timedelta(minutes=30),
            run_timeout=timedelta(minutes=30),
            on_finish="delete",
        )

    succeed = 'echo "\\"ran\\"" > "$GANG_RESULT_PATH"'
    fails, skips = gang("fails", "exit 3"), gang("skips", "exit 99")
    fails >> [
        gang("after_success", succeed),
        gang("after_failure", succeed, TriggerRule.ONE_FAILED),
        gang("always", succeed, TriggerRule.ALL_DONE),
    ]
    skips >> [gang("after_skip", succeed), gang("unless_failed", succeed, TriggerRule.NONE_FAILED)]

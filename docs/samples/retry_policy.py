"""A retry policy that repeats only what the cluster caused (Airflow 3.3)."""

from datetime import timedelta

from airflow.sdk import DAG, ExceptionRetryPolicy, RetryAction, RetryRule

from airflow_provider_gangjobs import exceptions as gangs
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

CLUSTER_ONLY = ExceptionRetryPolicy(
    rules=[
        RetryRule(
            [
                gangs.Disrupted,
                gangs.SubmissionFailed,
                gangs.PreviousAttemptRunning,
                gangs.TrackingFailed,
                gangs.LedgerUnavailable,
                gangs.JobReplaced,
            ],
            RetryAction.RETRY,
            retry_delay=timedelta(minutes=1),
            reason="the cluster caused it",
        ),
        RetryRule(
            gangs.Unschedulable,
            RetryAction.RETRY,
            retry_delay=timedelta(minutes=30),
            reason="the cluster had no room",
        ),
        RetryRule(gangs.GangJobError, RetryAction.FAIL, reason="a retry cannot help"),
    ]
)

with DAG("train_with_policy", schedule=None):
    GangJobOperator(
        task_id="train",
        image="registry.example/trainer:2",
        command=["python", "train.py"],
        workers=8,
        assemble_timeout=timedelta(hours=1),
        max_disruptions=3,
        retries=5,
        retry_policy=CLUSTER_ONLY,
    )

"""Report a failed gang: its cause, and what the ranks had found before."""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_gangjobs.operators.gang_job import GangJobOperator


def report(context):
    error = context["exception"]
    error = error.__cause__ or error  # an AirflowFailException has the error as cause
    category = getattr(error, "category", "")  # such as OutOfMemory
    found = getattr(error, "partial_results", {})  # {0: {"loss": 0.3}, 2: ...}
    print(f"{context['ti'].task_id}: {category}: {error} {found}")


with DAG("train_and_report", schedule=None):
    GangJobOperator(
        task_id="train",
        image="registry.example/trainer:2",
        command=["python", "train.py"],
        workers=4,
        run_timeout=timedelta(hours=6),
        on_failure_callback=report,
    )

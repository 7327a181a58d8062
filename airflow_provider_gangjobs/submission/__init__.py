"""Submission: into the cluster exactly once. Knows what a gang is and what a cluster is, not what Airflow is."""

from airflow_provider_gangjobs.submission.claim import claim, holds_claim, mark_delivered
from airflow_provider_gangjobs.submission.ending import delete, halt
from airflow_provider_gangjobs.submission.submit import Submission, SubmissionState, submit

__all__ = ["Submission", "SubmissionState", "claim", "delete", "halt", "holds_claim", "mark_delivered", "submit"]

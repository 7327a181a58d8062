"""Exceptions of Airflow that the doors raise and catch, wherever the installed release has them."""

from __future__ import annotations

try:
    from airflow.sdk.exceptions import (
        AirflowFailException,
        AirflowNotFoundException,
        AirflowTaskTimeout,
        TaskDeferralError,
        TaskDeferralTimeout,
        TaskDeferred,
    )
except ImportError:  # Airflow 3.1; goes when 3.2 is the oldest that is supported
    from airflow.exceptions import (  # type: ignore[attr-defined,no-redef]
        AirflowFailException,
        AirflowNotFoundException,
        AirflowTaskTimeout,
        TaskDeferralError,
        TaskDeferralTimeout,
        TaskDeferred,
    )

__all__ = [
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowTaskTimeout",
    "TaskDeferralError",
    "TaskDeferralTimeout",
    "TaskDeferred",
]

"""The exceptions of Airflow that the provider raises and catches, from where the installed version defines them."""

from __future__ import annotations

try:
    from airflow.sdk.exceptions import (
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        TaskDeferralError,
        TaskDeferralTimeout,
        TaskDeferred,
    )
except ImportError:  # Airflow 3.1. Remove this branch when 3.2 is the oldest supported version.
    from airflow.exceptions import (  # type: ignore[no-redef]
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        TaskDeferralError,
        TaskDeferralTimeout,
        TaskDeferred,
    )

__all__ = [
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "TaskDeferralError",
    "TaskDeferralTimeout",
    "TaskDeferred",
]

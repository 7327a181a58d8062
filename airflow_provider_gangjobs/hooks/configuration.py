"""Airflow's configuration, `airflow.cfg` and the environment, as the running Airflow offers it to providers."""

from __future__ import annotations

try:
    from airflow.sdk import conf
except ImportError:  # Airflow 3.1
    from airflow.configuration import conf  # type: ignore[assignment]

__all__ = ["conf"]

"""Timeouts of the tests. They are long, because a test waits to the end of a timeout only when something is broken."""

from __future__ import annotations

from typing import Final

TIMEOUT_S: Final = 120.0
"""The timeout of a step that takes less than a second on an idle machine."""
AIRFLOW_TIMEOUT_S: Final = 1500.0
"""The timeout of a step that takes a real Airflow some seconds, or half a minute if its processes start first."""

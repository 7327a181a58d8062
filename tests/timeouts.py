"""Timeouts of the tests. They are long, because a test waits to the end of a timeout only when something is broken."""

from __future__ import annotations

from typing import Final

TIMEOUT_S: Final = 120.0
"""For one thing that takes well under a second on an idle machine."""
AIRFLOW_TIMEOUT_S: Final = 1500.0
"""For one thing that takes real Airflow some seconds, or half a minute where its processes start first."""

"""How long tests wait for what must happen: long, since only where something is broken they wait to the end."""

from __future__ import annotations

from typing import Final

TIMEOUT_S: Final = 120.0
"""For one thing that takes well under a second on an idle machine."""
AIRFLOW_TIMEOUT_S: Final = 1500.0
"""For one thing that takes real Airflow some seconds, or half a minute where its processes start first."""

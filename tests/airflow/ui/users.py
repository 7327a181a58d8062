"""Users of the tests' Airflow, and what they may not see."""

from __future__ import annotations

from typing import Final

ADMIN: Final = "admin"
READER: Final = "reader"
"""May read all DAGs but one."""
LOGLESS: Final = "logless"
"""May read all DAGs, and no logs of tasks."""
NOT_FOR_READER: Final = "waits"
ROLES: Final = f"{ADMIN}:admin,{READER}:viewer,{LOGLESS}:viewer"
PASSWORDS: Final = {name: f"password of {name}" for name in (ADMIN, READER, LOGLESS)}

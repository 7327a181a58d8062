"""The users of the tests' Airflow, and their permissions."""

from __future__ import annotations

from typing import Final

ADMIN: Final = "admin"
READER: Final = "reader"
"""This user may read every DAG except NOT_FOR_READER."""
LOGLESS: Final = "logless"
"""This user may read every DAG, but no logs of tasks."""
NOT_FOR_READER: Final = "waits"
RED: Final = "red"
"""This user may read the DAGs whose ids begin with `red-`, and no others."""
ROLES: Final = f"{ADMIN}:admin,{READER}:viewer,{LOGLESS}:viewer,{RED}:viewer"
PASSWORDS: Final = {name: f"password of {name}" for name in (ADMIN, READER, LOGLESS, RED)}

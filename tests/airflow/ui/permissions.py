"""Airflow's simple auth manager, extended by permissions for single DAGs.

The API server loads this module. The process of the tests does not import Airflow.
"""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from tests.airflow.ui.users import LOGLESS, NOT_FOR_READER, READER, RED


class PermissionsByDag(SimpleAuthManager):
    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        if user.username == READER and details is not None and details.id == NOT_FOR_READER:
            return False
        if user.username == RED and details is not None and details.id and not details.id.startswith("red-"):
            return False
        if user.username == LOGLESS and access_entity is DagAccessEntity.TASK_LOGS:
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)

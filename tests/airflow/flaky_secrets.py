"""A secrets backend that fails one time in three, for Airflow's `[secrets] backend`."""

from __future__ import annotations

import random
from typing import Any

from airflow.secrets.base_secrets import BaseSecretsBackend


class FlakySecrets(BaseSecretsBackend):
    """A backend with connections that no other backend has. Airflow reports a failed read as "not found".

    :param connections: The values of the connections, as JSON or URI.
    """

    def __init__(self, **connections: str) -> None:
        super().__init__()
        self._connections = connections

    def get_conn_value(self, conn_id: str, *_: Any, **__: Any) -> str | None:
        value = self._connections.get(conn_id)
        if value is not None and random.random() < 1 / 3:
            raise ConnectionError("the secrets backend does not answer")
        return value

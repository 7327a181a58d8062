"""Tables: objects as the rows that `kubectl get` prints."""

from airflow_provider_gangjobs.sandbox.api.tables.table import Table

__all__ = ["Table"]

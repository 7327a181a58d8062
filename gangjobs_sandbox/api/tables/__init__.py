"""Tables: objects as the rows that `kubectl get` prints."""

from gangjobs_sandbox.api.tables.table import Table

__all__ = ["Table"]

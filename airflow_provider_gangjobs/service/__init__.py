"""The use cases of gangs in one cluster, without Airflow: `GangService` over one client, and `follow`.

`gangs.py` has one coroutine for each use case, and runs them from code that is not asynchronous.
"""

from __future__ import annotations

from airflow_provider_gangjobs.service.gangs import GangService, follow

__all__ = ["GangService", "follow"]

"""The use cases of gangs in one cluster, without Airflow: `GangService` over one client, and `follow`.

`gangs.py` has one coroutine for each use case, `follow_gang.py` follows a gang, and `session.py` runs the coroutines
from code that is not asynchronous.
"""

from __future__ import annotations

from airflow_provider_gangjobs.service.follow_gang import follow
from airflow_provider_gangjobs.service.gangs import GangService

__all__ = ["GangService", "follow"]

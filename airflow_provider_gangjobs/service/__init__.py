"""The use cases of gangs in one cluster, without Airflow: `GangService` over one client, and `follow`.

`gangs.py` submits, reads, delivers and ends gangs; `submissions.py` keeps their submissions and files; `follow_gang.py`
follows a gang. The Airflow hook derives its blocking methods from the coroutines of `GangService`.
"""

from __future__ import annotations

from airflow_provider_gangjobs.service.follow_gang import follow
from airflow_provider_gangjobs.service.gangs import SUBMISSION_DEADLINE_S, GangService

__all__ = ["SUBMISSION_DEADLINE_S", "GangService", "follow"]

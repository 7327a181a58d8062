"""Give each Airflow process of one machine a host name of its own, so that the processes count as several hosts."""

from __future__ import annotations

import os

VARIABLE = "GANGJOBS_TEST_HOST"


def hostname() -> str:
    """For Airflow's `[core] hostname_callable`."""
    return os.environ[VARIABLE]

"""Airflow's processes of one machine pass for several: each is on a host of its own name."""

from __future__ import annotations

import os

VARIABLE = "GANGJOBS_TEST_HOST"


def hostname() -> str:
    """For Airflow's `[core] hostname_callable`."""
    return os.environ[VARIABLE]

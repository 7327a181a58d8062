"""The DAG ids of the variants, how many mapped tasks each DAG has, and how long their pods run.

DAG files import this module, so it imports nothing but the standard library.
"""

from __future__ import annotations

import os
from typing import Final

GANGS_VARIABLE: Final = "GANGJOBS_BENCHMARK_GANGS"
"""The environment variable that gives the number of gangs of a measured run."""
WITH_WORKERS: Final = "gang_with_workers"
ENDED_IN_TRIGGERER: Final = "gang_ended_in_triggerer"
WITHOUT_WORKER: Final = "gang_without_worker"
PEER: Final = "kubernetes_job_operator"
EMPTY: Final = "empty"
DEFERRED: Final = "deferred"
"""DAG ids of the variants."""
WARM_UP: Final = "warm_up"
WARM_UP_GANGS: Final = 2
TASK_ID: Final = "gang"
TASK_PROCESSES_PER_GANG: Final = 2
"""A deferred task starts a process to submit, and another process to complete."""
PODS_RUN_S: Final = 2.0
"""Long enough that a task has deferred when its pods end."""


def sizes(dag_id: str) -> dict[str, int]:
    """Return the number of gangs by DAG id: the measured DAG, and a small one that fills caches before round 1."""
    return {dag_id: int(os.environ[GANGS_VARIABLE]), f"{dag_id}_{WARM_UP}": WARM_UP_GANGS}

"""Many gangs at once, one of whose triggerers is killed."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.airflow.polling import wait_for
from tests.airflow.postgres.held_runs import RANKS, ran_once
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.postgres.held_runs import AirflowDeployment, HeldRun

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]

MANY = 30
POLL_S = 2.0
"""The pause between two requests for the states of all tasks, which take the API server some time."""
WATCH_LASTS_S = 240
"""A watch stays open for at least so long before it is opened again."""


def test_each_of_thirty_gangs_runs_once_when_a_triggerer_is_killed(deployment: AirflowDeployment) -> None:
    watching, since = deployment.faults.note(query="(?=.*watch=)(?=.*gangjobs)"), time.monotonic()
    many = deployment.start("many")
    wait_for("half of the gangs", lambda: holders(many).total() >= MANY // 2, poll_s=POLL_S)

    busiest, _ = holders(many).most_common(1)[0]  # Airflow does not share triggers out evenly
    deployment.airflow.processes[busiest].kill()
    (survivor,) = (triggerer.name for triggerer in deployment.triggerers if triggerer.is_alive)
    wait_for("all gangs with one", lambda: holders(many) == {survivor: MANY}, poll_s=POLL_S)
    wait_for("all ranks", lambda: sum(many.ranks("Running", index) for index in range(MANY)) == MANY * RANKS)
    many.open()

    assert many.run.wait() == "success"
    assert [ti["try_number"] for ti in many.run.mapped("gang")] == [1] * MANY
    for index in range(MANY):
        many.wait_until_gone(index)
        ran_once(deployment.cluster_history, many.key(index))
        results = many.run.xcom("gang", map_index=index)
        assert results == [{"rank": rank, "number": str(index)} for rank in range(RANKS)]

    # A triggerer has one watch of each kind at a time, however many gangs it follows.
    opened = Counter(hit["path"] for hit in deployment.faults.hits(watching))
    at_most = len(deployment.triggerers) * (1 + (time.monotonic() - since) // WATCH_LASTS_S)
    assert max(opened.values(), default=0) <= at_most, opened


def holders(many: HeldRun) -> Counter[str]:
    """Return how many gangs each triggerer has."""
    waiting = [ti for ti in many.run.mapped("gang") if ti["state"] == "deferred" and ti["triggerer_job"] is not None]
    return Counter(ti["triggerer_job"]["hostname"] for ti in waiting)

"""Many gangs at once, and a triggerer lost among them."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.airflow.postgres.held import PATIENCE_S, RANKS, ran_once
from tests.airflow.waiting import wait_for

if TYPE_CHECKING:
    from tests.airflow.postgres.held import HeldRun, Stage

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

MANY = 30
LONGER_S = 3 * PATIENCE_S
"""Thirty tasks, each in a process of its own, and two at a time."""
WATCH_LASTS_S = 240
"""At least; then it is opened again."""


def test_thirty_gangs_run_once_each_though_a_triggerer_is_killed(stage: Stage) -> None:
    wait_for("two triggerers", lambda: len(stage.airflow.api.living_hosts("TriggererJob")) == 2, PATIENCE_S)
    watching, since = stage.door.note(query="(?=.*watch=)(?=.*gangjobs)"), time.monotonic()
    many = stage.start("many")
    wait_for("gangs with both", lambda: min(holders(many).values(), default=0) >= MANY // 6, LONGER_S)

    lost, survivor = stage.triggerers
    lost.kill()
    wait_for("all gangs with one", lambda: holders(many) == {survivor.name: MANY}, LONGER_S)
    wait_for("all ranks", lambda: sum(many.ranks("Running", index) for index in range(MANY)) == MANY * RANKS, LONGER_S)
    many.open()

    assert many.run.wait(LONGER_S) == "success"
    assert [ti["try_number"] for ti in many.run.mapped("gang")] == [1] * MANY
    for index in range(MANY):
        ran_once(stage.witness, many.key(index))
        results = many.run.xcom("gang", map_index=index)
        assert results == [{"rank": rank, "number": str(index)} for rank in range(RANKS)]

    # However many gangs there are, a triggerer has one watch of a kind at a time.
    opened = Counter(hit["path"] for hit in stage.door.hits(watching))
    at_most = len(stage.triggerers) * (1 + (time.monotonic() - since) // WATCH_LASTS_S)
    assert max(opened.values(), default=0) <= at_most, opened


def holders(many: HeldRun) -> Counter[str]:
    """How many gangs each triggerer has, of both triggerers."""
    found = Counter({triggerer.name: 0 for triggerer in many.stage.triggerers if triggerer.is_alive})
    for ti in many.run.mapped("gang"):
        if ti["triggerer_job"] is not None and ti["state"] == "deferred":
            found[ti["triggerer_job"]["hostname"]] += 1
    return found

"""The log of the harvest: one line when a problem begins, and one line when the problem ends."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, Final

import pytest

from airflow_provider_gangjobs.cluster.errors import (
    Conflict,
    Forbidden,
    ReplyLost,
    ServerError,
    TooLarge,
    TooManyRequests,
)
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.tracking.harvest.final_harvest import notes_of
from airflow_provider_gangjobs.tracking.harvest.harvester import (
    BACKLOG_HIGH,
    BACKLOG_LOW,
    FEW_HELD,
    MANY_HELD,
    NOT_RELEASED,
    NOT_STORED,
    RECOVERED,
    SLOWED_DOWN,
    Harvester,
    HarvestLog,
)
from tests.provider.virtual_control_plane import loop_clock
from tests.provider.virtual_time import in_virtual_time
from tests.unit.builders import REF, pod

TABLE: dict[str, tuple[Exception, bool, tuple[int, str]]] = {
    "ledger forbidden": (Forbidden(403, request="patch configmaps"), True, NOT_STORED),
    "ledger in conflict": (Conflict(409, request="patch configmaps"), True, NOT_STORED),
    "ledger too large": (TooLarge(413, request="patch configmaps"), True, NOT_STORED),
    "ledger unavailable": (LedgerUnavailable("team/train", "it keeps changing"), True, NOT_STORED),
    "server down": (ServerError(503, request="patch configmaps"), True, NOT_STORED),
    "release refused": (Forbidden(403, request="patch pods"), False, NOT_RELEASED),
    "release lost": (ReplyLost("patch pods", "reset"), False, NOT_RELEASED),
    "busy while storing": (TooManyRequests(429, request="patch configmaps"), True, SLOWED_DOWN),
    "busy while releasing": (TooManyRequests(429, request="patch pods"), False, SLOWED_DOWN),
}


def logged(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if hasattr(record, "fields")]


FAILED: Final = Forbidden(403, request="patch configmaps")
NOTES: dict[str, tuple[tuple[int, int, Exception | None], list[str]]] = {
    "nothing to say": ((0, 0, None), []),
    "one pod ran": ((1, 0, None), ["1 pod had not ended when the gang was over. Its outcome is unknown."]),
    "pods ran": ((2, 0, None), ["2 pods had not ended when the gang was over. Their outcome is unknown."]),
    "one pod is held": (
        (0, 1, FAILED),
        [
            (
                f"1 pod is still held, because its outcome could not be stored: {FAILED}. A task that succeeds "
                "reads its outcome and releases it. Otherwise release it with `gangjobs release`."
            )
        ],
    ),
    "pods are held without an error": (
        (0, 2, None),
        [
            (
                "2 pods are still held. A task that succeeds reads their outcome and releases them. Otherwise release "
                "them with `gangjobs release`."
            )
        ],
    ),
    "an error, and no pod is held": (
        (0, 0, FAILED),
        [f"The harvest of the pods failed: {FAILED}. No pod is held, and the outcome of some pods may be unknown."],
    ),
}


@pytest.mark.parametrize(("given", "notes"), NOTES.values(), ids=NOTES)
def test_notes_of_a_harvest_that_gave_up_say_what_is_so(given: Any, notes: list[str]) -> None:
    assert list(notes_of(*given)) == notes


@pytest.mark.parametrize(("error", "storing", "line"), TABLE.values(), ids=TABLE)
def test_problem_and_its_end_are_logged_once(
    error: Exception, storing: bool, line: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    harvest_log = HarvestLog("team/train")
    harvest_log.succeeded(0.0, backlog=0)
    for now in (10.0, 20.0, 30.0):
        harvest_log.failed(error, now, is_storing=storing, backlog=7)
    harvest_log.succeeded(40.0, backlog=1)
    harvest_log.succeeded(50.0, backlog=0)
    first, last = logged(caplog)
    assert (first.levelno, first.what) == line
    assert first.fields == {"gang": "team/train", "pods": 7, "cause": f"{type(error).__name__}: {error}"}
    assert (last.levelname, last.what) == ("INFO", RECOVERED[1])
    assert last.fields == {"gang": "team/train", "pods": 1, "after_s": 30.0, "tries": 3}


def test_another_problem_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    harvest_log = HarvestLog("team/train")
    for name in ("busy while storing", "ledger forbidden", "ledger forbidden", "release refused"):
        error, storing, _ = TABLE[name]
        harvest_log.failed(error, 1.0, is_storing=storing, backlog=1)
    assert [record.what for record in logged(caplog)] == [SLOWED_DOWN[1], NOT_STORED[1], NOT_RELEASED[1]]


def test_backlog_is_logged_when_it_is_high_and_when_it_has_fallen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    harvest_log = HarvestLog("team/train")
    for pods in (0, BACKLOG_HIGH - 1, BACKLOG_HIGH, BACKLOG_HIGH + 1, BACKLOG_LOW, BACKLOG_HIGH, BACKLOG_LOW - 1, 0):
        harvest_log.backlog(pods)
    assert [(record.levelname, record.what, record.fields["pods"]) for record in logged(caplog)] == [
        ("WARNING", MANY_HELD[1], BACKLOG_HIGH),
        ("INFO", FEW_HELD[1], BACKLOG_LOW - 1),
    ]


@in_virtual_time
async def test_harvest_that_cannot_store_logs_this_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    """The whole harvester, with a ledger that is refused three times."""
    caplog.set_level(logging.INFO)
    refusals = [Forbidden(403, request="patch configmaps", reason="Forbidden", message="may not")] * 3
    stored = asyncio.Event()

    class Refused:
        ref = REF
        recorded: frozenset[str] = frozenset()

        async def record(self, outcomes: Any, *_: Any) -> None:
            if refusals:
                raise refusals.pop()
            stored.set()

    harvester = Harvester(SimpleNamespace(clock=loop_clock()), Refused())  # type: ignore[arg-type]
    harvester.enqueue([pod("a").failed(1).view()])
    running = asyncio.create_task(harvester.run())
    await stored.wait()
    await asyncio.sleep(0.1)
    running.cancel()
    assert [record.what for record in logged(caplog)] == [NOT_STORED[1], RECOVERED[1]]
    assert logged(caplog)[1].fields["tries"] == 3

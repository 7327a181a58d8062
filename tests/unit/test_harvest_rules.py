"""When a harvester records, when it releases pods, when it waits, what it logs, and what releases cost."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, Final

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.errors import (
    ClusterError,
    Forbidden,
    TooManyRequests,
)
from airflow_provider_gangjobs.ending.release import PATCHES_IN_FLIGHT_MAX, release
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.kube.views import Meta, PodView
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from airflow_provider_gangjobs.tracking.harvest.final_harvest import notes_of
from airflow_provider_gangjobs.tracking.harvest.harvester import (
    NOT_RELEASED,
    NOT_STORED,
    QUIET_AFTER_S,
    RECORD_INTERVAL_MAX_S,
    RECOVERED,
    RELEASABLE_MAX,
    SLOW_RELEASE_PAUSE_FACTOR,
    SLOW_RELEASE_PAUSE_MIN_S,
    SLOWED_DOWN,
    Action,
    Backlog,
    Harvester,
    HarvestLog,
    HarvestSchedule,
)
from tests.provider.virtual_control_plane import loop_clock
from tests.provider.virtual_time import in_virtual_time
from tests.timeouts import TIMEOUT_S
from tests.unit.builders import REF, pod
from tests.unit.connection_server import ConnectionServer
from tests.unit.fault_server import config_for

# -- When a harvester records, when it releases pods, and when it waits ----------------------------------------------


def _busy(schedule: HarvestSchedule | None = None, now: float = 100.0) -> HarvestSchedule:
    """Set a schedule to a moment at which pods have just ended and were just released."""
    schedule = schedule or HarvestSchedule()
    schedule.note_ended_pods(now)
    schedule.note_slow_release(now, took_s=0.05)
    return schedule


@pytest.mark.parametrize(
    ("unrecorded", "terminating", "releasable", "action"),
    [
        (0, 0, 0, Action.WAIT),
        (1, 0, 0, Action.RECORD),
        (1, 0, 9, Action.RECORD),
        (1, 1, 9, Action.RELEASE_TERMINATING),
        (0, 0, 9, Action.WAIT),
        (0, 0, RELEASABLE_MAX + 1, Action.RELEASE_ALL),
    ],
)
def test_only_urgent_work_is_done_while_pods_end(unrecorded, terminating, releasable, action):
    assert _busy().next_action(100.0, Backlog(unrecorded, terminating, releasable))[0] is action


def test_nothing_to_do_waits_until_pods_are_enqueued():
    assert HarvestSchedule().next_action(1.0, Backlog(0, 0, 0)) == (Action.WAIT, None)


def test_slow_releases_depend_on_how_fast_the_server_answers():
    schedule = HarvestSchedule()
    schedule.note_ended_pods(100.0)
    assert schedule.next_action(100.0, Backlog(0, 0, 9))[0] is Action.RELEASE_SLOWLY
    schedule.note_slow_release(100.0, took_s=0.02)
    assert schedule.next_action(100.0, Backlog(0, 0, 9)) == (
        Action.WAIT,
        pytest.approx(SLOW_RELEASE_PAUSE_FACTOR * 0.02),
    )
    schedule.note_slow_release(100.0, took_s=0.0)
    assert schedule.next_action(100.0, Backlog(0, 0, 9)) == (Action.WAIT, pytest.approx(SLOW_RELEASE_PAUSE_MIN_S))


def test_all_are_released_once_no_more_pods_have_ended_for_a_moment():
    schedule = _busy()
    assert schedule.next_action(100.0 + QUIET_AFTER_S, Backlog(0, 0, 9))[0] is Action.RELEASE_ALL


@pytest.mark.parametrize(("recorded", "pause_s"), [(10, 0.02), (100, 0.2), (100_000, RECORD_INTERVAL_MAX_S)])
def test_large_gangs_are_recorded_in_larger_parts(recorded, pause_s):
    schedule = _busy()
    schedule.note_record(100.0, recorded)
    step, wait_s = schedule.next_action(100.0, Backlog(5, 0, 0))
    assert (step, wait_s) == (Action.WAIT, pytest.approx(pause_s))
    assert schedule.next_action(100.0 + pause_s, Backlog(5, 0, 0))[0] is Action.RECORD


@pytest.mark.parametrize(
    ("backlog", "action"),
    [
        (Backlog(0, 0, 0), Action.WAIT),
        (Backlog(1, 1, 9), Action.RELEASE_TERMINATING),
        (Backlog(1, 0, 9), Action.RECORD),
        (Backlog(0, 0, 9), Action.RELEASE_ALL),
    ],
)
def test_drain_has_no_pauses(backlog, action):
    schedule = _busy()
    schedule.note_record(100.0, 100_000)
    assert schedule.next_action(100.0, backlog, is_draining=True)[0] is action


@pytest.mark.parametrize(
    ("after_s", "backlog", "is_draining", "continues"),
    [
        (0, Backlog(0, 0, 9), False, False),
        (0, Backlog(0, 0, 9), True, True),
        (0, Backlog(0, 1, 9), True, False),
        (0, Backlog(5, 0, 9), True, True),
        (RECORD_INTERVAL_MAX_S, Backlog(5, 0, 9), True, False),
        (QUIET_AFTER_S, Backlog(0, 0, 9), False, True),
    ],
)
def test_release_of_all_is_interrupted_only_by_urgent_work(after_s, backlog, is_draining, continues):
    schedule = _busy()
    schedule.note_record(100.0, 100_000)
    assert schedule.continues_to_release(100.0 + after_s, backlog, is_draining=is_draining) is continues


# -- The log of the harvest: one line when a problem begins, and one line when the problem ends ----------------------

TABLE: dict[str, tuple[Exception, bool, tuple[int, str]]] = {
    "ledger forbidden": (Forbidden(403, request="patch configmaps"), True, NOT_STORED),
    "ledger unavailable": (LedgerUnavailable("team/train", "it keeps changing"), True, NOT_STORED),
    "release refused": (Forbidden(403, request="patch pods"), False, NOT_RELEASED),
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


# -- The requests by which the pods of a large gang are released -----------------------------------------------------

PODS_OF_A_LARGE_GANG = 128


async def released(server: ConnectionServer, **more: Any) -> list[str]:
    """Release the pods of a large gang, and return the names that are reported as released."""
    metas = (
        Meta(name=f"p{n}", namespace="team", uid=f"uid-{n}", finalizers=(FINALIZER_HARVEST,))
        for n in range(PODS_OF_A_LARGE_GANG)
    )
    reported: list[str] = []

    def report(pod: PodView, error: ClusterError | None) -> None:
        assert error is None
        reported.append(pod.metadata.name)

    async with server, asyncio.timeout(TIMEOUT_S), Client(config_for(server.url)) as client:
        await release(client, [PodView(metadata=meta) for meta in metas], report, **more)
    return reported


async def test_a_large_gang_is_released_over_a_few_connections() -> None:
    server = ConnectionServer()
    assert sorted(await released(server)) == sorted(f"p{n}" for n in range(PODS_OF_A_LARGE_GANG))
    assert len(server.heads) == PODS_OF_A_LARGE_GANG
    assert server.connections <= PATCHES_IN_FLIGHT_MAX


async def test_stopped_release_reports_finished_pods_only() -> None:
    server = ConnectionServer()
    reported = await released(server, is_stopped=lambda: len(server.heads) >= 40)
    assert 40 <= len(reported) == len(server.heads) < PODS_OF_A_LARGE_GANG

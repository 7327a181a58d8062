"""When a harvester records, when it releases pods, and when it waits."""

from __future__ import annotations

import pytest

from airflow_provider_gangjobs.tracking.harvest.harvester import (
    QUIET_AFTER_S,
    RECORD_INTERVAL_MAX_S,
    RELEASABLE_MAX,
    SLOW_RELEASE_PAUSE_FACTOR,
    SLOW_RELEASE_PAUSE_MIN_S,
    Action,
    Backlog,
    HarvestSchedule,
)


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

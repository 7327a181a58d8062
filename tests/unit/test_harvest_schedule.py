"""When a harvester records, when it releases, and when it leaves the API server to the pods."""

from __future__ import annotations

import pytest

from airflow_provider_gangjobs.tracking.harvest.schedule import (
    CALM_AFTER_S,
    HELD_MAX,
    RECORD_PAUSE_MAX_S,
    TRICKLE_REST,
    TRICKLE_REST_MIN_S,
    HarvestSchedule,
    Step,
)


def _busy(tempo: HarvestSchedule | None = None, now: float = 100.0) -> HarvestSchedule:
    """Pods end just now, and a release has just been made."""
    tempo = tempo or HarvestSchedule()
    tempo.pods_ended(now)
    tempo.trickled(now, took_s=0.05)
    return tempo


@pytest.mark.parametrize(
    ("due", "awaited", "held", "step"),
    [
        (0, 0, 0, Step.WAIT),
        (1, 0, 0, Step.RECORD),
        (1, 0, 9, Step.RECORD),
        (1, 1, 9, Step.RELEASE_AWAITED),
        (0, 0, 9, Step.WAIT),
        (0, 0, HELD_MAX + 1, Step.DRAIN),
    ],
)
def test_while_pods_end_only_what_is_urgent_is_done(due, awaited, held, step):
    assert _busy().next(100.0, due=due, awaited=awaited, held=held)[0] is step


def test_nothing_to_do_waits_for_an_offer():
    assert HarvestSchedule().next(1.0, due=0, awaited=0, held=0) == (Step.WAIT, None)


def test_releases_trickle_as_slowly_as_the_server_answers():
    tempo = HarvestSchedule()
    tempo.pods_ended(100.0)
    assert tempo.next(100.0, due=0, awaited=0, held=9)[0] is Step.TRICKLE
    tempo.trickled(100.0, took_s=0.02)
    assert tempo.next(100.0, due=0, awaited=0, held=9) == (Step.WAIT, pytest.approx(TRICKLE_REST * 0.02))
    tempo.trickled(100.0, took_s=0.0)
    assert tempo.next(100.0, due=0, awaited=0, held=9) == (Step.WAIT, pytest.approx(TRICKLE_REST_MIN_S))


def test_all_are_released_once_no_more_pods_have_ended_for_a_moment():
    tempo = _busy()
    assert tempo.next(100.0 + CALM_AFTER_S, due=0, awaited=0, held=9)[0] is Step.DRAIN


@pytest.mark.parametrize(("recorded", "pause_s"), [(10, 0.02), (100, 0.2), (100_000, RECORD_PAUSE_MAX_S)])
def test_large_gangs_are_recorded_in_larger_parts(recorded, pause_s):
    tempo = _busy()
    tempo.recorded(100.0, recorded)
    step, wait_s = tempo.next(100.0, due=5, awaited=0, held=0)
    assert (step, wait_s) == (Step.WAIT, pytest.approx(pause_s))
    assert tempo.next(100.0 + pause_s, due=5, awaited=0, held=0)[0] is Step.RECORD

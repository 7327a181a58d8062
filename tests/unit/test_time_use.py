"""What the time of a gang was used for."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorReport
from airflow_provider_gangjobs.gang.outcome.time_use import ResourceHours, TimeUse, add_uses, describe_use, time_use_of
from tests.unit.builders import at

HOUR = 3600.0
TIMES = {"submitted": at(0), "admitted": at(60), "running": at(60 + 0.5 * HOUR), "ended": at(60 + 4.5 * HOUR)}
UNKNOWN = SupervisorReport()
TOLD = SupervisorReport(total=2, stopped_s=0.1 * HOUR, ran_s=3.4 * HOUR, lost_s=0.4 * HOUR, is_final=True)


def use_of(times: Any = None, requests: Any = None, **given: Any) -> TimeUse:
    wanted: dict[str, Any] = {"succeeded": True, "restarts_max": None, "report": UNKNOWN, **given}
    use = time_use_of(TIMES if times is None else times, requests or {}, **wanted)
    assert use is not None
    return use


def seconds(use: TimeUse) -> tuple[float | None, ...]:
    return use.queued_s, use.assembling_s, use.useful_s, use.lost_s, use.stopped_s


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (60, 0.5 * HOUR, 4 * HOUR, 0, 0)),
        ({"succeeded": False}, (60, 0.5 * HOUR, 0, 4 * HOUR, 0)),
        ({"restarts_max": 3, "report": TOLD}, (60, 0.5 * HOUR, 3.5 * HOUR, 0.4 * HOUR, 0.1 * HOUR)),
        (
            {"restarts_max": 3, "succeeded": False, "report": TOLD},
            (60, 0.5 * HOUR, 3.4 * HOUR - 0.4 * HOUR, 0.9 * HOUR, 0.1 * HOUR),
        ),
        ({"restarts_max": 3}, (60, 0.5 * HOUR, None, None, None)),
        ({"restarts_max": 3, "succeeded": False}, (60, 0.5 * HOUR, None, None, None)),
        ({"restarts_max": 0}, (60, 0.5 * HOUR, 4 * HOUR, 0, 0)),
    ],
    ids=[
        "success",
        "failure is lost",
        "restarts",
        "checkpoints before a failure",
        "unknown restarts",
        "unknown failure",
        "only a progress_timeout",
    ],
)
def test_seconds_are_those_of_the_phases(given: dict[str, Any], expected: tuple[float | None, ...]) -> None:
    assert seconds(use_of(**given)) == pytest.approx(expected)


def test_gang_that_never_ran_has_only_waited() -> None:
    use = use_of({"submitted": at(0), "admitted": at(10), "ended": at(40)}, succeeded=False)

    assert seconds(use) == (10, 30, 0, 0, 0)


def test_gang_that_stayed_in_its_queue_held_nothing() -> None:
    use = use_of({"submitted": at(0), "ended": at(40)}, {"cpu": "8"}, succeeded=False)

    assert (use.queued_s, use.held_s, use.hours["cpu"].total) == (40, 0, 0)


def test_unknown_end_has_no_use() -> None:
    assert time_use_of({"submitted": at(0)}, {}, succeeded=False, restarts_max=None, report=UNKNOWN) is None


def test_hours_are_requests_times_the_time_they_were_held() -> None:
    use = use_of(requests={"cpu": "16", "memory": "32Gi", "nvidia.com/gpu": "8"}, restarts_max=2, report=TOLD)

    assert use.hours["nvidia.com/gpu"] == ResourceHours(total=36.0, useful=28.0, lost=3.2, waiting=4.8)
    assert use.hours["memory"].total == 144.0
    assert describe_use(use, 8) == (
        "8 ranks x 4.5 h: 36.0 GPU h, 28.0 useful, 3.2 lost in 2 restarts, 4.8 waiting; queued for 1.0 min before"
    )


def test_losses_are_within_the_time_of_the_gang() -> None:
    told = SupervisorReport(total=1, stopped_s=1e9, lost_s=1e9, is_final=True)

    assert seconds(use_of(restarts_max=1, report=told))[2:] == (0, 0, 4 * HOUR)


def test_line_of_a_gang_without_requests_counts_ranks() -> None:
    use = use_of({"submitted": at(0), "admitted": at(0), "running": at(2), "ended": at(12)})

    assert describe_use(use, 3) == "3 ranks x 12.0 s: 36.0 rank s, 30.0 useful, 0.0 lost, 6.0 waiting"


def test_line_says_what_is_unknown() -> None:
    assert "useful is unknown" in describe_use(use_of(restarts_max=3), 2)


def test_lost_attempt_counts_with_the_next_one() -> None:
    lost, done = use_of(requests={"cpu": "1"}, succeeded=False), use_of(requests={"cpu": "1"})
    both = add_uses(lost, done)

    assert both is not None
    assert (both.attempts, both.lost_s, both.useful_s) == (2, 4 * HOUR, 4 * HOUR)
    assert both.hours["cpu"].lost == 4.0
    assert add_uses(None, done) == done
    assert "4.0 lost in 2 attempts" in describe_use(both, 1)

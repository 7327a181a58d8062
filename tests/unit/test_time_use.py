"""What the time of a gang was used for."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorReport
from airflow_provider_gangjobs.gang.outcome.time_use import TimeUse, add_uses, describe_use, time_use_of
from tests.unit.builders import at

HOUR = 3600.0
TIMES = {"submitted": at(0), "admitted": at(60), "running": at(60 + 0.5 * HOUR), "ended": at(60 + 4.5 * HOUR)}
UNKNOWN = SupervisorReport()
TOLD = SupervisorReport(total=2, stopped_s=0.1 * HOUR, ran_s=3.4 * HOUR, lost_s=0.4 * HOUR, is_final=True)


def use_of(times: Any = None, **given: Any) -> TimeUse:
    wanted: dict[str, Any] = {"succeeded": True, "restarts_max": None, "report": UNKNOWN, **given}
    use = time_use_of(TIMES if times is None else times, **wanted)
    assert use is not None
    return use


def seconds(use: TimeUse) -> tuple[float | None, ...]:
    return use.useful_s, use.lost_s, use.waiting_s


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (4 * HOUR, 0, 0.5 * HOUR)),
        ({"succeeded": False}, (0, 4 * HOUR, 0.5 * HOUR)),
        ({"restarts_max": 3, "report": TOLD}, (3.5 * HOUR, 0.4 * HOUR, 0.6 * HOUR)),
        ({"restarts_max": 3, "succeeded": False, "report": TOLD}, (3 * HOUR, 0.9 * HOUR, 0.6 * HOUR)),
        ({"restarts_max": 3}, (None, None, None)),
        ({"restarts_max": 3, "succeeded": False}, (None, None, None)),
        ({"restarts_max": 0}, (4 * HOUR, 0, 0.5 * HOUR)),
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
def test_seconds_are_those_that_the_gang_held_what_it_requests(
    given: dict[str, Any], expected: tuple[float | None, ...]
) -> None:
    assert seconds(use_of(**given)) == pytest.approx(expected)


def test_gang_that_never_ran_has_only_waited() -> None:
    use = use_of({"submitted": at(0), "admitted": at(10), "ended": at(40)}, succeeded=False)

    assert seconds(use) == (0, 0, 30)


def test_gang_that_stayed_in_its_queue_held_nothing() -> None:
    assert seconds(use_of({"submitted": at(0), "ended": at(40)}, succeeded=False)) == (0, 0, 0)


def test_unknown_end_has_no_use() -> None:
    assert time_use_of({"submitted": at(0)}, succeeded=False, restarts_max=None, report=UNKNOWN) is None


def test_losses_are_within_the_time_of_the_gang() -> None:
    told = SupervisorReport(total=1, stopped_s=1e9, lost_s=1e9, is_final=True)

    assert seconds(use_of(restarts_max=1, report=told)) == (0, 0, 4.5 * HOUR)


LINES = {
    "GPUs": (
        {"cpu": "16", "memory": "32Gi", "nvidia.com/gpu": "8"},
        "36.0 GPU h, of which 28.0 useful, 3.2 lost, 4.8 waiting",
    ),
    "cores": ({"cpu": "500m", "nvidia.com/gpu": "0"}, "2.2 CPU h, of which 1.8 useful, 0.2 lost, 0.3 waiting"),
    "ranks": ({"cpu": "many"}, "9.0 rank h, of which 7.0 useful, 0.8 lost, 1.2 waiting"),
}


@pytest.mark.parametrize(("requests", "line"), LINES.values(), ids=LINES)
def test_line_counts_what_the_gang_requested(requests: dict[str, str], line: str) -> None:
    assert describe_use(use_of(restarts_max=2, report=TOLD), requests, 2) == line


def test_line_of_a_short_gang_counts_seconds() -> None:
    use = use_of({"submitted": at(0), "admitted": at(0), "running": at(2), "ended": at(12)})

    assert describe_use(use, {}, 3) == "36.0 rank s, of which 30.0 useful, 0.0 lost, 6.0 waiting"


def test_line_says_what_is_unknown() -> None:
    assert describe_use(use_of(restarts_max=3), {}, 2).startswith("unknown, because")


def test_lost_attempt_counts_with_the_next_one() -> None:
    lost, done = use_of(succeeded=False), use_of()

    both = add_uses(lost, done)

    assert both is not None
    assert seconds(both) == (4 * HOUR, 4 * HOUR, HOUR)
    assert add_uses(None, done) == done
    assert add_uses(use_of(restarts_max=3), done) == TimeUse()

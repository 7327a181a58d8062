"""What the lines of the supervisors tell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_gangjobs.gang.outcome.restarts import (
    RESTARTS_KEPT,
    Progress,
    Restart,
    SupervisorReport,
    describe_restarts,
    parse_line,
    readable,
)


def line(event: str, **fields: Any) -> bytes:
    return b"gangjobs-supervisor " + json.dumps({"event": event, "message": "It happened.", **fields}).encode()


def report_of(*lines: bytes, known: SupervisorReport | None = None) -> SupervisorReport:
    report = known or SupervisorReport()
    for each in lines:
        told = parse_line(each)
        assert told is not None
        report = report.with_line(told[1])
    return report


def test_restart_is_complete_when_all_ranks_run_again() -> None:
    report = report_of(
        line("restart", number=1, rank=1, kind="exit", code=3, at=100.5, lost_s=7.0),
        line("restarted", number=1, took_s=1.5),
    )

    assert report.restarts == (Restart(number=1, rank=1, kind="exit", code=3, at=100.5, lost_s=7.0, took_s=1.5),)
    assert report.total == 1


def test_line_that_is_read_twice_is_one_restart() -> None:
    once = line("restart", number=1, rank=1, kind="signal", signal=9)

    assert report_of(once, once).total == 1


def test_nothing_is_known_without_lines() -> None:
    assert SupervisorReport().total is None
    assert SupervisorReport().lost_s is None


def test_summary_tells_all_restarts() -> None:
    restarts = [{"number": number, "rank": 0, "kind": "exit", "code": 1} for number in range(1, 31)]
    report = report_of(line("summary", restarts=restarts, restarts_total=31, stopped_s=4, lost_s=9.5, step=7))

    assert len(report.restarts) == RESTARTS_KEPT
    assert (report.total, report.stopped_s, report.lost_s, report.is_final) == (31, 4, 9.5, True)


def test_report_survives_the_annotation() -> None:
    report = report_of(line("restart", number=2, rank=0), line("progress", step=3, total=12, metrics={"loss": 0.5}))

    assert SupervisorReport.parse(report.to_json()) == report
    assert SupervisorReport.parse("no JSON") == SupervisorReport()


def test_progress_is_a_line_for_people() -> None:
    report = report_of(line("progress", step=300, total=1200, rate=2.5, metrics={"loss": 0.25}))

    assert str(report.progress) == "step 300 of 1200 (25 %), 2.5 steps/s, loss 0.25"
    assert Progress(step=5).percent is None


@pytest.mark.parametrize(
    "text",
    [
        b"gangjobs-supervisor",
        b"gangjobs-supervisor {}",
        b'gangjobs-supervisor {"event": "restart"}',
        b'gangjobs-supervisor {"event": 1, "message": "a"}',
        b'gangjobs-supervisor {"event": "restart", "message": "a", "number": "1"}',
        b'gangjobs-supervisor {"event": "progress", "message": "a", "step": NaN}',
        b"gangjobs-supervisor " + json.dumps({"event": "a", "message": "a" * 5000}).encode(),
    ],
)
def test_other_line_is_no_line_of_a_supervisor(text: bytes) -> None:
    assert parse_line(text) is None


def test_message_is_one_line() -> None:
    told = parse_line(line("restart", message="a\n[rank 0] b\r"))

    assert told is not None
    assert told[1].message == "a [rank 0] b"


def test_number_without_bounds_is_not_known() -> None:
    report = report_of(line("progress", step=1, metrics={str(number): number for number in range(20)}, rate=1e308))

    assert report.progress is not None
    assert len(report.progress.metrics) == 8


def test_text_shows_messages_in_place_of_lines() -> None:
    text = f"a\n{line('restart').decode()}\nb"

    assert readable(text) == "a\nIt happened.\nb"
    assert readable("a\nb") == "a\nb"


def test_line_may_follow_an_unfinished_line_of_the_program() -> None:
    assert readable(f"42 % {line('restart').decode()}\nb") == "42 % It happened.\nb"


def test_error_tells_the_restarts_before_it() -> None:
    report = report_of(line("restart", number=1, rank=2, kind="signal", signal=11))

    assert describe_restarts(report, 3) == (
        "The programs were restarted in their pods 1 time of 3, the last time because rank 2 was ended by signal 11."
    )
    assert describe_restarts(SupervisorReport(), 3) == ""

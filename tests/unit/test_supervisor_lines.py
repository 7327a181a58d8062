"""What the lines of the supervisors tell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_gangjobs.gang.outcome.restarts import (
    LINE_BYTES_MAX,
    LINE_START,
    RESTARTS_KEPT,
    Progress,
    ReadableChunks,
    Restart,
    SupervisorReport,
    describe_restarts,
    parse_line,
    readable,
    without_lines,
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


def test_restarts_that_do_not_fit_into_the_summary_stay_known() -> None:
    """A line of 2 KiB has room for some 13 restarts."""
    restarts = [{"number": number, "rank": 0, "kind": "exit", "code": 1} for number in range(1, 21)]
    known = report_of(*(line("restart", **restart) for restart in restarts))
    report = report_of(line("summary", restarts=restarts[7:], restarts_total=20), known=known)

    assert (report.restarts, report.total) == (known.restarts, 20)


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
        b'gangjobs-supervisor {"event": "progress", "message": "a", "step": %d}' % 10**400,
        b'gangjobs-supervisor {"event": "progress", "message": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
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
    assert readable(b"a\n" + line("restart") + b"\nb") == b"a\nIt happened.\nb"
    assert readable(b"a\nb") == b"a\nb"


@pytest.mark.parametrize(
    "unfinished", [b"gangjobs-supervisor {", b'gangjobs-supervisor {"event": "', b"gangjobs-supervisor {" * 300]
)
def test_unfinished_line_with_the_mark_hides_no_event(unfinished: bytes) -> None:
    told = parse_line(unfinished + line("restart", number=1))

    assert told is not None
    assert (told[0], told[1].number) == (unfinished, 1)
    chunks = ReadableChunks()
    shown = [chunks.feed(unfinished), chunks.feed(line("restart") + b"\n"), chunks.end()]
    assert b"".join(shown).replace(b" ", b"") == unfinished.replace(b" ", b"") + b"Ithappened.\n"


def test_line_may_follow_an_unfinished_line_of_the_program() -> None:
    assert readable(b"42 % " + line("restart") + b"\nb") == b"42 % It happened.\nb"


def test_output_of_the_program_is_what_it_has_written_itself() -> None:
    text = f"a\n42 % {line('restart').decode()}\n{line('summary').decode()}\nValueError: b"

    assert without_lines(text) == "a\n42 %\nValueError: b"


LOG = b"a\n42 % " + line("restart") + b"\ngangjobs-\n" + line("summary") + b"\nb\n"


@pytest.mark.parametrize("size", [1, 2, 7, 19, 20, 21, 22, len(LOG)])
def test_log_in_chunks_shows_messages_in_place_of_lines(size: int) -> None:
    for end in range(len(LOG) - 60, len(LOG) + 1):
        log, chunks = LOG[:end], ReadableChunks()
        shown = [chunks.feed(log[at : at + size]) for at in range(0, end, size)]
        assert b"".join([*shown, chunks.end()]) == readable(log)


def test_unfinished_line_of_a_program_is_not_held() -> None:
    assert ReadableChunks().feed(b"a\n42 % gangjob") == b"a\n42 % gangjob"[:-7]
    assert ReadableChunks().feed(LINE_START + b"x" * LINE_BYTES_MAX) != b""


def test_error_tells_the_restarts_before_it() -> None:
    report = report_of(line("restart", number=1, rank=2, kind="signal", signal=11))

    assert describe_restarts(report, 3) == (
        "The programs were restarted in their pods 1 time of 3, the last time because rank 2 was ended by signal 11."
    )
    assert describe_restarts(SupervisorReport(), 3) == ""

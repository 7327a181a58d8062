"""The decisions of the coordinator and of the ranks, as functions of what has been reported."""

from __future__ import annotations

import ast
import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.container_programs import gangjobs_supervisor as supervisor
from airflow_provider_gangjobs.container_programs.gangjobs_supervisor import (
    END,
    EXITED,
    RUN,
    RUNNING,
    STOPPED,
    Report,
    Settings,
    Wanted,
    next_action,
    next_wanted,
)
from airflow_provider_gangjobs.gang.outcome.restarts import parse_line

SETTINGS = Settings(rank=0, size=2, restarts_max=2, no_restart_codes=frozenset({7}), address="a-0.a")
RUNS, SUCCEEDED = Report(), Report(state=EXITED)
FAILED = Report(state=EXITED, kind="exit", code=3)
HUNG = Report(state=RUNNING, kind="hung", code=124)

WANTED = {
    "all run": (Wanted(), {0: RUNS, 1: RUNS}, Wanted()),
    "one has succeeded": (Wanted(), {0: RUNS, 1: SUCCEEDED}, Wanted()),
    "all have succeeded": (Wanted(), {0: SUCCEEDED, 1: SUCCEEDED}, Wanted(0, END)),
    "one is unknown": (Wanted(), {0: SUCCEEDED}, Wanted()),
    "one has failed": (Wanted(), {0: RUNS, 1: FAILED}, Wanted(1, STOPPED, 1, "exit")),
    "one is hung": (Wanted(), {0: HUNG, 1: RUNS}, Wanted(1, STOPPED, 0, "hung")),
    "the first failure counts": (Wanted(), {1: FAILED, 0: HUNG}, Wanted(1, STOPPED, 1, "exit")),
    "the code is in the list": (Wanted(), {1: replace(FAILED, code=7)}, Wanted(0, END, 1, "exit", "exit_code")),
    "the restarts are used up": (
        Wanted(2),
        {0: Report(2), 1: replace(FAILED, restart=2)},
        Wanted(2, END, 1, "exit", "used_up"),
    ),
    "a pod is being ended": (
        Wanted(),
        {0: replace(RUNS, terminating=True), 1: FAILED},
        Wanted(0, END, 1, "exit", "terminating"),
    ),
    "a failure of an earlier restart": (Wanted(1), {0: Report(1), 1: FAILED}, Wanted(1)),
    "one has not confirmed": (
        Wanted(1, STOPPED, 1, "exit"),
        {0: RUNS, 1: Report(1, STOPPED)},
        Wanted(1, STOPPED, 1, "exit"),
    ),
    "all have confirmed": (Wanted(1, STOPPED, 1), {0: Report(1, STOPPED), 1: Report(1, STOPPED)}, Wanted(1)),
    "one is ended before it has confirmed": (
        Wanted(1, STOPPED, 1, "exit"),
        {0: replace(RUNS, terminating=True), 1: Report(1, STOPPED)},
        Wanted(1, END, 1, "exit", "terminating"),
    ),
    "the end is final": (Wanted(1, END, 1), {0: Report(1, STOPPED), 1: Report(1, STOPPED)}, Wanted(1, END, 1)),
}


@pytest.mark.parametrize(("wanted", "reports", "expected"), WANTED.values(), ids=WANTED)
def test_coordinator_wants(wanted: Wanted, reports: dict[int, Report], expected: Wanted) -> None:
    assert next_wanted(wanted, reports, 0.0, SETTINGS) == expected


def test_rank_that_does_not_confirm_ends_the_attempt() -> None:
    wanted, reports = Wanted(1, STOPPED, 1, "exit"), {0: RUNS, 1: Report(1, STOPPED)}
    assert next_wanted(wanted, reports, SETTINGS.confirm_s, SETTINGS) == wanted
    ended = next_wanted(wanted, reports, SETTINGS.confirm_s + 1, SETTINGS)
    assert ended == Wanted(1, END, 1, "exit", "not_confirmed", (0,))
    assert "rank 0 has not confirmed within 120 s" in supervisor.describe_reason(ended, SETTINGS)


def test_rank_that_has_never_connected_is_given_more_time() -> None:
    wanted = Wanted(1, STOPPED, 0, "exit")
    assert next_wanted(wanted, {0: Report(1, STOPPED)}, 599.0, SETTINGS) == wanted
    assert next_wanted(wanted, {0: Report(1, STOPPED)}, 601.0, SETTINGS).missing == (1,)


def test_success_of_a_rank_that_was_lost_is_not_awaited() -> None:
    reports = {0: SUCCEEDED, 1: RUNS}
    for silent_s, lost in ((SETTINGS.confirm_s, frozenset[int]()), (SETTINGS.confirm_s + 1, {1})):
        assert supervisor.lost_ranks({1: silent_s}, reports, SETTINGS) == lost
    assert supervisor.lost_ranks({1: 0.0}, {1: Report(terminating=True, ending=True)}, SETTINGS) == {1}
    assert supervisor.lost_ranks({1: 599.0}, {0: SUCCEEDED}, SETTINGS) == frozenset()
    assert supervisor.lost_ranks({1: 601.0}, {0: SUCCEEDED}, SETTINGS) == {1}
    ended = next_wanted(Wanted(), reports, 0.0, SETTINGS, frozenset({1}))
    assert ended == Wanted(0, END, reason="lost_contact", missing=(1,))
    assert supervisor.describe_reason(ended, SETTINGS) == "rank 1 has ended, or was not heard of for too long"
    assert next_wanted(Wanted(), {0: RUNS, 1: RUNS}, 0.0, SETTINGS, frozenset({1})) == Wanted()
    assert next_wanted(Wanted(), {0: SUCCEEDED, 1: SUCCEEDED}, 0.0, SETTINGS, frozenset({1})) == Wanted(0, END)


LOST = Wanted(1, END, reason="lost_contact", missing=(1,))
ACTIONS = {
    "was lost, and goes on": (Report(1), LOST, "nothing"),
    "was lost, and has failed": (replace(FAILED, restart=1), LOST, "exit"),
    "was lost before it started": (Report(1, STOPPED), LOST, "exit"),
    "runs as wanted": (RUNS, Wanted(), "nothing"),
    "is stopped": (RUNS, Wanted(1, STOPPED, 0), "stop"),
    "forgets its success": (SUCCEEDED, Wanted(1, STOPPED, 0), "stop"),
    "starts": (Report(1, STOPPED), Wanted(1), "start"),
    "never starts what it has confirmed to be over": (Report(1, STOPPED), Wanted(0), "nothing"),
    "starts nothing without its own confirmation": (RUNS, Wanted(1), "nothing"),
    "starts nothing while it is ended": (Report(1, STOPPED, terminating=True), Wanted(1), "nothing"),
    "exits when all have succeeded": (SUCCEEDED, Wanted(0, END), "exit"),
    "exits with its failure": (FAILED, Wanted(0, END, 1), "exit"),
    "waits after the failure of another": (FAILED, Wanted(0, END, 0), "nothing"),
    "waits while rank 0 exits instead": (
        Report(1, STOPPED),
        Wanted(1, END, 2, "hung", "not_confirmed", (2,)),
        "nothing",
    ),
    "does not exit while it runs": (HUNG, Wanted(0, END, 1), "nothing"),
}


class RecordedLines(supervisor.Lines):
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def write(self, event: str, message: str, **values: Any) -> None:
        self.events.append({"event": event, "message": message, **values})


def test_failure_before_all_ranks_run_again_is_told_as_what_it_is() -> None:
    lines = RecordedLines()
    coordinator = supervisor.Coordinator(SETTINGS, lines, lambda wanted: None)
    coordinator.receive(0, RUNS)
    coordinator.receive(1, FAILED)
    coordinator.receive(1, Report(1, STOPPED))
    coordinator.receive(0, Report(1, STOPPED))
    coordinator.receive(0, replace(FAILED, restart=1, kind="signal", code=139, signal=11))
    coordinator.summarize()

    first, second, summary = lines.events
    assert (first["rank"], first["message"]) == (1, "Rank 1 has failed with exit code 3. Restart 1 of 2 begins.")
    assert (second["rank"], second["code"], second["ran_s"]) == (0, 139, 0.0)
    assert second["message"] == "Rank 0 has been ended by SIGSEGV. Restart 2 of 2 begins."
    assert [restart["rank"] for restart in summary["restarts"]] == [1, 0]
    assert [restart["lost_s"] for restart in summary["restarts"]][1] == 0.0


@pytest.mark.parametrize(("report", "wanted", "action"), ACTIONS.values(), ids=ACTIONS)
def test_rank_acts(report: Report, wanted: Wanted, action: str) -> None:
    assert next_action(report, wanted, rank=1) == action


def test_rank_0_exits_if_the_failed_rank_does_not_confirm() -> None:
    wanted = Wanted(1, END, 1, "hung", "not_confirmed", (1,))
    assert next_action(Report(1, STOPPED), wanted, rank=0) == "exit"
    assert next_action(Report(1, STOPPED), replace(wanted, missing=(2,)), rank=0) == "nothing"
    assert next_action(HUNG, replace(wanted, rank=0, missing=(0,)), rank=0) == "exit"


@given(st.data())
def test_no_rank_starts_while_a_program_of_an_earlier_restart_runs(data: st.DataObject) -> None:
    """Reports and orders arrive late in any order of ranks, but each connection keeps its own order."""
    size = data.draw(st.integers(1, 4))
    settings = replace(SETTINGS, size=size, restarts_max=5)
    wanted = Wanted()
    own = [Report()] * size
    orders: list[list[Wanted]] = [[] for _ in range(size)]
    reports: list[list[Report]] = [[Report()] for _ in range(size)]
    known: dict[int, Report] = {}
    for _ in range(data.draw(st.integers(0, 60))):
        rank = data.draw(st.integers(0, size - 1))
        event = data.draw(st.sampled_from(["order", "report", "fail", "succeed", "end", "reconnect"]))
        if event == "report" and reports[rank]:
            known[rank] = reports[rank].pop(0)
            wanted = next_wanted(wanted, known, 0.0, settings)
            for queue in orders:
                queue.append(wanted)
            continue
        if event == "reconnect":
            orders[rank], reports[rank] = [wanted], [own[rank]]
            continue
        before = own[rank]
        if event == "order" and orders[rank]:
            order = orders[rank].pop(0)
            action = next_action(before, order, rank)
            if action == "start":
                own[rank] = Report(order.restart)
                alive = {r.restart for r in own if r.state == RUNNING}
                assert alive == {order.restart}, own
            elif action == "stop":
                own[rank] = Report(order.restart, STOPPED)
        elif event in ("fail", "succeed") and before.state == RUNNING:
            own[rank] = replace(before, state=EXITED, kind="exit" if event == "fail" else "")
        elif event == "end":
            own[rank] = replace(before, terminating=True)
        if own[rank] != before:
            reports[rank].append(own[rank])


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_any_content_of_a_progress_file_is_harmless(content: bytes) -> None:
    assert supervisor.read_progress(content, 0.0) == {}


def test_pipe_and_folder_in_the_place_of_a_file_are_read_and_written_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        progress = supervisor.ProgressFile(str(path))
        progress.look(1.0)
        assert progress.content == b""
        assert supervisor.read_error(str(path)) == ""
    supervisor.write_error(str(tmp_path / "pipe"), "no rank")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_error_with_half_of_a_character_can_be_read(tmp_path: Path) -> None:
    supervisor.write_error(str(tmp_path / "result"), "exec: caf\udce9: not found")
    assert supervisor.read_error(str(tmp_path / "result")) == "exec: caf?: not found"


def test_progress_keeps_what_is_well_formed() -> None:
    content = {"step": 5, "total": "x", "metrics": {"loss": 0.5, "bad": None}, "pid": 7, "stacks": True}
    values = supervisor.read_progress(json.dumps({**content, "checkpoint_at": 90}).encode(), 100.0)
    assert values == {"step": 5, "metrics": {"loss": 0.5}, "checkpoint_age_s": 10.0, "stacks": True, "pid": 7}


@given(st.text(max_size=3000), st.lists(st.dictionaries(st.text(max_size=9), st.floats(allow_nan=False)), max_size=40))
def test_line_is_short_ascii_and_json(message: str, restarts: list[dict[str, float]]) -> None:
    line = supervisor.encode_line({"event": "summary", "message": message, "restarts": restarts})
    assert len(line) <= supervisor.LINE_BYTES_MAX
    assert line.count(b"\n") == 1
    assert json.loads(line.decode("ascii")[len(supervisor.LINE_START) :])["event"] == "summary"


def test_error_that_is_no_utf_8_is_a_line_that_the_provider_reads(tmp_path: Path) -> None:
    (tmp_path / "result").write_text(json.dumps({"error": os.fsdecode(b"no file caf\xe9")}))
    error = supervisor.read_error(str(tmp_path / "result"))
    assert parse_line(supervisor.encode_line({"event": "restart", "message": error}))


@pytest.mark.parametrize(
    ("report", "silent_s", "was_connected", "verdict"),
    [
        (RUNS, 61.0, True, "stop"),
        (RUNS, 59.0, True, "nothing"),
        (RUNS, 9999.0, False, "nothing"),
        (SUCCEEDED, 61.0, True, "exit"),
        (FAILED, 61.0, False, "nothing"),
        (FAILED, 601.0, False, "exit"),
    ],
)
def test_rank_without_contact(report: Report, silent_s: float, was_connected: bool, verdict: str) -> None:
    assert supervisor.silence_verdict(report, silent_s, SETTINGS, was_connected=was_connected) == verdict


def test_supervisor_needs_python_3_8_and_its_standard_library() -> None:
    tree = ast.parse(Path(supervisor.__file__).read_text(), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_messages_are_understood() -> None:
    for report in (RUNS, FAILED, HUNG, Report(2, STOPPED, metrics={"a": 1.0}, silent_s=0.0)):
        assert supervisor.from_message(Report, json.loads(json.dumps(supervisor.to_message(report)))) == report
    assert supervisor.from_message(Wanted, supervisor.to_message(Wanted())).want == RUN
    for message in ({"state": "x"}, {"restart": "1"}, {"other": 1}):
        with pytest.raises(supervisor.ProtocolError):
            supervisor.from_message(Report, message)

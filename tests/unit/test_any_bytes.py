"""Any bytes, on every way by which they leave a rank: what is kept or shown is taken by databases and terminals."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.airflow_api.task_log import mask_event
from airflow_provider_gangjobs.attempt.completion import error_from_event
from airflow_provider_gangjobs.cli.output import Column, Table
from airflow_provider_gangjobs.cluster.errors import ApiError
from airflow_provider_gangjobs.cluster.http.log_reader import LogParser
from airflow_provider_gangjobs.container_programs import gangjobs_supervisor as supervisor
from airflow_provider_gangjobs.exceptions import ResultRefused
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, build_event
from airflow_provider_gangjobs.gang.outcome.outcomes import outcome_of
from airflow_provider_gangjobs.gang.outcome.restarts import SupervisorReport, parse_line
from airflow_provider_gangjobs.gang.outcome.task_result import partial_results, task_result
from airflow_provider_gangjobs.gang.spec import Results
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.waiting import to_line
from airflow_provider_gangjobs.kube.text import to_printable, to_printable_line
from airflow_provider_gangjobs.kube.views import parse_indexes
from airflow_provider_gangjobs.plugins.page_view import clean, clean_lines
from airflow_provider_gangjobs.tracking.logs.whole_logs import LineWriter
from tests.unit.builders import REF, pod

REFUSED_BY_A_DATABASE = re.compile("[\x00\ud800-\udfff]")
REFUSED_BY_A_TERMINAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
COLOR = "\x1b[31m"
PIECES = st.sampled_from(["\0", "\x1b]0;title\a", COLOR, "\r", "\r\n", "\x9b", "\u202e", "é", '{"error": "', "a: "])
TEXTS = st.lists(PIECES | st.text(max_size=9) | st.sampled_from(["\ud800", "\udcff"]), max_size=9).map("".join)
"""Texts as Python may have them. A file name that is no UTF-8 has halves of characters."""
BYTES = st.binary(max_size=99) | st.text(max_size=50).map(lambda text: text.encode("utf-16-le"))
FROM_RANK = BYTES.map(lambda content: content.decode(errors="replace")) | TEXTS.map(
    lambda text: text.encode(errors="replace").decode()
)
"""Texts as the kubelet writes them into the status of a pod."""
JSON = st.recursive(
    st.none() | st.floats() | st.integers() | FROM_RANK | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=9,
)


def is_printable(text: str) -> bool:
    return REFUSED_BY_A_TERMINAL.search(text) is None


def require_storable(value: Any) -> None:
    """Fail if PostgreSQL or Airflow's own processes cannot have the value."""
    text = json.dumps(value, allow_nan=False)
    assert "\\u0000" not in text.replace("\\\\", "")
    texts = [value]
    for each in texts:
        if isinstance(each, dict):
            texts += [*each, *each.values()]
        elif isinstance(each, list):
            texts += each
        elif isinstance(each, str):
            assert not REFUSED_BY_A_DATABASE.search(each)
        elif isinstance(each, int):
            assert -(2**63) <= each < 2**64


def require_printable(value: Any) -> None:
    require_storable(value)
    assert is_printable(json.dumps(value, ensure_ascii=False).replace("\n", ""))
    texts = re.findall(r"\\u00[0189][0-9a-f]", json.dumps(value).replace("\\\\", ""))
    assert not texts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("cannot open >\0<", r"cannot open >\x00<", id="U+0000"),
        pytest.param("caf\udce9.txt", r"caf\udce9.txt", id="half of a character"),
        pytest.param("\x1b[31mred\x1b[0m \x1b]0;title\a", r"red \x1b]0;title\x07", id="sequences of a terminal"),
        pytest.param("Name: \u202etxt.exe", r"Name: \u202etxt.exe", id="direction"),
        pytest.param("1\t2\r\n3\n", "1\t2\n3\n", id="white space"),
    ],
)
def test_text_says_what_was_replaced(text: str, shown: str) -> None:
    assert to_printable(text) == shown
    assert to_printable(shown) == shown


@given(FROM_RANK, TEXTS)
def test_any_last_output_of_a_rank_becomes_an_event_and_an_error(message: str, text: str) -> None:
    outcome = outcome_of(pod("a").on("n").rank(0).failed(3, message=message).view())
    fields = {"message": text, "remedy": text, "notes": (text,), "image": text, "queue": text, "placement": text}
    event = build_event(REF, Status.FAILED, Phase.FAILED, outcomes=[outcome], **fields, streamed={text: text})

    payload = mask_event(event).to_payload()

    require_printable(payload)
    assert is_printable(str(error_from_event(GangEvent.from_payload(payload), text)))
    if message.strip() == "\0":
        assert payload["ranks"][0]["message"] == message.replace("\0", r"\x00")


@given(FROM_RANK | JSON.map(json.dumps))
def test_any_result_is_stored_or_refused_once_with_its_rank(written: str) -> None:
    outcome = outcome_of(pod("a").on("n").rank(0).succeeded(message=written).view())
    require_storable(list(partial_results([outcome]).values()))
    read = partial(task_result, [outcome], parse_indexes("0"), Results.RANK0, REF)
    if not outcome.result_problem:
        require_storable(read())
        return
    with pytest.raises(ResultRefused, match="Rank 0 of gang team/train-0") as raised:
        read()
    assert not raised.value.retryable
    require_printable(str(raised.value))


@given(JSON.map(lambda value: json.dumps(value).encode()) | BYTES, TEXTS, JSON)
def test_any_progress_of_a_rank_is_told_by_its_supervisor(content: bytes, name: str, value: Any) -> None:
    known = json.dumps({"step": value, "total": 9, "metrics": {name: 1, "loss": value}}).encode()
    for each in (content, known):
        progress = supervisor.read_progress(each, 0.0)
        line = supervisor.encode_line({"event": "progress", "message": name, "at": 1, **progress, "rank": 0})
        found = parse_line(b'unfinished gangjobs-supervisor {"event": ' + line.rstrip(b"\n"))
        assert found is not None or not to_printable_line(name).split()
        report = SupervisorReport() if found is None else SupervisorReport().with_line(found[1])
        require_printable(msgspec.to_builtins(report))
        require_printable(build_event(REF, Status.FAILED, Phase.FAILED, progress=report.progress).to_payload())


@given(st.lists(BYTES | TEXTS.map(lambda text: text.encode(errors="replace")), max_size=4))
def test_any_output_of_a_rank_becomes_lines_of_a_log(chunks: list[bytes]) -> None:
    lines: list[str] = []
    writer, parser = LineWriter("rank 0", lines.extend), LogParser()
    for chunk in chunks:
        writer.write(parser.feed(chunk))
    writer.write(parser.end())
    writer.note(chunks[0].decode(errors="replace") if chunks else "")
    for line in lines:
        require_printable(re.sub(r"\x1b\[[0-9;]*m|\r", "", line))


@given(TEXTS)
def test_any_text_of_a_cluster_becomes_a_row_a_page_or_an_error(text: str) -> None:
    table = Table([Column("NAME", lambda row: row)], [text], wide=False)
    status = ApiError(422, request="POST jobs", message=text)
    for shown in (*table.lines(), clean(text), clean_lines(text), to_line(text), str(status)):
        assert is_printable(shown)

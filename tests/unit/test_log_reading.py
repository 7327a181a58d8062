"""How a log is read: its lines in any chunks, what a broken connection costs, and how much of its end is kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import BadRequest, Forbidden
from airflow_provider_gangjobs.cluster.http.log_reader import (
    PART_BYTES_MAX,
    PART_BYTES_MIN,
    LastBytes,
    LogCursor,
    LogParser,
    LogPart,
    LogPosition,
    LogTail,
    read_time,
    refuse_message,
    tail_of,
)
from airflow_provider_gangjobs.cluster.http.transport import LogQuery
from airflow_provider_gangjobs.tracking.logs.last_lines import LogSource
from airflow_provider_gangjobs.tracking.logs.whole_logs import FOLLOW_IDLE_TIMEOUT_S, read_log_chunks
from tests.examples import examples
from tests.provider.virtual_time import elapsed, in_virtual_time
from tests.unit.fault_server import Connection, FaultServer, Request, status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


# -- A log that arrives in any chunks is split into lines, and a log that is resumed has each line once --------------

START = datetime(2026, 1, 1, tzinfo=UTC)
LINES = st.lists(st.binary(max_size=8).map(lambda raw: raw.replace(b"\n", b"-")), max_size=20)


def parse(raw: bytes, cuts: Sequence[int] = (), **options: int) -> list[LogPart]:
    parser = LogParser(**options)
    bounds = [0, *sorted(cuts), len(raw)]
    parts = [part for a, b in itertools.pairwise(bounds) for part in parser.feed(raw[a:b])]
    return [*parts, *parser.end()]


def text_of(parts: Sequence[LogPart]) -> bytes:
    return b"".join(part.text + b"\n" * part.ends for part in parts)


@given(LINES, st.data())
def test_lines_do_not_depend_on_chunk_boundaries(lines: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(line + b"\n" for line in lines)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=6))
    assert [part.text for part in parse(raw, cuts)] == lines


def test_long_line_is_returned_in_pieces() -> None:
    parts = parse(b"x" * 25 + b"\ny\nz", bytes_max=10)
    assert [(len(part.text), part.begins, part.ends) for part in parts] == [
        (10, True, False),
        (10, False, False),
        (5, False, True),
        (1, True, True),
        (1, True, False),
    ]


def test_long_line_is_not_cut_within_a_character() -> None:
    parts = parse("é€𝄞".encode() * 10, bytes_max=11)
    assert "".join(part.text.decode() for part in parts) == "é€𝄞" * 10


# -- times -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("2026-01-01T00:00:01.123456789Z", 1.123456789),
        ("2026-01-01T02:00:01.123456789+02:00", 1.123456789),
        ("2026-01-01T00:00:01Z", 1),
        ("2025-12-31T19:00:01.5-05:00", 1.5),
    ],
)
def test_time_of_a_line_does_not_depend_on_the_zone(stamp: str, seconds: float) -> None:
    time_ns = read_time(stamp.encode())
    assert time_ns - int(START.timestamp()) * 10**9 == round(seconds * 10**9)
    (part,) = LogParser(timestamps=True).feed(f"{stamp} a b\n".encode())
    assert part == LogPart(b"a b", time_ns)


@pytest.mark.parametrize("line", [b"no time here", b"2026-13-01T00:00:01Z x", b"2026-01-01T00:00:01 x"])
def test_end_of_a_line_without_a_time_is_kept(line: bytes) -> None:
    (part,) = LogParser(timestamps=True).feed(line + b"\n")
    assert part == LogPart(line)


@pytest.mark.parametrize("text", ["", "1,2,3", "a,1,2,3,t", "1,2,3,4", "1,2", "2026-01-01T00:00:01Z,1,x"])
def test_unreadable_position_means_the_beginning(text: str) -> None:
    assert LogPosition.parse(text) is None


@pytest.mark.parametrize(("pieces", "end"), [(0, ""), (2, ",2")])
def test_position_survives_its_text(pieces: int, end: str) -> None:
    position = LogPosition(read_time(b"2026-01-01T00:00:01.023456789+02:00"), 3, 99, pieces)
    assert str(position) == f"2025-12-31T22:00:01.023456789Z,3,99{end}"
    assert LogPosition.parse(str(position)) == position


# -- resumption --------------------------------------------------------------------------------------------


Record = tuple[int, bool, bytes]
"""Time in nanoseconds after `START`, whether the record ends its line, and text."""
START_NS = int(START.timestamp()) * 10**9


def served(records: Sequence[Record], since_s: int | None) -> bytes:
    """Return the log as a kubelet serves it: `sinceTime` selects records, and a line has the time of its first one."""
    out = bytearray()
    begins = True
    for at, ends, text in records:
        if since_s is None or START_NS + at >= since_s * 10**9:
            moment = f"{START + timedelta(seconds=at // 10**9):%Y-%m-%dT%H:%M:%S}.{at % 10**9:09d}Z "
            out += moment.encode() * begins + text + b"\n" * ends
        begins = ends
    return bytes(out)


@st.composite
def log_files(draw: st.DrawFn) -> list[Record]:
    """Records of one file, each some nanoseconds later than the one before, or with the same time."""
    steps = (0, 0, 1, 2, 10**6, 4 * 10**8, 10**9, 5 * 10**9)
    count = draw(st.integers(1, 30))
    at, records = 10**9, []
    for number in range(count):
        at += draw(st.sampled_from(steps))
        ends = number == count - 1 or draw(st.booleans())
        records.append((at, ends, b"%d" % (number % 3) * (1 + number % 7)))
    return records


def read_some(records: list[Record], text: str, cut: int | None, bytes_max: int) -> tuple[bytes, str]:
    """Read one response, which may break anywhere. Return the parts of it that are new, and the position."""
    cursor = LogCursor(LogPosition.parse(text))
    parser = LogParser(timestamps=True, bytes_max=bytes_max)
    response = served(records, cursor.begin())[:cut]
    got = bytearray()
    for part in cursor.new_parts(parser.feed(response)):
        got += part.text + b"\n" * part.ends
        cursor.delivered(part)
    assert not cursor.is_other_file
    return bytes(got), str(cursor.position or "")


@settings(max_examples=examples(300))
@given(log_files(), st.lists(st.integers(0, 800), max_size=4), st.sampled_from([40, 1000]))
def test_log_that_is_resumed_anywhere_has_each_line_once(
    records: list[Record], cuts: Sequence[int], bytes_max: int
) -> None:
    """A line that was returned in pieces goes on with the next piece."""
    got, text = b"", ""
    for cut in (*cuts, None):
        parts, text = read_some(records, text, cut, bytes_max)
        got += parts
        position = LogPosition.parse(text)
        assert (position.total if position else 0) == len(got)
    assert got == text_of(parse(served(records, None), timestamps=True))


SECOND_STREAMS = {
    "late lines, which do not hide newer ones": ((10, 12, 11, 13, 12, 14), 3, 0, "13 12 14", False),
    "a late line before which the stream broke, which is lost": ((10, 12, 11, 13), 2, 0, "13", False),
    "a rotated file, which is read whole": (range(0, 100, 10), 5, 7, "70 80 90", True),
}


@pytest.mark.parametrize(
    ("times", "read", "begins", "expected", "is_other_file"), SECOND_STREAMS.values(), ids=SECOND_STREAMS
)
def test_second_stream_repeats_no_line(
    times: Sequence[int], read: int, begins: int, expected: str, is_other_file: bool
) -> None:
    """Lines of stdout and stderr may be stored out of order. Each line is its time, in tenths of a second."""
    records = [(at * 10**8, True, b"%d" % at) for at in times]
    cursor = LogCursor()
    cursor.begin()
    for part in cursor.new_parts(LogParser(timestamps=True).feed(served(records[:read], None))):
        cursor.delivered(part)
    parts = cursor.new_parts(LogParser(timestamps=True).feed(served(records[begins:], cursor.begin())))
    assert (b" ".join(part.text for part in parts).decode(), cursor.is_other_file) == (expected, is_other_file)


# -- A log that is followed over broken connections has each line once, and says where lines may be missing ----------

SOURCE = LogSource("ns", "train-0-x", "main", 0)
BEGINNING = b"2026-01-01T00:00:01.5Z a\n2026-01-01T00:00:01.5Z b\n2026-01-01T00:00:02.1Z c\n"
LONG_LINE = b"2026-01-01T00:00:01Z " + b"x" * (3 * PART_BYTES_MAX) + b"\n2026-01-01T00:00:02Z y\n"
BROKEN, SILENT, ENDED = "broken", "silent", "ended"


class Node:
    """A server that answers each request with the next text, and then does what stands beside it."""

    def __init__(self, *answers: tuple[bytes, str]) -> None:
        self._answers = list(answers)
        self.server = FaultServer(self._handle)

    @property
    def since(self) -> list[str | None]:
        return [request.query.get("sinceTime") for request in self.server.requests]

    async def _handle(self, request: Request, connection: Connection) -> None:
        text, then = self._answers.pop(0)
        if then.isdecimal():
            await connection.reply(int(then), status(int(then), "Forbidden"))
            return
        assert request.query["follow"] == request.query["timestamps"] == "true"
        connection.begin_stream()
        await connection.chunk(text)
        if then == SILENT:
            await connection.silence()
        elif then == ENDED:
            await connection.end_stream()
        else:
            connection.reset()


async def read(node: Node) -> tuple[bytes, int]:
    """Return the text of the log, and how often lines may be missing."""
    others: list[None] = []
    clock = Clock(monotonic=asyncio.get_running_loop().time)
    async with node.server as server, Client(server.config, clock=clock) as client:
        chunks = read_log_chunks(client, SOURCE, LogQuery(follow=True), on_other_file=lambda: others.append(None))
        return b"".join([chunk async for chunk in chunks]), len(others)


LOGS: dict[str, tuple[Sequence[tuple[bytes, str]], bytes, int]] = {
    "one connection": ([(BEGINNING, ENDED)], b"a\nb\nc\n", 0),
    "the last line has no end": ([(BEGINNING[:-1], ENDED)], b"a\nb\nc", 0),
    "broken between lines": (
        [(BEGINNING[:50], BROKEN), (BEGINNING, ENDED)],
        b"a\nb\nc\n",
        0,
    ),
    "broken within a line": ([(BEGINNING[:60], BROKEN), (BEGINNING, ENDED)], b"a\nb\nc\n", 0),
    "broken many times": ([(BEGINNING[:25], BROKEN)] * 12 + [(BEGINNING, ENDED)], b"a\nb\nc\n", 0),
    "broken within a line that is returned in pieces": (
        [(LONG_LINE[:-40], BROKEN), (LONG_LINE[:100_000], BROKEN), (LONG_LINE, ENDED)],
        b"x" * (3 * PART_BYTES_MAX) + b"\ny\n",
        0,
    ),
    "rotated, and longer than before": (
        [(BEGINNING, BROKEN), (b"2026-01-01T00:00:07Z x\n" * 30, ENDED)],
        b"a\nb\nc\n" + b"x\n" * 30,
        1,
    ),
    "rotated, and shorter than before": (
        [(BEGINNING, BROKEN), (b"2026-01-01T00:00:07Z x\n", ENDED)],
        b"a\nb\nc\nx\n",
        1,
    ),
}


@pytest.mark.parametrize(("answers", "text", "others"), LOGS.values(), ids=LOGS)
@in_virtual_time
async def test_each_line_is_read_once_and_a_rotation_is_noticed(
    answers: Sequence[tuple[bytes, str]], text: bytes, others: int
) -> None:
    assert await read(Node(*answers)) == (text, others)


@in_virtual_time
async def test_silent_connection_is_replaced_from_the_second_of_the_last_line() -> None:
    node = Node((BEGINNING, SILENT), (BEGINNING, ENDED))
    assert await read(node) == (b"a\nb\nc\n", 0)
    assert node.since == [None, "2026-01-01T00:00:02Z"]
    assert elapsed() > FOLLOW_IDLE_TIMEOUT_S


@in_virtual_time
async def test_refused_log_is_not_requested_again() -> None:
    with pytest.raises(Forbidden):
        await read(Node((b"", "403")))


# -- The end of a log is kept whole in bounded memory ----------------------------------------------------------------


def tail(*chunks: bytes, bytes_max: int, tail_lines: int = 1000) -> LogTail:
    end = LastBytes(bytes_max)
    for chunk in chunks:
        end.feed(chunk)
    return tail_of(end, tail_lines)


CUTS = {
    "empty": (b"", 10, LogTail("")),
    "fits": (b"one\ntwo\n", 8, LogTail("one\ntwo\n")),
    "no newline at the end": (b"one\ntwo", 8, LogTail("one\ntwo")),
    "within a line": (b"one\ntwo\nthree\n", 8, LogTail("three\n", is_cut=True)),
    "between two lines": (b"one\ntwo\nthree\n", 10, LogTail("two\nthree\n", is_cut=True)),
    "long last line": (b"one\n" + b"word " * 20 + b"end\n", 10, LogTail("... word end\n", is_cut=True)),
    "within a character": ("ä".encode() * 20, 9, LogTail("...ääää", is_cut=True)),
    "not UTF-8": (b"\xff\xfe\n\xe4\n", 10, LogTail("��\n�\n")),
    "binary": (b"\x80" * 20, 10, LogTail("..." + "�" * 10, is_cut=True)),
}


@pytest.mark.parametrize(("log", "bytes_max", "expected"), CUTS.values(), ids=CUTS)
def test_end_is_cut_at_a_line_if_there_is_one(log: bytes, bytes_max: int, expected: LogTail) -> None:
    assert tail(log, bytes_max=bytes_max) == expected


@given(st.lists(st.text(alphabet="aä \n", max_size=40).map(str.encode), max_size=20), st.integers(8, 60))
def test_chunk_sizes_do_not_matter_and_lost_bytes_are_said(chunks: list[bytes], bytes_max: int) -> None:
    log = b"".join(chunks)
    found = tail(*chunks, bytes_max=bytes_max)
    assert found == tail(log, bytes_max=bytes_max)
    assert log.endswith(found.text.removeprefix("...").encode())
    assert found.is_cut == (found.text.encode() != log)


def test_memory_is_bounded() -> None:
    end = LastBytes(1000)
    for _ in range(1000):
        end.feed(b"x" * 999 + b"\n")
        assert len(end._kept) <= 3001


@pytest.mark.parametrize(
    ("log", "is_cut"),
    [(b"a\n" * 4, False), (b"a\n" * 5, True), (b"a\n" * 3 + b"x" * PART_BYTES_MIN, True)],
    ids=["fewer lines than asked for", "as many", "a line that counts as several"],
)
def test_server_that_sent_all_the_lines_it_was_asked_for_may_have_more(log: bytes, is_cut: bool) -> None:
    assert tail(log, bytes_max=100_000, tail_lines=5).is_cut is is_cut


# -- A kubelet's message that it has no log is an error, and every other log passes unchanged ------------------------

MESSAGE = b"unable to retrieve container logs for containerd://5edc26805ffc0ca9"
LOGS_THAT_PASS = {
    "empty": b"",
    "a line": b"one\n",
    "no line end": b"unable to read",
    "a beginning of the message": MESSAGE[:20],
    "a program that prints the message": MESSAGE + b"\n",
    "lines after the message": MESSAGE + b"\nmore\n",
    "a long line that begins like the message": MESSAGE + b"x" * 1000,
}
SIZES = (1, 7, 10_000)


async def in_chunks(log: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(log), size):
        yield log[at : at + size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("log", LOGS_THAT_PASS.values(), ids=LOGS_THAT_PASS)
async def test_log_passes_unchanged(log: bytes, size: int) -> None:
    assert b"".join([chunk async for chunk in refuse_message(in_chunks(log, size), "GET /log")]) == log


@pytest.mark.parametrize("size", SIZES)
async def test_message_is_an_error(size: int) -> None:
    with pytest.raises(BadRequest, match="GET /log: 400: the kubelet has removed the log: unable to retrieve"):
        [chunk async for chunk in refuse_message(in_chunks(MESSAGE, size), "GET /log")]


async def test_first_line_of_a_log_is_not_delayed() -> None:
    passed = refuse_message(in_chunks(b"one\ntwo\n", 4), "GET /log")
    assert await anext(passed) == b"one\n"
    await passed.aclose()

"""A log that arrives in any chunks is split into lines, and a log that is resumed has each line once.

A resumed reader begins at the time of the last line that was read, and skips the earlier lines, and as many lines of
that time as were read.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.http.log_reader import LogCursor, LogParser, LogPart, LogPosition, read_time
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def test_line_that_is_stored_late_is_not_repeated_and_hides_no_newer_line() -> None:
    """Lines of stdout and stderr may be out of order."""
    records = [(at * 10**8, True, b"%d" % at) for at in (10, 12, 11, 13, 12, 14)]
    cursor = LogCursor()
    cursor.begin()
    for part in cursor.new_parts(LogParser(timestamps=True).feed(served(records[:3], None))):
        cursor.delivered(part)
    parts = cursor.new_parts(LogParser(timestamps=True).feed(served(records, cursor.begin())))
    assert [part.text for part in parts] == [b"13", b"12", b"14"]


def test_line_that_is_stored_late_is_lost_if_the_stream_broke_before_it() -> None:
    """The limit of the rule."""
    records = [(at * 10**8, True, b"%d" % at) for at in (10, 12, 11, 13)]
    cursor = LogCursor()
    cursor.begin()
    for part in cursor.new_parts(LogParser(timestamps=True).feed(served(records[:2], None))):
        cursor.delivered(part)
    parts = cursor.new_parts(LogParser(timestamps=True).feed(served(records, cursor.begin())))
    assert [part.text for part in parts] == [b"13"]


def test_position_of_the_earlier_form_means_the_time_of_its_last_line() -> None:
    records = [(at * 10**8, True, b"%d" % at) for at in (10, 12, 22)]
    second = START_NS // 10**9 + 1
    position = LogPosition.parse(f"{second},2,0,50,{START:%Y-%m-%dT%H:%M}:01.200000000Z")
    assert position is not None
    assert position.total == 50
    cursor = LogCursor(position)
    parts = cursor.new_parts(LogParser(timestamps=True).feed(served(records, cursor.begin())))
    assert [part.text for part in parts] == [b"22"]
    assert not cursor.is_other_file


def test_rotated_file_is_read_whole_and_noticed() -> None:
    records = [(at * 10**9, True, b"%d" % at) for at in range(10)]
    cursor = LogCursor()
    cursor.begin()
    for part in cursor.new_parts(LogParser(timestamps=True).feed(served(records[:5], None))):
        cursor.delivered(part)
    parts = cursor.new_parts(LogParser(timestamps=True).feed(served(records[7:], cursor.begin())))
    assert [part.text for part in parts] == [b"7", b"8", b"9"]
    assert cursor.is_other_file

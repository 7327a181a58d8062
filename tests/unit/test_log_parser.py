"""A log that arrives in any chunks is split into lines, and a log that is resumed has each line once."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.http.log_reader import LogCursor, LogParser, LogPart, LogPosition, unix_second
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
    ("stamp", "second"),
    [
        ("2026-01-01T00:00:01.123456789Z", 1),
        ("2026-01-01T02:00:01.123456789+02:00", 1),
        ("2026-01-01T00:00:01Z", 1),
        ("2025-12-31T19:00:01.5-05:00", 1),
    ],
)
def test_second_of_a_line_does_not_depend_on_the_zone(stamp: str, second: int) -> None:
    assert unix_second(stamp) - int(START.timestamp()) == second
    (part,) = LogParser(timestamps=True).feed(f"{stamp} a b\n".encode())
    assert part == LogPart(b"a b", stamp)


def test_end_of_a_line_without_a_time_is_kept() -> None:
    (part,) = LogParser(timestamps=True).feed(b"no time here\n")
    assert part == LogPart(b"no time here")


@pytest.mark.parametrize("text", ["", "1,2,3", "a,1,2,3,t", "1,2,3,4"])
def test_unreadable_position_means_the_beginning(text: str) -> None:
    assert LogPosition.parse(text) is None


def test_position_survives_its_text() -> None:
    position = LogPosition(5, 7, "2026-01-01T00:00:01.123456789+02:00", 3, 99)
    assert LogPosition.parse(str(position)) == position


# -- resumption --------------------------------------------------------------------------------------------


Record = tuple[float, bool, bytes]
"""Time in seconds, whether the record ends its line, and text."""


def served(records: Sequence[Record], since_s: int | None) -> bytes:
    """Return the log as a kubelet serves it: `sinceTime` selects records, and a line has the time of its first one."""
    out = bytearray()
    begins = True
    for at, ends, text in records:
        moment = START + timedelta(seconds=at)
        if since_s is None or moment.timestamp() >= since_s:
            out += f"{moment:%Y-%m-%dT%H:%M:%S.%f}000Z ".encode() * begins + text + b"\n" * ends
        begins = ends
    return bytes(out)


@st.composite
def log_files(draw: st.DrawFn) -> list[Record]:
    """Records of two streams: times repeat, and are up to a second out of order."""
    count = draw(st.integers(1, 30))
    steps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.4, 1.0, 5.0]), min_size=count, max_size=count))
    late = draw(st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.001, 0.9]), min_size=count, max_size=count))
    ends = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    at, records = 1.0, []
    for number, (step, back, end) in enumerate(zip(steps, late, ends, strict=True)):
        at += step
        time = at - back if not records or records[-1][1] else max(records[-1][0], at)
        records.append((time, end or number == count - 1, b"%d" % (number % 3) * (1 + number % 7)))
    return records


@settings(max_examples=examples(300))
@given(log_files(), st.data())
def test_log_that_is_resumed_anywhere_has_each_byte_once(records: list[Record], data: st.DataObject) -> None:
    whole = text_of(parse(served(records, None), timestamps=True))
    got = bytearray()
    text = ""
    for is_last in [False] * data.draw(st.integers(0, 4)) + [True]:
        cursor = LogCursor(LogPosition.parse(text))
        parser = LogParser(timestamps=True, bytes_max=data.draw(st.sampled_from([40, 1000])))
        response = served(records, cursor.begin())
        if not is_last:
            response = response[: data.draw(st.integers(0, len(response)))]
        for part in cursor.new_parts(parser.feed(response)):
            got += part.text + b"\n" * part.ends
            cursor.delivered(part)
        text = str(cursor.position) if cursor.position else ""
        assert not text or cursor.position.total == len(got)  # type: ignore[union-attr]
        assert not cursor.is_other_file
    assert bytes(got) == whole


def test_rotated_file_is_read_whole_and_noticed() -> None:
    records = [(float(at), True, b"%d" % at) for at in range(10)]
    cursor = LogCursor()
    cursor.begin()
    for part in cursor.new_parts(LogParser(timestamps=True).feed(served(records[:5], None))):
        cursor.delivered(part)
    parts = cursor.new_parts(LogParser(timestamps=True).feed(served(records[7:], cursor.begin())))
    assert [part.text for part in parts] == [b"7", b"8", b"9"]
    assert cursor.is_other_file

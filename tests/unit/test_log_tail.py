"""The end of a log is kept whole in bounded memory, and what is missing is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.http.log_reader import PART_BYTES_MIN, LogTail, TailBuffer


def tail_of(*chunks: bytes, bytes_max: int, tail_lines: int | None = None) -> LogTail:
    buffer = TailBuffer(bytes_max)
    for chunk in chunks:
        buffer.feed(chunk)
    return buffer.tail(tail_lines=tail_lines)


CUTS = {
    "empty": (b"", 10, LogTail("")),
    "fits": (b"one\ntwo\n", 8, LogTail("one\ntwo\n", 2)),
    "no newline at the end": (b"one\ntwo", 8, LogTail("one\ntwo", 2)),
    "within a line": (b"one\ntwo\nthree\n", 8, LogTail("three\n", 3, 2)),
    "between two lines": (b"one\ntwo\nthree\n", 10, LogTail("two\nthree\n", 3, 1)),
    "long line before the last": (b"x" * 99 + b"\nend\n", 20, LogTail("end\n", 2, 1)),
    "long last line": (b"one\n" + b"word " * 20 + b"end\n", 10, LogTail("...word end\n", 2, 1, 95)),
    "long line without a newline": (b"x" * 99, 10, LogTail("...xxxxxxxxxx", 1, 0, 89)),
    "within a character": ("ä".encode() * 20, 9, LogTail("...ääää", 1, 0, 32)),
    "not UTF-8": (b"\xff\xfe\n\xe4\n", 10, LogTail("��\n�\n", 2)),
    "binary": (b"\x80" * 20, 10, LogTail("..." + "�" * 10, 1, 0, 10)),
}


@pytest.mark.parametrize(("log", "bytes_max", "expected"), CUTS.values(), ids=CUTS)
def test_end_is_cut_at_a_line_if_there_is_one(log: bytes, bytes_max: int, expected: LogTail) -> None:
    assert tail_of(log, bytes_max=bytes_max) == expected


@given(st.lists(st.text(alphabet="aä \n", max_size=40).map(str.encode), max_size=20), st.integers(8, 60))
def test_chunk_sizes_do_not_matter_and_lost_lines_are_counted(chunks: list[bytes], bytes_max: int) -> None:
    log = b"".join(chunks)
    tail = tail_of(*chunks, bytes_max=bytes_max)
    assert tail == tail_of(log, bytes_max=bytes_max)
    kept = tail.text.removeprefix("...") if tail.bytes_left_out else tail.text
    assert log.endswith(kept.encode())
    missing = log[: len(log) - len(kept.encode())]
    assert missing.count(b"\n") == tail.lines_left_out
    assert len(missing.rpartition(b"\n")[2]) == tail.bytes_left_out


def test_memory_is_bounded() -> None:
    buffer = TailBuffer(1000)
    for _ in range(1000):
        buffer.feed(b"x" * 999 + b"\n")
        assert len(buffer._end._kept) <= 3001
    assert buffer.tail().lines_left_out == 999


@pytest.mark.parametrize(
    ("log", "may_have_more"),
    [(b"a\n" * 4, False), (b"a\n" * 5, True), (b"a\n" * 3 + b"x" * PART_BYTES_MIN, True)],
    ids=["fewer lines than asked for", "as many", "a line that counts as several"],
)
def test_server_that_sent_all_the_lines_it_was_asked_for_may_have_more(log: bytes, may_have_more: bool) -> None:
    assert tail_of(log, bytes_max=100_000, tail_lines=5).may_have_more is may_have_more

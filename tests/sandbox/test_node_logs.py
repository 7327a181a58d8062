"""Log options: the last lines, lines since a time, timestamps, byte limits, and following."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from gangjobs_sandbox.node.logs import LogOptions, last_text, read_log
from gangjobs_sandbox.node.shim.output import Output
from tests.timeouts import until

if TYPE_CHECKING:
    from pathlib import Path

LINES = [
    b"2026-01-01T00:00:01.000000000Z stdout F one",
    b"2026-01-01T00:00:02.000000000Z stderr P tw",
    b"2026-01-01T00:00:02.500000000Z stderr F o",
    b"2026-01-01T00:00:03.000000000Z stdout F ",
    b"2026-01-01T00:00:04.000000000Z stdout F four",
]


def written(folder: Path, records: list[bytes] = LINES) -> str:
    (folder / "log").write_bytes(b"".join(record + b"\n" for record in records))
    return str(folder / "log")


async def read(path: str, **options: Any) -> str:
    return b"".join([piece async for piece in read_log(path, LogOptions(**options), ended=lambda: True)]).decode()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, "one\ntwo\n\nfour\n", id="all, parts joined"),
        pytest.param({"tail_lines": 2}, "\nfour\n", id="last two lines"),
        pytest.param({"tail_lines": 3}, "o\n\nfour\n", id="each part of a line counts, as under a kubelet"),
        pytest.param({"tail_lines": 100}, "one\ntwo\n\nfour\n", id="more than there are"),
        pytest.param({"tail_lines": 0}, "", id="none"),
        pytest.param({"limit_bytes": 5}, "one\nt", id="cut"),
        pytest.param({"tail_lines": 1, "limit_bytes": 2}, "fo", id="first bytes of the last lines"),
        pytest.param({"since": datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)}, "\nfour\n", id="since a time"),
        pytest.param(
            {"timestamps": True, "tail_lines": 4},
            "2026-01-01T00:00:02.000000000Z two\n"
            "2026-01-01T00:00:03.000000000Z \n"
            "2026-01-01T00:00:04.000000000Z four\n",
            id="times, once a line",
        ),
    ],
)
async def test_log_options_choose_lines(options: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert await read(written(tmp_path), **options) == expected


async def test_tail_of_a_large_log_is_found_from_its_end(tmp_path: Path) -> None:
    records = [b"2026-01-01T00:00:01.000000000Z stdout F line %d" % number for number in range(20_000)]
    assert await read(written(tmp_path, records), tail_lines=2) == "line 19998\nline 19999\n"


async def test_absent_log_is_empty(tmp_path: Path) -> None:
    assert await read(str(tmp_path / "log")) == ""


async def test_following_ends_with_the_container(tmp_path: Path) -> None:
    path, ended, pieces = str(tmp_path / "log"), asyncio.Event(), []

    async def follow() -> None:
        async for piece in read_log(path, LogOptions(follow=True), ended=ended.is_set):
            pieces.append(piece)  # noqa: PERF401 - seen while it goes on

    following = asyncio.create_task(follow())
    output = Output(path, bytes_max=10**6)
    output.feed("stdout", b"one\ntw")
    await until(lambda: b"".join(pieces) == b"one\n")
    output.feed("stdout", b"o\n")
    output.close()
    ended.set()
    await following
    assert b"".join(pieces) == b"one\ntwo\n"


async def test_following_continues_after_rotation(tmp_path: Path) -> None:
    path, ended, pieces = str(tmp_path / "log"), asyncio.Event(), []

    async def follow() -> None:
        async for piece in read_log(path, LogOptions(follow=True), ended=ended.is_set):
            pieces.append(piece)  # noqa: PERF401 - seen while it goes on

    following = asyncio.create_task(follow())
    output = Output(path, bytes_max=200)
    for number in range(12):
        output.feed("stdout", b"line %d\n" % number)
        await until(lambda number=number: b"line %d\n" % number in b"".join(pieces))
    output.close()
    ended.set()
    await following
    assert os.path.exists(f"{path}.1")  # noqa: ASYNC240
    assert b"".join(pieces).decode().split("\n")[:-1] == [f"line {number}" for number in range(12)]


def test_end_of_log_for_a_termination_message(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert last_text(path, lines_max=80, bytes_max=2048) == "one\ntwo\n\nfour\n"
    assert last_text(path, lines_max=80, bytes_max=5) == "four\n"
    assert last_text(path, lines_max=1, bytes_max=2048) == "four\n"
    assert last_text(str(tmp_path / "no"), lines_max=1, bytes_max=9) == ""

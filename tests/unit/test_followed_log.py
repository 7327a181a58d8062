"""A log that is followed over broken connections has each line once, and says where lines may be missing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import Forbidden
from airflow_provider_gangjobs.cluster.http.log_reader import PART_BYTES_MAX
from airflow_provider_gangjobs.cluster.http.transport import LogQuery
from airflow_provider_gangjobs.tracking.logs.last_lines import LogSource
from airflow_provider_gangjobs.tracking.logs.whole_logs import FOLLOW_IDLE_TIMEOUT_S, read_log_chunks
from tests.provider.virtual_time import elapsed, in_virtual_time
from tests.unit.fault_server import Connection, FaultServer, Request, status

if TYPE_CHECKING:
    from collections.abc import Sequence

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

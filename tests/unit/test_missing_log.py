"""A kubelet's message that it has no log is an error, and every other log passes unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.errors import BadRequest
from airflow_provider_gangjobs.cluster.http.log_reader import refuse_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MESSAGE = b"unable to retrieve container logs for containerd://5edc26805ffc0ca9"
LOGS = {
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
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
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

"""Cuts a stream of byte chunks at line ends, with a limit on how long a line may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator


class LineTooLongError(ValueError):
    """A line exceeds the limit; the stream cannot be what it is taken for."""


async def whole_lines(chunks: AsyncIterator[bytes], *, bytes_max: int) -> AsyncGenerator[bytes, None]:
    """The same bytes, cut so that each part is one or more whole lines, as many as have come.

    For readers that take many lines at once. An unfinished last line is given too.

    Raises:
        LineTooLongError: one exceeds `bytes_max` and has no end yet.
    """
    rest = bytearray()
    async for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if not end:
            rest += chunk
        else:
            lines = chunk if end == len(chunk) else chunk[:end]
            yield bytes(rest) + lines if rest else lines
            rest = bytearray(chunk[end:])
        if len(rest) > bytes_max:
            raise LineTooLongError(f"a line of more than {bytes_max} bytes")
    if rest:
        yield bytes(rest)


async def split_lines(chunks: AsyncIterator[bytes], *, bytes_max: int) -> AsyncGenerator[bytes, None]:
    """The lines one by one, without their ends; an unfinished last one is given too.

    One that exceeds `bytes_max` and has no end yet comes in parts.
    """
    rest = bytearray()
    async for chunk in chunks:
        head, *lines = chunk.split(b"\n")
        rest += head
        if lines:
            yield bytes(rest)
            for line in lines[:-1]:
                yield line
            rest = bytearray(lines[-1])
        if len(rest) > bytes_max:
            yield bytes(rest)
            rest.clear()
    if rest:
        yield bytes(rest)

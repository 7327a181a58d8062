"""Cuts a stream of byte chunks into lines, with a limit on how long one may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator


class LineTooLongError(ValueError):
    """A line exceeds the limit; the stream cannot be what it is taken for."""


async def split_lines(
    chunks: AsyncIterator[bytes], *, bytes_max: int, cut_long: bool = False
) -> AsyncGenerator[bytes, None]:
    """The lines without their ends; an unfinished last one is given too.

    Raises:
        LineTooLongError: one exceeds `bytes_max` and has no end yet; with `cut_long` it comes in parts instead.
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
            if not cut_long:
                raise LineTooLongError(f"a line of more than {bytes_max} bytes")
            yield bytes(rest)
            rest.clear()
    if rest:
        yield bytes(rest)

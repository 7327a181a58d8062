"""Splits a stream of byte chunks at line ends, with a limit on the length of a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator


class LineTooLongError(ValueError):
    """A line exceeds the limit, so the stream cannot have the expected content."""


async def whole_lines(chunks: AsyncIterator[bytes], *, bytes_max: int) -> AsyncGenerator[bytes, None]:
    """Yield the same bytes in parts that each hold one or more whole lines, as many as have arrived.

    For readers that decode many lines at once. The last part may end without a line end.

    Raises:
        LineTooLongError: an unfinished line exceeds `bytes_max`.
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

"""Where the lines of streamed logs go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class LineOutput(Protocol):
    """The log of a task, while a triggerer writes it."""

    def write(self, lines: Sequence[str]) -> None:
        """Write lines. The call must take no longer than some milliseconds."""

    async def wait_until_free(self) -> None:
        """Wait until the output has room for further lines."""

    async def drain(self, within_s: float) -> bool:
        """Wait at most this long until written lines no longer depend on this process. Return false if they may."""


__all__ = ["LineOutput"]

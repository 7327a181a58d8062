"""An event loop of its own for the loader, which takes along the programs that it has started.

The loader waits for an exec plugin without a limit, and one that is no longer waited for would stay behind.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

END_TIMEOUT_S = 5.0
"""A killed program ends at once, unless its system is in trouble."""


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._started: list[asyncio.SubprocessTransport] = []

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        transport, protocol = await super().subprocess_exec(*args, **kwargs)
        self._started.append(transport)
        return transport, protocol

    async def end_programs(self) -> None:
        """Kill what still runs, and wait until the system has said that it ended."""
        for transport in self._started:
            transport.close()
        async with asyncio.timeout(END_TIMEOUT_S):
            # A transport tells nobody that its program has ended, but for its own protocol.
            while any(transport.get_returncode() is None for transport in self._started):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def run_in_own_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of `coroutine`, on a new loop in this thread; nothing that it started outlives the call."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        try:
            return runner.run(coroutine)
        finally:
            loop = runner.get_loop()
            assert isinstance(loop, _Loop)
            runner.run(loop.end_programs())

"""Runs the kubeconfig loader on an event loop of its own and kills the subprocesses that it has started.

The loader waits for an exec plugin without a timeout. A plugin whose wait is cancelled would keep running.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

END_TIMEOUT_S = 5.0
"""A killed process normally ends at once."""


class _SubprocessLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._started: list[asyncio.SubprocessTransport] = []

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        transport, protocol = await super().subprocess_exec(*args, **kwargs)
        self._started.append(transport)
        return transport, protocol

    async def kill_subprocesses(self) -> None:
        """Kill all running subprocesses and wait until they have ended."""
        for transport in self._started:
            transport.close()
        async with asyncio.timeout(END_TIMEOUT_S):
            # A transport reports the end of its process only to its own protocol.
            while any(transport.get_returncode() is None for transport in self._started):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def run_in_own_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on a new loop in this thread and return its result. No subprocess outlives the call."""
    with asyncio.Runner(loop_factory=_SubprocessLoop) as runner:
        try:
            return runner.run(coroutine)
        finally:
            loop = runner.get_loop()
            assert isinstance(loop, _SubprocessLoop)
            runner.run(loop.kill_subprocesses())

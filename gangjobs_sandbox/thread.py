"""Runs a sandbox in a thread with its own event loop, for callers without a loop: tests, and wrapped commands.

The registry belongs to that loop. Other threads access it through `SandboxThread.call`.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from gangjobs_sandbox.cluster import Sandbox, SandboxConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["SandboxThread", "running"]

T = TypeVar("T")

CALL_TIMEOUT_S = 30.0
"""How long a call waits for the event loop, which is never busy for that long."""


class SandboxThread:
    """Access to a running sandbox from other threads."""

    def __init__(self, sandbox: Sandbox, loop: asyncio.AbstractEventLoop) -> None:
        self._sandbox = sandbox
        self._loop = loop

    @property
    def config(self) -> SandboxConfig:
        return self._sandbox.config

    @property
    def url(self) -> str:
        return self._sandbox.url

    @property
    def token(self) -> str:
        return self._sandbox.token

    @property
    def kubeconfig_path(self) -> Path:
        return self._sandbox.kubeconfig_path

    def call(self, function: Callable[[Sandbox], T]) -> T:
        """Run the function on the sandbox's event loop. Returns its result, or raises its error."""

        async def on_loop() -> T:
            return function(self._sandbox)

        return asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(CALL_TIMEOUT_S)


@contextmanager
def running(config: SandboxConfig | None = None) -> Iterator[SandboxThread]:
    """Run a sandbox while the block runs. The sandbox is ready when the block begins.

    Raises:
        SandboxError: the sandbox cannot start.
    """
    started: Future[SandboxThread] = Future()
    stop: Future[None] = Future()
    thread = threading.Thread(target=_run, args=(config or SandboxConfig(), started, stop), name="sandbox", daemon=True)
    thread.start()
    try:
        yield started.result()
    finally:
        with suppress(InvalidStateError):  # the sandbox has already ended
            stop.set_result(None)
        thread.join()


def _run(config: SandboxConfig, started: Future[SandboxThread], stop: Future[None]) -> None:
    """The body of the thread. An error before the sandbox is ready is raised in the thread that started it."""

    async def body() -> None:
        async with Sandbox(config) as sandbox:
            started.set_result(SandboxThread(sandbox, asyncio.get_running_loop()))
            failure = asyncio.create_task(sandbox.wait_failed(), name="failure of the sandbox")
            await asyncio.wait([failure, asyncio.wrap_future(stop)], return_when=asyncio.FIRST_COMPLETED)
            failure.cancel()
            await asyncio.gather(failure, return_exceptions=True)  # the exit of the sandbox raises its error

    try:
        asyncio.run(body())
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)

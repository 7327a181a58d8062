"""The foreground of `gangjobs-sandbox up`: prints how to use the cluster, then what happens in it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gangjobs_sandbox.cli.summary import Snapshot, changes
from gangjobs_sandbox.cluster import Sandbox, SandboxConfig
from gangjobs_sandbox.resources import JOBS, NODES, PODS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.registry import Registry
    from gangjobs_sandbox.store import Event

__all__ = ["gc_frozen", "run_in_foreground"]

REFRESH_S = 0.5


async def run_in_foreground(config: SandboxConfig) -> None:
    """Run a sandbox until SIGINT or SIGTERM, and show a dashboard on a terminal, or else one line per change."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    async with Sandbox(config) as sandbox:
        failure = asyncio.create_task(sandbox.wait_failed(), name="failure of the sandbox")
        failure.add_done_callback(lambda _: stop.set())
        _print_how_to_use(sandbox)
        with gc_frozen(sandbox.registry):
            await (_show_dashboard if sys.stdout.isatty() else _print_changes)(sandbox, stop)
        failure.cancel()
        await asyncio.gather(failure, return_exceptions=True)  # the exit of the sandbox raises its error


def _print_how_to_use(sandbox: Sandbox) -> None:
    release = sandbox.config.kubernetes
    print(f"cluster:     Kubernetes {'without Workload API' if release == 'none' else release} at {sandbox.url}")
    print(f"kubeconfig:  {sandbox.kubeconfig_path}")
    print(f"use it:      export KUBECONFIG={sandbox.kubeconfig_path}")
    print("stop it:     Ctrl-C", flush=True)


async def _show_dashboard(sandbox: Sandbox, stop: asyncio.Event) -> None:
    from rich.live import Live  # imported here because rich is slow to import and the plain lines do not need it

    from gangjobs_sandbox.cli.dashboard import tables

    with Live(tables(snapshot(sandbox)), auto_refresh=False, redirect_stderr=False) as live:
        while not await _is_set(stop, within_s=REFRESH_S):
            live.update(tables(snapshot(sandbox)), refresh=True)


async def _print_changes(sandbox: Sandbox, stop: asyncio.Event) -> None:
    before: Snapshot | None = None
    while not await _is_set(stop, within_s=REFRESH_S):
        now = snapshot(sandbox)
        try:
            for line in changes(before, now):
                print(f"{now.now:%H:%M:%S} {line}", flush=True)
        except BrokenPipeError:  # the reader of the pipe has ended; the cluster keeps running
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, ASYNC230 - open until the end
        before = now


def snapshot(sandbox: Sandbox) -> Snapshot:
    """Return the objects in the sandbox now."""
    registry = sandbox.registry
    return Snapshot(registry.list(NODES), registry.list(JOBS), registry.list(PODS), datetime.now(UTC))


async def _is_set(event: asyncio.Event, *, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), within_s)
    return event.is_set()


CHANGES = 1_000
"""The number of changes after which new objects are collected once, which takes a few milliseconds, and frozen."""


@contextlib.contextmanager
def gc_frozen(registry: Registry, *, changes: int = CHANGES) -> Iterator[None]:
    """Freeze the objects of the process now, and again after every `changes` changes, while the block runs.

    Objects in the store never change and contain no reference cycles, so a garbage collection of Python frees none of
    them. A full collection still visits all of them and blocks the event loop for about 30 ms per 1,000 pods.
    `gc.freeze` excludes objects from collections. A frozen object is freed as usual when its last reference goes away.

    The freeze concerns the whole process: cycles that become garbage in the meantime may be freed only at the end of
    the block.
    """
    count = 0

    def collect_and_freeze(event: Event) -> None:
        nonlocal count
        count += 1
        if count % changes == 0:
            gc.collect()
            gc.freeze()

    gc.collect()
    gc.freeze()
    stop = registry.observe(collect_and_freeze)
    try:
        yield
    finally:
        stop()
        gc.unfreeze()

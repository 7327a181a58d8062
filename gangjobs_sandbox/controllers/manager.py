"""Runs controllers over one registry: passes events to them, and the keys that are due.

The same controllers run in virtual time, driven by `step`, and in real time, driven by `run`. Nothing polls: `run` has
one worker for each controller, which sleeps until an event adds a key or a key becomes due, and works in time slices. A
controller that raises an error is retried with back-off and does not stop the others.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from gangjobs_sandbox.cooperative import Cooperative, TimeSlice, run_to_completion
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.journal import UnwritableJournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from datetime import datetime

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.controllers.workqueue import WorkQueue
    from gangjobs_sandbox.registry import Registry
    from gangjobs_sandbox.store import Event

__all__ = ["Controller", "ControllerManager"]

log = logging.getLogger(__name__)

STEP_KEYS_MAX = 10_000
"""The limit of keys per controller and `step`. It ends a loop of controllers that enqueue each other's keys."""

CONFLICT_CODES = frozenset({404, 409})
"""Status codes of a conflict with another writer during a sync. They are common and not worth a warning."""


class Controller(Protocol):
    """Reconciles one kind of object with its desired state."""

    name: str
    queue: WorkQueue[Hashable]

    def observe(self, event: Event) -> None:
        """Queue the keys that the event affects. Must not write."""

    def sync(self, key: Hashable) -> Cooperative[None] | None:
        """Reconcile the key. Safe to repeat. May raise; then the manager retries the key.

        A long sync is cooperative. The controller handles no other key until the sync returns.
        """


class ControllerManager:
    """Passes events to the controllers and runs them. Close it to stop observing."""

    def __init__(self, registry: Registry, clock: Clock, controllers: Iterable[Controller] = ()) -> None:
        self._registry = registry
        self._clock = clock
        self._controllers: list[Controller] = []
        self._errors: dict[tuple[str, Hashable], str] = {}
        self._unsubscribe: Callable[[], None] = registry.observe(self._observe)
        for controller in controllers:
            self.register(controller)

    def register(self, controller: Controller) -> None:
        """Add a controller. The controller receives every later event."""
        self._controllers.append(controller)

    def close(self) -> None:
        """Stop observing the registry."""
        self._unsubscribe()

    def step(self) -> bool:
        """Handle the keys that are due now, one controller after the other. Returns whether there were any."""
        handled = [self._drain(controller) for controller in self._controllers]
        return any(handled)

    def next_due(self) -> datetime | None:
        """Return when the next key is due, or None if nothing is queued."""
        dues = [due for controller in self._controllers if (due := controller.queue.next_due()) is not None]
        return min(dues, default=None)

    async def run(self) -> None:
        """Handle keys when they are due, until cancelled."""
        try:
            async with asyncio.TaskGroup() as workers:
                for controller in self._controllers:
                    workers.create_task(self._work(controller), name=controller.name)
        finally:
            self.close()

    async def _work(self, controller: Controller) -> None:
        wake = asyncio.Event()
        controller.queue.on_add = wake.set
        time_slice = TimeSlice()
        while True:
            wake.clear()
            while (key := controller.queue.pop()) is not None:
                await time_slice.run(self._sync(controller, key))
                await time_slice.yield_if_expired()
            await self._sleep(controller, wake)
            time_slice.begin()

    async def _sleep(self, controller: Controller, wake: asyncio.Event) -> None:
        due = controller.queue.next_due()
        timeout_s = None if due is None else max((due - self._clock.now()).total_seconds(), 0.0)
        # Not `wait_for`: before Python 3.12 it loses a cancellation that arrives together with the wake-up.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await wake.wait()

    def _drain(self, controller: Controller) -> bool:
        for count in range(STEP_KEYS_MAX):
            key = controller.queue.pop()
            if key is None:
                return count > 0
            run_to_completion(self._sync(controller, key))
        return True

    def _sync(self, controller: Controller, key: Hashable) -> Cooperative[None]:
        try:
            work = controller.sync(key)
            if work is not None:
                yield from work
        except Exception as exc:  # A sync that breaks on one object must not stop the cluster.
            self._failed(controller, key, exc)
        else:
            controller.queue.forget(key)
            self._errors.pop((controller.name, key), None)

    def _failed(self, controller: Controller, key: Hashable, exc: Exception) -> None:
        delay_s = controller.queue.retry(key)
        kind = _kind_of(exc)
        if self._errors.get((controller.name, key)) == kind:
            return
        self._errors[controller.name, key] = kind
        # Refusals and a full disk are expected errors. Any other error is a defect, so its traceback is logged.
        log.log(
            logging.DEBUG if isinstance(exc, StatusError) and exc.code in CONFLICT_CODES else logging.WARNING,
            "%s could not handle %s, trying again in %.0f s: %s",
            controller.name,
            key,
            delay_s,
            exc,
            exc_info=None if isinstance(exc, StatusError | UnwritableJournalError) else exc,
        )

    def _observe(self, event: Event) -> None:
        for controller in self._controllers:
            controller.observe(event)


def _kind_of(exc: Exception) -> str:
    """Return an equal value for a repeated failure. The message of a refusal may contain a generated name."""
    return f"{exc.code} {exc.reason}" if isinstance(exc, StatusError) else f"{type(exc).__name__}: {exc}"

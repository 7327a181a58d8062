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
"""Keys one `step` handles of each controller, so that two controllers that wake each other cannot hold it for ever."""

OVERTAKEN = frozenset({404, 409})
"""Answers of a registry in which somebody else has written during the sync: everyday, and not worth a warning."""


class Controller(Protocol):
    """Brings one kind of thing from its state to its wanted state."""

    name: str
    queue: WorkQueue[Hashable]

    def observe(self, event: Event) -> None:
        """Queue the keys that the change concerns. Must not write."""

    def sync(self, key: Hashable) -> Cooperative[None] | None:
        """Look at the key's state and act on it; safe to repeat. May raise: it is tried again.

        What takes long is done in turns. No other key of this controller is handled in between.
        """


class ControllerManager:
    """Owns the controllers' subscription and their turns. Close it to stop observing."""

    def __init__(self, registry: Registry, clock: Clock, controllers: Iterable[Controller] = ()) -> None:
        self._registry = registry
        self._clock = clock
        self._controllers: list[Controller] = []
        self._errors: dict[tuple[str, Hashable], str] = {}
        self._unsubscribe: Callable[[], None] = registry.observe(self._observe)
        for controller in controllers:
            self.register(controller)

    def register(self, controller: Controller) -> None:
        """Add a controller; from now on it sees every event."""
        self._controllers.append(controller)

    def close(self) -> None:
        """Stop observing the registry."""
        self._unsubscribe()

    def step(self) -> bool:
        """Handle what is due now, each controller in its turn. True if there was anything."""
        handled = [self._drain(controller) for controller in self._controllers]
        return any(handled)

    def next_due(self) -> datetime | None:
        """When the next key falls due, or None if nothing is queued."""
        dues = [due for controller in self._controllers if (due := controller.queue.next_due()) is not None]
        return min(dues, default=None)

    async def run(self) -> None:
        """Handle keys as they fall due until cancelled."""
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
        # Not `wait_for`: before Python 3.12 that loses a cancellation which comes together with the wake-up.
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
            turns = controller.sync(key)
            if turns is not None:
                yield from turns
        except Exception as exc:  # a broken rule for one object must not stop the cluster
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
        # A refusal is an expected answer, and so is a full disk; anything else is a defect and needs its traceback.
        log.log(
            logging.DEBUG if isinstance(exc, StatusError) and exc.code in OVERTAKEN else logging.WARNING,
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
    """Equal for the same failure again; the message of a refusal may hold a generated name."""
    return f"{exc.code} {exc.reason}" if isinstance(exc, StatusError) else f"{type(exc).__name__}: {exc}"

"""Run several processes side by side, one request at a time, in a given order or in every order of their requests.

for order in all_orders():
    first, second = await interleaved(client, order, first_process, second_process)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

T = TypeVar("T")


class Gate:
    """The client of a process that waits for its turn before each request.

    Attributes:
        waits: set while the process waits for its turn.
        turns: the steps at which the process sent its requests, counted over all processes from 0.
    """

    def __init__(self, api: Any) -> None:
        self._api = api
        self.clock = api.clock
        self.config = SimpleNamespace(key=object())  # a process has caches of its own
        self.waits = asyncio.Event()
        self.turns: list[int] = []
        self._turn = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._api, name)
        if not callable(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.waits.set()
            await self._turn.wait()
            self._turn.clear()
            return await method(*args, **kwargs)

        return call

    def send_next(self, step: int) -> None:
        self.turns.append(step)
        self.waits.clear()
        self._turn.set()


@dataclass(frozen=True)
class Ended:
    """How one process ended.

    Attributes:
        result: what it returned, or the exception that it raised.
        turns: the steps at which it sent its requests, counted over all processes from 0.
    """

    result: Any
    turns: tuple[int, ...]


async def interleave(
    api: Any, choose: Callable[[int], int], *processes: Callable[[Any], Awaitable[object]]
) -> list[Ended]:
    """Run the processes, and return how each ended.

    :param choose: Is called with the number of waiting processes, and returns the index of the next one.
    :param processes: Functions that are called with the client of their process.
    """
    gates = [Gate(api) for _ in processes]
    tasks = [asyncio.ensure_future(process(gate)) for process, gate in zip(processes, gates, strict=True)]
    step = 0
    while running := [index for index, task in enumerate(tasks) if not task.done()]:
        for index in running:
            await _until_waiting_or_done(gates[index], tasks[index])
        waiting = [index for index in running if not tasks[index].done()]
        if waiting:
            gates[waiting[choose(len(waiting))]].send_next(step)
            step += 1
    results = [task.exception() or task.result() for task in tasks]
    return [Ended(result, tuple(gate.turns)) for result, gate in zip(results, gates, strict=True)]


async def interleaved(api: Any, turns: Iterable[int], *processes: Callable[[Any], Awaitable[object]]) -> list[Any]:
    """Return what each process returned or raised, when the requests are sent in the order of `turns`."""
    order = iter(turns)
    return [ended.result for ended in await interleave(api, lambda waiting: next(order, 0) % waiting, *processes)]


async def _until_waiting_or_done(gate: Gate, task: asyncio.Future[Any]) -> None:
    waits = asyncio.ensure_future(gate.waits.wait())
    await asyncio.wait({waits, task}, return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()


@dataclass
class Order:
    """One order of requests: the choices of a prefix, and then always the first process that waits."""

    prefix: tuple[int, ...] = ()
    _choices: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, waiting: int) -> int:
        """Return the index of the next one of `waiting` processes."""
        number = len(self._choices)
        chosen = self.prefix[number] if number < len(self.prefix) else 0
        self._choices.append((chosen, waiting))
        return chosen

    @property
    def choices(self) -> tuple[int, ...]:
        return tuple(chosen for chosen, _ in self._choices)

    def next(self) -> Order | None:
        """Return the next order, depth first, or None after the last one."""
        for number in reversed(range(len(self._choices))):
            chosen, waiting = self._choices[number]
            if chosen + 1 < waiting:
                return Order((*self.choices[:number], chosen + 1))
        return None


def all_orders() -> Iterator[Order]:
    """Yield every order of the requests. The caller runs each order before it asks for the next one."""
    order: Order | None = Order()
    while order is not None:
        yield order
        order = order.next()

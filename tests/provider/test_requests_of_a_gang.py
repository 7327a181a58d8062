"""How many requests one gang of two costs an API server, beside the watches that all gangs of a triggerer share."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.http.transport import Transport
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.tracking.logs import limits

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from airflow_provider_gangjobs.cluster.http.transport import Request
    from tests.provider.task_runner import TaskMaker

REQUESTS_MAX: Final = 17
"""With the two by which each process that submits finds out what the cluster serves."""
WRITE_LOG_AND_RESULT: Final = 'echo said; sleep 1; printf "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"'


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that were sent."""
    sent: list[str] = []
    send = Transport._send_timed

    async def note(self: Transport, request: Request, *others: Any) -> Any:
        sent.append(str(request))
        return await send(self, request, *others)

    monkeypatch.setattr(Transport, "_send_timed", note)
    return sent


class Triggerer:
    """An event loop that runs in a thread, and keeps its watches between the gangs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        async def close() -> None:
            await informers().aclose()

        self.run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def triggerer() -> Iterator[Triggerer]:
    triggerer = Triggerer()
    yield triggerer
    triggerer.stop()


def run(make: TaskMaker, triggerer: Triggerer) -> Any:
    """Run a task as workers and a triggerer do, and return its value."""
    train = make(WRITE_LOG_AND_RESULT, deferrable=True, logs="all", results="all")
    context = train.next_try()
    trigger = train.defer(context).trigger

    async def payload() -> Any:
        (event,) = [event.payload async for event in trigger.run()]
        return event

    operator = train.operator()
    value = operator.execute_complete(context, triggerer.run(payload()))
    train.note_success(operator, context, value)
    assert train.jobs == []
    return value


def test_gang_of_two_with_its_logs_costs_few_requests(
    task: TaskMaker, triggerer: Triggerer, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The triggerer saves how far it has streamed at intervals, for the first time at a random moment of the first one.
    monkeypatch.setattr(limits, "SAVE_EVERY_MIN_S", limits.SAVE_EVERY_MAX_S)
    monkeypatch.setattr(Clock, "random_between", lambda clock, least, most: most)
    run(task, triggerer)  # starts the watches
    requests.clear()

    value = run(task, triggerer)

    assert value == [{"rank": 0}, {"rank": 1}]
    # The outcomes of ranks that do not end at the same moment are written one after the other.
    written_later = sum(request.startswith("PATCH") and "-ledger-" in request for request in requests)
    assert written_later <= 1
    assert len(requests) - written_later <= REQUESTS_MAX, "\n".join(requests)

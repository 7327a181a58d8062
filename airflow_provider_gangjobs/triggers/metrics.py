"""Metrics of a triggerer, through Airflow's own stats: statsd, Datadog or OpenTelemetry, as its `[metrics]` says.

Taken from the statistics that informers, clients and harvesters keep anyway, at intervals and not per event, and
sent from a thread: whatever a metrics server does, no gang waits for it. `docs/operations.md` lists them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_gangjobs.cluster.loop_local import loop_local

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider_gangjobs.cluster.informer import InformerStatistics

log = logging.getLogger(__name__)

INTERVAL_S: Final = 15.0
"""As often as most metrics servers look."""
PREFIX: Final = "gangjobs."
INFORMER_COUNTERS: Final = (
    "lists",
    "watches_opened",
    "events",
    "bookmarks",
    "back_offs",
    "decode_errors",
    "index_errors",
)


class Sink(Protocol):
    """What is used of Airflow's `Stats`."""

    def incr(self, stat: str, count: int, /) -> None: ...
    def gauge(self, stat: str, value: float, /) -> None: ...


def report_metrics() -> AbstractContextManager[None]:
    """For the length of the block a gang is waited for, and the loop's metrics are sent."""
    return loop_local(_PeriodicReporter)


@dataclass(frozen=True)
class Sample:
    """The statistics of one moment: values that rise and fall, and sums that only rise."""

    gauges: Mapping[str, float]
    sums: Mapping[tuple[str, str], float]
    """By who counts (an informer, a client) and what."""


class DeltaReporter:
    """Turns sums into what each interval has added."""

    def __init__(self) -> None:
        self._before: Mapping[tuple[str, str], float] = {}

    def send(self, sample: Sample, sink: Sink) -> None:
        """Send a sample. A sum that is lower than before is another one's, begun anew: all of it was added."""
        for name, value in sample.gauges.items():
            sink.gauge(PREFIX + name, value)
        added: Counter[str] = Counter()
        for (who, name), value in sample.sums.items():
            before = self._before.get((who, name), 0)
            added[name] += int(value) - int(before if value >= before else 0)
        self._before = sample.sums
        for name, count in added.items():
            if count:
                sink.incr(PREFIX + name, count)


class _PeriodicReporter(AbstractContextManager[None]):
    """One a loop, entered by each gang. Its task lives while any gang is waited for, and sends once more at the end."""

    def __init__(self) -> None:
        self._waiting = 0
        self._meter = DeltaReporter()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._waiting += 1
        self._idle.clear()
        if self._task is None or self._task.done():
            # Its own context: a triggerer routes log lines by a context variable, and this outlives the first trigger.
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="metrics of gangs", context=contextvars.Context()
            )

    def __exit__(self, *_: object) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._idle.set()

    async def _run(self) -> None:
        warned = False
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), INTERVAL_S)
            sample = collect_sample(self._waiting)
            try:
                await asyncio.to_thread(_send, self._meter, sample)
            except Exception as error:  # a metrics library may raise anything, and gangs go on without it
                log.log(logging.DEBUG if warned else logging.WARNING, "metrics of gangs are not sent: %r", error)
                warned = True
            if self._idle.is_set():
                return


def _send(meter: DeltaReporter, sample: Sample) -> None:
    try:
        from airflow.observability.stats import Stats
    except ImportError:  # Airflow before 3.2
        from airflow.stats import Stats  # type: ignore[assignment]
    meter.send(sample, Stats)


def collect_sample(waiting: int) -> Sample:
    """The running loop's statistics."""
    from airflow_provider_gangjobs.cluster.informer import informers
    from airflow_provider_gangjobs.tracking.harvest.statistics import harvest_totals

    watched = informers().statistics()
    harvest = harvest_totals().statistics()
    sums: dict[tuple[str, str], float] = {
        (who, name): getattr(one, name) for who, one in watched.items() for name in INFORMER_COUNTERS
    }
    sums |= {(who, "back_off_ms"): one.back_off_s * 1000 for who, one in watched.items()}
    for who, client in informers().client_statistics().items():
        sums[who, "request_retries"] = client.retries
        sums[who, "credential_renewals"] = client.renewals
        sums |= {(who, f"requests.{verb}"): count for verb, count in client.requests.items()}
    sums |= {("", f"harvest.{name}"): getattr(harvest, name) for name in ("recorded", "released", "failures")}
    return Sample({"triggers": waiting, "harvest.backlog": harvest.backlog, **_gauges(watched.values())}, sums)


def _gauges(watched: Collection[InformerStatistics]) -> dict[str, float]:
    return {
        "informers": len(watched),
        "informers_in_trouble": sum(one.problem is not None or not one.synced for one in watched),
        "informers_polling": sum(one.polling for one in watched),
        "watches_open": sum(one.watches_open for one in watched),
        "objects": sum(one.objects for one in watched),
        "staleness_s": round(max((one.staleness_s for one in watched if one.synced), default=0.0), 1),
    }

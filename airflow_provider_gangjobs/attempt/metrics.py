"""Metrics through Airflow's own `Stats`: of a triggerer, and of what the time of a gang that has ended was used for.

`[metrics]` configures statsd, Datadog or OpenTelemetry. `docs/operations.md` lists the metrics. A worker and a
triggerer end tasks, so both report the use of time, also in the log of the task.

The metrics of a triggerer come from the statistics that informers, clients and harvesters keep anyway. They are
collected at intervals and not per event, and sent from a thread, so that a slow or broken metrics server delays no
gang.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.gang.outcome.restarts import TimeUse, amounts_of, describe_use

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.cluster.informer import InformerStatistics
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent


log = logging.getLogger(__name__)

PREFIX: Final = "gangjobs."


def log_use(event: GangEvent, task_log: Logger) -> None:
    """Log what the time of a gang that has ended was used for.

    :param task_log: The log of the task.
    """
    if event.time_use is not None:
        ranks = event.counts.get("ranks", 0) or len(event.ranks)
        task_log.info("Time used: %s", describe_use(event.time_use, event.requests, ranks))


def send_use(event: GangEvent, dag_id: str, task_id: str) -> None:
    """Send what the time of a gang that has ended was used for as metrics. Does not raise."""
    try:
        for name, value, tags in _metrics_of(event):
            airflow_stats().incr(f"{PREFIX}{name}", value, tags={"dag_id": dag_id, "task_id": task_id, **tags})
    except Exception as error:  # a metrics library may raise anything
        log.debug("The metrics of gang %s were not sent: %r", event.ref, error)


def send_success(ti: Any, *, operator: str, team: str, seconds: float | None) -> None:
    """Send the metrics of a task that has succeeded which Airflow's worker would send. Does not raise.

    Airflow sends them also under their former names, if `[metrics] legacy_names_on` is true. The source is
    `_handle_current_task_success`, `run` and `finalize` of the Task SDK's `task_runner` (Airflow 3.3).

    :param operator: Name of the class of the operator.
    :param team: Name of the team of the DAG; empty if it has none.
    :param seconds: How long the task took; `None` if that is not known.
    """
    tags = {"dag_id": ti.dag_id, "task_id": ti.task_id, **({"team_name": team} if team else {})}
    try:
        stats = airflow_stats()
        stats.incr("operator_successes", tags={**tags, "operator_name": operator})
        stats.incr("ti_successes", tags=tags)
        stats.incr("ti.finish", tags={**tags, "state": "success"})
        if seconds is not None:
            stats.timing("task.duration", seconds * 1000, tags=tags)
    except Exception as error:  # a metrics library may raise anything
        log.debug("The metrics of task %s.%s were not sent: %r", ti.dag_id, ti.task_id, error)


def _metrics_of(event: GangEvent) -> Iterator[tuple[str, int, dict[str, str]]]:
    if event.restarts_total:
        yield "restarts", event.restarts_total, {}
    if event.time_use is None:
        return
    amounts = amounts_of(event.requests)
    for name in TimeUse.__struct_fields__:
        use, seconds = name.removesuffix("_s"), getattr(event.time_use, name) or 0.0
        if whole := round(seconds):
            yield f"time_s.{use}", whole, {}
        for resource, amount in amounts.items():
            if whole := round(seconds * amount):
                yield f"resource_s.{use}", whole, {"resource": resource}


def airflow_stats() -> Any:
    """Return the stats of Airflow, which `[metrics]` configures."""
    try:
        from airflow.observability.stats import Stats
    except ImportError:  # Airflow before 3.2
        from airflow.stats import Stats  # type: ignore[assignment]
    return Stats


INTERVAL_S: Final = 15.0
"""Most metrics servers read their data at this interval."""
INFORMER_COUNTERS: Final = (
    "lists",
    "watches_opened",
    "events",
    "bookmarks",
    "back_offs",
    "decode_errors",
    "index_errors",
)
DIAGNOSES: Final = "diagnoses"
"""How many states of gangs were reported, by category."""
HARVEST_COUNTERS: Final = ("recorded", "released", "failures")


def report_metrics() -> AbstractContextManager[None]:
    """Return a context manager that counts one waiting trigger and reports the metrics of the running loop."""
    return loop_local(_PeriodicReporter)


def count_diagnosis(category: str) -> None:
    """Count a state of a gang that is reported in the log of its task."""
    loop_local(_diagnoses)[category] += 1


def _diagnoses() -> Counter[str]:
    return Counter()


def note_progress(uid: str, task: TaskKey, percent: float) -> None:
    """Note how far the gang with this uid is, from 0 to 100, until `forget_progress`."""
    loop_local(_progress)[uid] = (task.dag_id, task.task_id, percent)


def forget_progress(uid: str) -> None:
    """Forget how far a gang is that this process does not follow any more."""
    loop_local(_progress).pop(uid, None)


def _progress() -> dict[str, tuple[str, str, float]]:
    return {}


class CounterKey(NamedTuple):
    """One counter. The counters of several sources that have the same name and category are sent as their sum."""

    name: str
    source: str = ""
    """The informer or client that counts."""
    category: str = ""
    """The value of the tag `category`; empty for a counter without a tag."""


class Sample(Struct, frozen=True):
    """The statistics of one moment: gauges rise and fall, counters only rise."""

    gauges: Mapping[str, float]
    counters: Mapping[CounterKey, float]
    progress: Mapping[tuple[str, str], float] = {}
    """How far the gangs of a task are, from 0 to 100, by DAG and task: that of the slowest gang."""


class DeltaReporter:
    """Sends the gauges of a sample, and how much each counter has risen since the sample before."""

    def __init__(self) -> None:
        self._last_counters: Mapping[CounterKey, float] = {}

    def send(self, sample: Sample, sink: Any) -> None:
        """Send a sample to Airflow's `Stats`. A counter that fell has a new source, and is added whole."""
        for name, value in sample.gauges.items():
            sink.gauge(PREFIX + name, value)
        for (dag_id, task_id), percent in sample.progress.items():
            sink.gauge(f"{PREFIX}progress_percent", percent, tags={"dag_id": dag_id, "task_id": task_id})
        added: Counter[tuple[str, str]] = Counter()
        for key, value in sample.counters.items():
            before = self._last_counters.get(key, 0)
            added[key.name, key.category] += int(value) - int(before if value >= before else 0)
        self._last_counters = sample.counters
        for (name, category), count in added.items():
            if count:
                sink.incr(PREFIX + name, count, **({"tags": {"category": category}} if category else {}))


class _PeriodicReporter(AbstractContextManager[None]):
    """Reports the metrics of one event loop while triggers wait on the loop, and once more when the last one ends."""

    def __init__(self) -> None:
        self._waiting = 0
        self._reporter = DeltaReporter()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._waiting += 1
        self._idle.clear()
        if self._task is None or self._task.done():
            # The task gets an empty context: a triggerer routes log lines by a context variable of the trigger, and
            # the task outlives the trigger that starts it.
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
                await asyncio.to_thread(_send, self._reporter, sample)
            except Exception as error:  # a metrics library may raise anything, and the triggers must go on
                log.log(logging.DEBUG if warned else logging.WARNING, "The metrics of gangs were not sent: %r", error)
                warned = True
            if self._idle.is_set():
                return


def _send(reporter: DeltaReporter, sample: Sample) -> None:
    reporter.send(sample, airflow_stats())


def collect_sample(waiting: int) -> Sample:
    """Return the statistics of the running loop.

    :param waiting: The number of triggers that wait on the loop.
    """
    from airflow_provider_gangjobs.cluster.informer import informers
    from airflow_provider_gangjobs.ending.sweep import sweep_totals
    from airflow_provider_gangjobs.tracking.harvest.harvester import harvest_totals

    statistics = informers().statistics()
    harvest = harvest_totals()
    counters: dict[CounterKey, float] = {
        CounterKey(name, source): getattr(informer, name)
        for source, informer in statistics.items()
        for name in INFORMER_COUNTERS
    }
    counters |= {CounterKey("back_off_ms", source): one.back_off_s * 1000 for source, one in statistics.items()}
    for source, client in informers().client_statistics().items():
        counters[CounterKey("request_retries", source)] = client.retries
        counters[CounterKey("credential_renewals", source)] = client.renewals
        counters |= {CounterKey(f"requests.{verb}", source): count for verb, count in client.requests.items()}
    counters |= {CounterKey(DIAGNOSES, category=category): n for category, n in loop_local(_diagnoses).items()}
    counters |= {CounterKey(f"harvest.{name}"): getattr(harvest, name) for name in HARVEST_COUNTERS}
    counters |= {CounterKey(f"sweep.{name}"): count for name, count in sweep_totals().items()}
    gauges = {"triggers": waiting, "harvest.backlog": harvest.backlog, **_informer_gauges(statistics.values())}
    progress: dict[tuple[str, str], float] = {}
    for dag_id, task_id, percent in loop_local(_progress).values():
        progress[dag_id, task_id] = min(progress.get((dag_id, task_id), percent), percent)
    return Sample(gauges, counters, progress)


def _informer_gauges(informers: Collection[InformerStatistics]) -> dict[str, float]:
    return {
        "informers": len(informers),
        "informers_in_trouble": sum(one.problem is not None or not one.synced for one in informers),
        "informers_polling": sum(one.polling for one in informers),
        "watches_open": sum(one.watches_open for one in informers),
        "objects": sum(one.objects for one in informers),
        "staleness_s": round(max((one.staleness_s for one in informers if one.synced), default=0.0), 1),
    }

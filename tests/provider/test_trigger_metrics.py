"""Metrics reach a statsd server through Airflow's own stats, and a broken server delays no gang."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from airflow_provider_gangjobs.attempt.metrics import (
    DIAGNOSES,
    CounterKey,
    DeltaReporter,
    Sample,
    collect_sample,
    count_diagnosis,
    forget_progress,
    note_progress,
    report_metrics,
    report_use,
)
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import Status, build_event
from airflow_provider_gangjobs.gang.outcome.time_use import TimeUse
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger
from tests.timeouts import TIMEOUT_S
from tests.unit.test_alerts import metrics_of_queries

try:
    from airflow._shared.observability.metrics import stats
    from airflow._shared.observability.metrics.statsd_logger import SafeStatsdLogger
except ImportError:  # Airflow 3.1. Remove this branch when 3.2 is the oldest supported release.
    from airflow import stats  # type: ignore[no-redef]
    from airflow.metrics.statsd_logger import SafeStatsdLogger  # type: ignore[import-not-found,no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GANG = GangSpec(image="i", command=["true"], workers=3, resources={"cpu": "100m"})


class Statsd:
    """A client with the methods of the `statsd` package that Airflow uses."""

    def __init__(self, sender: socket.socket) -> None:
        self._sender = sender

    def incr(self, stat: str, count: int, rate: float) -> None:
        self._sender.send(f"airflow.{stat}:{count}|c".encode())

    def gauge(self, stat: str, value: float, rate: float, delta: bool) -> None:
        self._sender.send(f"airflow.{stat}:{value}|g".encode())


def send_metrics_to(factory: Callable[[], object]) -> None:
    """Let Airflow in this process send its metrics through what the factory makes."""
    module: Any = stats
    if hasattr(module, "initialize"):
        module.initialize(factory=factory, export_legacy_names=False)
    elif "initialize" in dir(type(module.Stats)):  # Airflow 3.2
        module.Stats.initialize(factory=factory)
    else:  # Airflow 3.1
        module.Stats.instance, module.Stats.factory = None, factory


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A statsd server to which Airflow in this process sends its metrics."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        port = receiver.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect(("127.0.0.1", port))
            send_metrics_to(lambda: SafeStatsdLogger(Statsd(sender)))
            yield receiver
        send_metrics_to(stats.NoStatsLogger)


async def received(server: socket.socket, last: str) -> dict[str, str]:
    """Return the received metrics by name, up to and including the metric `last`."""
    found: dict[str, str] = {}
    async with asyncio.timeout(TIMEOUT_S):
        while last not in found:
            datagram = (await asyncio.get_running_loop().sock_recv(server, 65536)).decode()
            found |= dict(line.split(":", 1) for line in datagram.splitlines())
    return found


class Recorder:
    def __init__(self) -> None:
        self.sent: list[tuple[str, float]] = []

    def incr(self, stat: str, count: int, /, *, tags: dict[str, str] | None = None) -> None:
        self.sent.append((f"{stat}{tags or ''}", count))

    def gauge(self, stat: str, value: float, /) -> None:
        self.sent.append((stat, value))


async def test_harvest_of_a_gang_is_counted(connection: str, server: socket.socket) -> None:
    ref = GangJobHook(connection).submit(GANG, key=TaskKey("d", uuid4().hex, "t"), claim="c").ref
    trigger = GangJobTrigger(kubernetes_conn_id=connection, namespace=ref.namespace, name=ref.name, uid=ref.uid)

    assert [event async for event in trigger.run()]
    found = await received(server, "airflow.gangjobs.harvest.released")
    sample = collect_sample(0)
    await informers().aclose()

    sent = {
        f"airflow.gangjobs.{name}".replace(".", "_")
        for name in (*sample.gauges, *(key.name for key in sample.counters))
    }
    assert metrics_of_queries() - sent <= {"airflow_gangjobs_diagnoses"}, "each query of docs/alerts has its metrics"
    assert found["airflow.gangjobs.harvest.recorded"] == found["airflow.gangjobs.harvest.released"] == "3|c"
    assert found["airflow.gangjobs.harvest.backlog"] == "0|g"
    assert int(found["airflow.gangjobs.requests.patch"].removesuffix("|c")) >= 3
    assert int(found["airflow.gangjobs.watches_open"].removesuffix("|g")) >= 2


async def test_use_of_time_is_sent_at_the_end_of_a_gang(server: socket.socket) -> None:
    use = TimeUse(useful_s=60.0, lost_s=7.4, waiting_s=0.0)
    ref = GangRef("team", "train-0", "uid")
    event = build_event(ref, Status.SUCCEEDED, Phase.SUCCEEDED, restarts_total=2, time_use=use, requests={"cpu": "6"})

    report_use(event, "dag", "train", logging.Logger("task"))

    found = await received(server, "airflow.gangjobs.resource_s.lost")
    assert found == {
        "airflow.gangjobs.restarts": "2|c",
        "airflow.gangjobs.time_s.useful": "60|c",
        "airflow.gangjobs.time_s.lost": "7|c",
        "airflow.gangjobs.resource_s.useful": "360|c",
        "airflow.gangjobs.resource_s.lost": "44|c",
    }


def test_progress_of_a_task_is_that_of_its_slowest_gang() -> None:
    async def sample() -> Sample:
        for uid, percent in {"a": 50.0, "b": 20.0, "c": 1.0}.items():
            note_progress(uid, TaskKey("dag", uid, "train"), percent)
        forget_progress("c")
        return collect_sample(0)

    assert asyncio.run(sample()).progress == {("dag", "train"): 20.0}


async def test_exception_of_the_metrics_library_is_not_raised() -> None:
    calls: list[str] = []

    def broken() -> stats.NoStatsLogger:
        calls.append("broken")
        raise RuntimeError("no route to the metrics server")

    send_metrics_to(broken)
    with report_metrics():
        await asyncio.sleep(0)
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "metrics of gangs")

    await asyncio.wait_for(task, TIMEOUT_S)
    send_metrics_to(stats.NoStatsLogger)
    assert calls


def test_counter_is_sent_as_its_increase() -> None:
    reporter, sink = DeltaReporter(), Recorder()

    for value in (5, 5, 9):
        reporter.send(Sample({}, {CounterKey("events", "a"): value, CounterKey("events", "b"): 1}), sink)

    assert sink.sent == [("gangjobs.events", 6), ("gangjobs.events", 4)]


def test_states_of_gangs_are_counted_by_their_category() -> None:
    reporter, sink = DeltaReporter(), Recorder()

    killed, running = (CounterKey(DIAGNOSES, category=category) for category in ("OutOfMemory", "Running"))

    for value in (1, 3):
        reporter.send(Sample({}, {killed: value, running: 1}), sink)

    assert sink.sent == [
        ("gangjobs.diagnoses{'category': 'OutOfMemory'}", 1),
        ("gangjobs.diagnoses{'category': 'Running'}", 1),
        ("gangjobs.diagnoses{'category': 'OutOfMemory'}", 2),
    ]


async def test_reported_state_is_part_of_the_sample() -> None:
    count_diagnosis("QueueHeld")

    assert collect_sample(1).counters[CounterKey(DIAGNOSES, category="QueueHeld")] == 1


def test_counter_of_a_new_informer_starts_at_zero() -> None:
    reporter, sink = DeltaReporter(), Recorder()

    for value in (5, 2):
        reporter.send(Sample({}, {CounterKey("events", "a"): value}), sink)

    assert sink.sent == [("gangjobs.events", 5), ("gangjobs.events", 2)]

"""What the process of a trigger does: stored arguments, retries after faults, a delayed resumption, and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.module_loading import import_string

from airflow_provider_gangjobs.airflow_api.connection import READ_PAUSE_CAP_S
from airflow_provider_gangjobs.attempt.deferral import CONNECTION_MISSING, TriggerArgs
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
    send_use,
)
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import (
    CLOCK_WITHIN_S,
    CONNECTION_READ_FOR_S,
    ERROR_PAUSE_BASE_S,
    ERROR_PAUSE_CAP_S,
    PROGRESS_S,
    RESTARTS_MAX,
    pause_after_errors_s,
    wait_for_event,
)
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import MARGIN_S, sleep_until_resumable
from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import ERRORS_MAX, SelectionArgs, wait_for_selected
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, build_event
from airflow_provider_gangjobs.gang.outcome.restarts import TimeUse
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.jobs.requests import REFUSED_FOR_S
from airflow_provider_gangjobs.triggers.gang_job import GangCompletionTrigger, GangJobTrigger, GangSubmissionTrigger
from tests.provider.virtual_control_plane import VirtualControlPlane
from tests.provider.virtual_time import elapsed, in_virtual_time
from tests.timeouts import TIMEOUT_S
from tests.unit.test_alerts import metrics_of_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# -- The arguments of a trigger, which Airflow's database stores in clear text: ids and numbers, enough to start
#    again -----------------------------------------------------------------------------------------------------------

REQUIRED = {"kubernetes_conn_id": "gpus", "namespace": "team", "name": "train-0", "uid": "job-uid"}
FULL = REQUIRED | {
    "claim": "01a1",
    "attempt": 2,
    "time_limits": {"queue_timeout": 60.0, "assemble_timeout": 30.5, "run_timeout": 3600.0},
    "must_exist": True,
    "deadline": 1_790_000_000.0,
    "execution_timeout_s": 7200.0,
    "delete_on_kill": False,
    "disruptions": 1,
    "tracking_errors": 2,
    "installation": "prod",
    "outlives_task": True,
    "stream_ranks": [0, 3],
    "stream_bytes_max": 1000,
    "kept_logs": "rank0+failed",
    "kept_bytes_max": 2000,
    "callbacks": ["notices.Notices"],
    "task": {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1},
    "earlier_use": {"lost_s": 60.0, "held_s": 60.0},
    "end": {"results": "all", "logs": "rank0+failed", "deletes": True},
    "secrets": [["/train-0/spec/containers/0/env/0/value", "text", 0, 12]],
}
TRIGGERS = (GangSubmissionTrigger, GangCompletionTrigger, GangJobTrigger)


@pytest.mark.parametrize("kind", TRIGGERS)
@pytest.mark.parametrize("kwargs", [REQUIRED, FULL], ids=["required", "full"])
def test_trigger_survives_serialization(kind: Any, kwargs: dict[str, Any]) -> None:
    path, stored = kind(**kwargs).serialize()
    again = import_string(path)(**json.loads(json.dumps(stored)))

    assert stored == kwargs
    assert (type(again), again.args) == (kind, TriggerArgs(**kwargs))


def test_every_argument_is_in_the_full_example() -> None:
    assert set(FULL) == set(TriggerArgs.__struct_fields__)


def test_timeouts_become_deadlines() -> None:
    assert TriggerArgs(**FULL).deadlines == Deadlines(queue_s=60.0, assemble_s=30.5, run_s=3600.0)


def test_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="kube_config"):
        GangJobTrigger(**REQUIRED, kube_config="secret")


# -- A gang that ends at once resumes its task only after Airflow has noticed the worker's end (airflow#72716) -------

SETTING = "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL"


@pytest.mark.parametrize(("interval_s", "ran_s"), [(5, 0.0), (5, 3.0), (1, 0.0)])
@in_virtual_time
async def test_task_resumes_one_heartbeat_after_its_deferral(
    interval_s: int, ran_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, str(interval_s))
    assert await resumed_after(ran_s) == interval_s + MARGIN_S


@in_virtual_time
async def test_gang_that_took_longer_resumes_its_task_at_once() -> None:
    assert await resumed_after(60.0) == 60.0


async def resumed_after(ran_s: float) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await asyncio.sleep(ran_s)
    await sleep_until_resumable(started)
    return loop.time() - started


# -- A trigger retries after faults of its own process, because the gang may still run -------------------------------

CONNECTION = "AIRFLOW_CONN_RETRIES"


class BrokenLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose `info` raises an unexpected exception the given number of times."""

    def __init__(self, times: int) -> None:
        super().__init__(logging.getLogger("broken"))
        self.failures_left = times

    def info(self, *args: Any, **kwargs: Any) -> None:
        if self.failures_left:
            self.failures_left -= 1
            raise RuntimeError("s3cr3t")


def connection_json(kube_config: Any) -> str:
    return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": kube_config}})


def args_of(ref: GangRef, **fields: Any) -> TriggerArgs:
    return TriggerArgs(kubernetes_conn_id="retries", namespace=ref.namespace, name=ref.name, uid=ref.uid, **fields)


async def wait_until_ended(args: TriggerArgs, log: Any = None) -> GangEvent:
    return await wait_for_event(args, "ended", log or logging.getLogger("test"))


@pytest.fixture
def connected(plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch) -> VirtualControlPlane:
    """A control plane to which the connection of the triggers leads."""
    monkeypatch.setenv(CONNECTION, connection_json(plane.config.kube_config))
    return plane


@in_virtual_time
async def test_reading_the_connection_is_retried(plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connection_json(plane.config.kube_config)
    asyncio.get_running_loop().call_later(120, monkeypatch.setenv, CONNECTION, connection)
    waiting = asyncio.create_task(wait_until_ended(args_of(plane.submit(workers=2), must_exist=True)))
    await plane.until(lambda: plane.running_ranks() == 2)
    plane.finish_all()
    event = await waiting
    assert event.status is Status.SUCCEEDED
    assert 120 <= elapsed() <= 200


def answer(monkeypatch: pytest.MonkeyPatch, error: ErrorType) -> None:
    """Let the supervisor of the process answer each request by this error."""
    comms = SimpleNamespace(send=lambda _: ErrorResponse(error=error))
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)


@in_virtual_time
async def test_connection_that_the_triggerer_does_not_have_is_left_to_a_worker_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer(monkeypatch, ErrorType.CONNECTION_NOT_FOUND)
    event = await wait_until_ended(args_of(GangRef("n", "j", "u"), must_exist=True))
    assert (event.status, event.reason, elapsed()) == (Status.ERROR, CONNECTION_MISSING, 0)
    assert f"triggerer on {socket.gethostname()} has no connection 'retries', although a worker has it" in event.message


@pytest.mark.parametrize("error", [ErrorType.API_SERVER_ERROR, ErrorType.GENERIC_ERROR])
@in_virtual_time
async def test_connection_that_cannot_be_read_is_not_a_missing_one(
    monkeypatch: pytest.MonkeyPatch, error: ErrorType
) -> None:
    answer(monkeypatch, error)
    event = await wait_until_ended(args_of(GangRef("n", "j", "u"), must_exist=True))
    assert (event.status, event.reason) == (Status.ERROR, "AirflowNotFoundException")
    assert elapsed() > CONNECTION_READ_FOR_S - READ_PAUSE_CAP_S


@in_virtual_time
async def test_deadline_of_the_task_applies_while_the_connection_cannot_be_read() -> None:
    args = args_of(GangRef("n", "j", "u"), deadline=time.time() - 1.0, execution_timeout_s=200.0)
    event = await wait_until_ended(args)
    assert (event.status, event.reason, event.seconds) == (Status.TIMEOUT, "Deadline.execution", 200.0)
    assert elapsed() == CLOCK_WITHIN_S


@in_virtual_time
async def test_rotated_token_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with VirtualControlPlane.running(token="new-token") as plane:
        fresh = connection_json(plane.config.kube_config)
        monkeypatch.setenv(CONNECTION, fresh.replace("new-token", "old-token"))
        asyncio.get_running_loop().call_later(60, monkeypatch.setenv, CONNECTION, fresh)
        waiting = asyncio.create_task(wait_until_ended(args_of(plane.submit(workers=2))))
        await plane.until(lambda: plane.running_ranks() == 2)
        plane.finish_all()

        assert (await waiting).status is Status.SUCCEEDED
        assert REFUSED_FOR_S <= elapsed() <= REFUSED_FOR_S + 100


@in_virtual_time
async def test_unchanged_connection_ends_in_an_error(
    plane: VirtualControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONNECTION, connection_json({"clusters": []}))
    event = await wait_until_ended(args_of(plane.submit()))
    assert (event.status, event.reason) == (Status.ERROR, "InvalidConnection")


@in_virtual_time
async def test_gang_is_followed_again_after_an_unexpected_exception(connected: VirtualControlPlane) -> None:
    waiting = asyncio.create_task(wait_until_ended(args_of(connected.submit(workers=2)), BrokenLog(RESTARTS_MAX)))
    await connected.until(lambda: connected.running_ranks() == 2)
    connected.finish_all()
    assert (await waiting).status is Status.SUCCEEDED


@in_virtual_time
async def test_repeated_exception_is_an_error_without_its_text(connected: VirtualControlPlane) -> None:
    event = await wait_until_ended(args_of(connected.submit(workers=2), tracking_errors=2), BrokenLog(1000))
    assert (event.status, event.reason, event.tracking_errors) == (Status.ERROR, "RuntimeError", 2)
    assert "s3cr3t" not in json.dumps(event.to_payload())


@in_virtual_time
async def test_progress_resets_the_count_of_errors(connected: VirtualControlPlane) -> None:
    waiting = asyncio.create_task(wait_until_ended(args_of(connected.submit(workers=2), tracking_errors=1)))
    await connected.until(lambda: connected.running_ranks() == 2)
    await asyncio.sleep(PROGRESS_S + 100)
    connected.finish_all()
    event = await waiting
    assert (event.status, event.tracking_errors) == (Status.SUCCEEDED, 0)


@in_virtual_time
async def test_errors_of_a_sensor_that_are_far_apart_do_not_add_up(
    connected: VirtualControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    ref = connected.submit(workers=2)
    args = SelectionArgs(kubernetes_conn_id="retries", namespace=ref.namespace, names={ref.name: ""})
    waiting = asyncio.create_task(wait_for_selected(args, logging.getLogger(__name__)))
    for number in range(ERRORS_MAX + 1):
        await asyncio.sleep(PROGRESS_S + 200)
        connected.arm("status", method="GET", path="/pods", times=None, code=403)
        while caplog.text.count("It is followed again") == number and not waiting.done():  # noqa: ASYNC110
            await asyncio.sleep(60)
        connected.faults.remove()
    connected.finish_all()
    assert (await waiting)["status"] == "met"


@in_virtual_time
async def test_deadline_counts_by_the_clock_of_the_api_server(connected: VirtualControlPlane) -> None:
    """The local clock is months ahead here, so that by the local clock the deadline has passed."""
    deadline = connected.clock.now().timestamp() + 600
    event = await wait_until_ended(args_of(connected.submit(workers=2), deadline=deadline))
    assert (event.status, event.phase) == (Status.TIMEOUT, Phase.RUNNING)
    assert 600 <= elapsed() <= 602


@pytest.mark.parametrize(
    ("errors", "pause_s"), [(0, 0), (1, ERROR_PAUSE_BASE_S), (3, 4 * ERROR_PAUSE_BASE_S), (99, ERROR_PAUSE_CAP_S)]
)
def test_pause_grows_with_the_errors(errors: int, pause_s: float) -> None:
    assert pause_after_errors_s(errors) == pause_s


# -- Metrics reach a statsd server through Airflow's own stats, and a broken server delays no gang -------------------

try:
    from airflow._shared.observability.metrics import stats
    from airflow._shared.observability.metrics.statsd_logger import SafeStatsdLogger
except ImportError:  # Airflow 3.1. Remove this branch when 3.2 is the oldest supported release.
    from airflow import stats  # type: ignore[no-redef]
    from airflow.metrics.statsd_logger import SafeStatsdLogger  # type: ignore[import-not-found,no-redef]


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

    send_use(event, "dag", "train")

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


A, B = CounterKey("events", "a"), CounterKey("events", "b")
KILLED, RUNNING = (CounterKey(DIAGNOSES, category=category) for category in ("OutOfMemory", "Running"))
SENT = {
    "increases": ([{A: 5, B: 1}, {A: 5, B: 1}, {A: 9, B: 1}], [("events", 6), ("events", 4)]),
    "a new informer": ([{A: 5}, {A: 2}], [("events", 5), ("events", 2)]),
    "categories": (
        [{KILLED: 1, RUNNING: 1}, {KILLED: 3, RUNNING: 1}],
        [
            ("diagnoses{'category': 'OutOfMemory'}", 1),
            ("diagnoses{'category': 'Running'}", 1),
            ("diagnoses{'category': 'OutOfMemory'}", 2),
        ],
    ),
}


@pytest.mark.parametrize(("samples", "sent"), SENT.values(), ids=SENT)
def test_counter_is_sent_as_its_increase(samples: list[Any], sent: list[tuple[str, int]]) -> None:
    reporter, sink = DeltaReporter(), Recorder()
    for counters in samples:
        reporter.send(Sample({}, counters), sink)
    assert sink.sent == [(f"gangjobs.{name}", count) for name, count in sent]


async def test_reported_state_is_part_of_the_sample() -> None:
    count_diagnosis("QueueHeld")

    assert collect_sample(1).counters[CounterKey(DIAGNOSES, category="QueueHeld")] == 1

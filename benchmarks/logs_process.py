"""The process under test of `benchmarks.logs`.

`python -m benchmarks.logs_process store NAMESPACE NAME UID` writes the whole logs of a gang to a storage that discards
them. `copy` copies the logs into the log of a task, with the default limit. `wait NAMESPACE STREAMS SECONDS` waits for
all gangs of a namespace, whose deadlines pass one after the other within these seconds, and prints the deadlines first.
The process prints one JSON object at the end.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import resource
import sys
import time
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.spec import LogOptions, Logs
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.kube.views import PodView
from airflow_provider_gangjobs.tracking.logs.copy import copy_logs
from airflow_provider_gangjobs.tracking.logs.store import store_logs
from benchmarks.loop_watch import LoopWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.cluster.client import Client

CONNECTION = "kubernetes_default"
STREAM_BYTES_MAX = 16 * 2**20
"""Half of the default `log_limit`, as the operator sets it."""
FIRST_S = 15.0
"""After how many seconds the first deadline passes."""
LAST_S = 10.0
"""How long after the last deadline the process still runs."""


class _Discarded(io.RawIOBase):
    """A file that counts what is written to it."""

    def __init__(self, storage: CountingStorage) -> None:
        self._storage = storage

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._storage.bytes += len(data)
        return len(data)


class CountingStorage:
    """A storage that discards everything, so that no disk is measured."""

    def __init__(self) -> None:
        self.bytes = 0

    def address(self, name: str) -> str:
        return f"discarded/{name}"

    def open(self, name: str) -> BinaryIO:
        file: Any = _Discarded(self)
        return file  # type: ignore[no-any-return]


async def transfer(mode: str, ref: GangRef) -> dict[str, Any]:
    """Store or copy all logs of a gang."""
    written = CountingStorage()

    def write(lines: Sequence[str]) -> None:
        written.bytes += sum(len(line) + 1 for line in lines) if mode == "copy" else 0

    async with informers().client(GangJobHook(CONNECTION).config()) as client:
        rss_mb, cpu_s, began = peak_mb(), time.process_time(), time.monotonic()
        if mode == "store":
            addresses = await store_logs(client, ref, written, (), write)
            read = written.bytes
            assert addresses, "no log was stored"
        else:
            copied = await copy_logs(client, ref, LogOptions(Logs.ALL), write)
            read = sum(log.bytes for log in copied)
    seconds = time.monotonic() - began
    return {
        "read_mb": read / 1e6,
        "written_mb": written.bytes / 1e6,
        "took_s": seconds,
        "mb_per_s": read / 1e6 / seconds,
        "cpu_s_per_gb": (time.process_time() - cpu_s) / (read / 1e9),
        "rss_before_mb": rss_mb,
        "rss_peak_mb": peak_mb(),
    }


class _Lines(logging.StreamHandler[TextIO]):
    """Writes log records to a file, and counts them."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        super().emit(record)


async def wait(namespace: str, *, streams: bool, seconds: float) -> dict[str, Any]:
    """Wait for all gangs of a namespace. Print first when the deadline of each gang passes, by the name of its Job."""
    watch = LoopWatch()
    watch.install()
    with NamedTemporaryFile("w", suffix=".log") as file:
        lines = _Lines(file)
        log: Any = logging.Logger("triggers")
        log.addHandler(lines)
        async with informers().client(GangJobHook(CONNECTION).config()) as client:
            pods = await _pods(client, namespace)
        first = time.time() + FIRST_S
        due = {pod.metadata.name: first + number * seconds / len(pods) for number, pod in enumerate(pods)}
        args = [_args(pod, due[pod.metadata.name], streams=streams) for pod in pods]
        print(json.dumps({one.name: at for one, at in zip(args, due.values(), strict=True)}), flush=True)
        ticking = asyncio.create_task(watch.tick())
        cpu_s, began = time.process_time(), time.monotonic()
        waits = [asyncio.create_task(wait_for_event(one, "ended", log)) for one in args]
        await asyncio.sleep(FIRST_S + seconds + LAST_S)
        # No program ends the pods, so a gang ends only by its deadline: a minute later, without an answer from its Job.
        ended = [one.result() for one in waits if one.done()]
        early = [event for event in ended if event.status is not Status.TIMEOUT]
        assert not early, f"{len(early)} gangs ended before their deadlines, such as {early[0]}"
        took_s = time.monotonic() - began
        ticking.cancel()
        figures = watch.take()
    return {
        "lines_per_s": lines.count / took_s,
        "cpu_s_per_min": (time.process_time() - cpu_s) / took_s * 60,
        "longest_callback_ms": figures["longest_callback_ms"],
        "lag_max_ms": figures["lag_max_ms"],
        "rss_peak_mb": peak_mb(),
    }


async def _pods(client: Client, namespace: str) -> list[PodView]:
    return [pod async for page in client.list_views(PodView, PODS, namespace) for pod in page]


def _args(pod: PodView, due: float, *, streams: bool) -> TriggerArgs:
    """Return the arguments of a trigger whose `run_timeout` passes at this time."""
    owner = pod.metadata.owner_references[0]
    started = pod.status.container_statuses[0].state.running
    assert started is not None
    return TriggerArgs(
        kubernetes_conn_id=CONNECTION,
        namespace=pod.metadata.namespace,
        name=owner.name,
        uid=owner.uid,
        claim="benchmark",
        run_timeout_s=due - started.started_at.timestamp(),
        stream_ranks=[0] if streams else [],
        stream_bytes_max=STREAM_BYTES_MAX,
    )


def peak_mb() -> float:
    """Return the peak of the resident memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def main(mode: str, namespace: str, *rest: str) -> None:
    if mode == "wait":
        result = await wait(namespace, streams=rest[0] == "streams", seconds=float(rest[1]))
    else:
        result = await transfer(mode, GangRef(namespace, *rest))
    print(json.dumps({name: round(value, 3) for name, value in result.items()}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""The process under test: it runs a number of triggers of one provider as a triggerer runs them.

`python -m benchmarks.waiting ours|peer GANGS.json idle|events|cpu SECONDS START_LIMIT`. The process prints one JSON
object in each line: `ready` when all triggers wait, and the figures at the end. `idle` measures triggers that wait for
SECONDS, and `events` measures them until all have ended. `cpu` is `events` without the measurement of the event loop,
which adds a fifth to the CPU time. The process ends itself if the triggers do not wait within START_LIMIT seconds, or
take longer than SECONDS.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import print_json, rss_mb
from benchmarks.loop_watch import LoopWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.triggers.base import BaseTrigger

PEER_POLL_S = 10.0
END_LIMIT_S = 30


def ours(name: str, uid: str, namespace: str) -> BaseTrigger:
    """Return the trigger of this provider for one gang."""
    from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger

    return GangJobTrigger(kubernetes_conn_id="kubernetes_default", namespace=namespace, name=name, uid=uid)


def peer(name: str, uid: str, namespace: str) -> BaseTrigger:
    """Return the trigger of the cncf.kubernetes provider for one gang."""
    from airflow.providers.cncf.kubernetes.triggers.job import KubernetesJobTrigger

    return KubernetesJobTrigger(
        job_name=name,
        job_namespace=namespace,
        pod_names=[f"{name}-0"],
        pod_namespace=namespace,
        base_container_name="main",
        kubernetes_conn_id="kubernetes_default",
        poll_interval=PEER_POLL_S,
        get_logs=False,
    )


KINDS: dict[str, Callable[[str, str, str], BaseTrigger]] = {"ours": ours, "peer": peer}


class Waits:
    """The triggers of one provider that this process runs, and the events that they sent."""

    def __init__(self, who: str, namespace: str) -> None:
        self.who, self.namespace = who, namespace
        self.tasks: list[asyncio.Task[None]] = []
        self.events: dict[str, tuple[float, Any]] = {}
        """By the name of the Job, the Unix time and the status of its event."""

    def start(self, name: str, uid: str) -> None:
        """Start the trigger of one gang."""
        self.tasks.append(asyncio.create_task(self._wait(name, uid)))

    async def _wait(self, name: str, uid: str) -> None:
        async for event in KINDS[self.who](name, uid, self.namespace).run():
            self.events[name] = (time.time(), event.payload["status"])

    async def stay(self, seconds: float) -> None:
        """Let the triggers wait for this time. No trigger may end."""
        await asyncio.sleep(seconds)
        ended = [task for task in self.tasks if task.done()]
        assert not ended, f"{len(ended)} triggers ended: {ended[0]}"

    async def finish(self, seconds: float) -> None:
        """Wait until all triggers have ended.

        Raises:
            TimeoutError: this takes longer than `seconds`.
        """
        async with asyncio.timeout(seconds):
            await asyncio.gather(*self.tasks)


async def start_all(waits: Waits, uids: dict[str, str], watch: LoopWatch) -> dict[str, Any]:
    """Start the trigger of one gang, and then the triggers of the other gangs. Return the figures of both."""
    names = iter(uids.items())
    waits.start(*next(names))
    await wait_until_settled(waits.who)
    idle_mb = rss_mb(collect=True)
    first = watch.take()
    await skip_measurement(watch)
    began, cpu = time.monotonic(), time.process_time()
    full_gcs = gc.get_stats()[2]["collections"]
    for name, uid in names:
        await asyncio.sleep(0)  # as a triggerer does before it starts a trigger
        waits.start(name, uid)
    await wait_until_settled(waits.who)
    start = {
        "start_s": time.monotonic() - began,
        "start_cpu_s": time.process_time() - cpu,
        "full_gcs": gc.get_stats()[2]["collections"] - full_gcs,
        **watch.take(),
    }
    kb_per_gang = (rss_mb(collect=True) - idle_mb) * 1024 / len(uids)
    return {"first": first, "start": start, "kb_per_gang": round(kb_per_gang, 1)}


async def skip_measurement(watch: LoopWatch) -> None:
    """Discard what `watch` has measured in the current callback, such as a garbage collection of the benchmark."""
    await asyncio.sleep(0)
    watch.take()


async def main(who: str, gangs: dict[str, Any], mode: str, seconds: float) -> None:
    """Run the triggers of all gangs, and print the figures. The process ends with this function."""
    KINDS[who]("", "", "")  # A triggerer has loaded Airflow and the module of the trigger before it runs a trigger.
    if who == "ours":  # Airflow reads its list of all metrics at the first metric of a process, for 0.2 s.
        from airflow_provider_gangjobs.attempt.metrics import airflow_stats

        airflow_stats().incr("triggers.blocked_main_thread", 0)
    watch = LoopWatch()
    if mode != "cpu":
        watch.install()
    ticking = asyncio.create_task(watch.tick())
    waits = Waits(who, gangs["namespace"])
    started = await start_all(waits, gangs["uids"], watch)
    print_json(ready=True)
    signal.alarm(round(seconds) + END_LIMIT_S)
    await skip_measurement(watch)
    if mode != "events":
        ticking.cancel()  # The timer costs more CPU than a thousand gangs.
    since, cpu, began = datetime.now(UTC), time.process_time(), time.monotonic()
    await (waits.stay(seconds) if mode == "idle" else waits.finish(seconds))
    print_json(
        cpu_s=time.process_time() - cpu,
        took_s=time.monotonic() - began,
        steady=watch.take(),
        **started,
        since=since.isoformat(),
        until=datetime.now(UTC).isoformat(),
        rss_mb=round(rss_mb(collect=True), 1),
        events=waits.events,
        **provider_figures(who),
    )
    os._exit(0)  # The end of the triggers that still wait is not measured.


async def wait_until_settled(who: str) -> None:
    """Wait until all triggers have started, so that the process uses little CPU.

    The peer polls, so it gets two polls.
    """
    if who == "peer":
        await asyncio.sleep(2 * PEER_POLL_S)
        return
    quiet = -4  # The first connection is not opened at once.
    for _ in range(240):
        cpu = time.process_time()
        await asyncio.sleep(0.5)
        quiet = quiet + 1 if time.process_time() - cpu < 0.05 else 0
        if quiet >= 3:
            break


def provider_figures(who: str) -> dict[str, int]:
    """Return what the provider has counted. The peer counts nothing."""
    if who == "peer":
        return {}
    from airflow_provider_gangjobs.cluster.informer import informers

    return {
        "watched_resources": len(informers().statistics()),
        "requests": sum(sum(client.requests.values()) for client in informers().client_statistics().values()),
    }


if __name__ == "__main__":
    logging.disable(logging.INFO)
    signal.alarm(int(sys.argv[5]))
    asyncio.run(main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), sys.argv[3], float(sys.argv[4])))

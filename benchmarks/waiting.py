"""The process under test: it runs a number of triggers of one provider as a triggerer runs them.

`python -m benchmarks.waiting ours|peer GANGS.json idle|events|cpu SECONDS START_LIMIT`. Prints one JSON object a line:
`ready` when all wait, and the result at the end. `cpu` is `events` without the watch over the loop, which takes a
fifth of what it watches. With BENCH_PROFILE set, a profile of the time between goes there.
Ends itself if it has not begun within its limit, or not finished within the seconds.
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
from cProfile import Profile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.loop_watch import LoopWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.triggers.base import BaseTrigger

PEER_POLL_S = 10.0
END_LIMIT_S = 30


def ours(name: str, uid: str, namespace: str) -> BaseTrigger:
    from airflow_provider_gangjobs.triggers.gang_job import GangJobTrigger

    return GangJobTrigger(kubernetes_conn_id="kubernetes_default", namespace=namespace, name=name, uid=uid)


def peer(name: str, uid: str, namespace: str) -> BaseTrigger:
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


async def main(who: str, gangs: dict[str, Any], mode: str, seconds: float) -> None:
    KINDS[who]("", "", "")  # a triggerer has loaded Airflow, and the trigger's module, before it runs any
    watch = LoopWatch()
    if mode != "cpu":
        watch.install()
    ticking = asyncio.create_task(watch.tick())
    events: dict[str, tuple[float, Any]] = {}
    names = iter(gangs["uids"].items())

    async def wait(name: str, uid: str) -> None:
        async for event in KINDS[who](name, uid, gangs["namespace"]).run():
            events[name] = (time.time(), event.payload["status"])

    first = asyncio.create_task(wait(*next(names)))
    await settled(who)
    idle_kb = rss_kb()
    first_of_all = watch.take()
    await asyncio.sleep(0)
    watch.take()
    began, cpu = time.monotonic(), time.process_time()
    full_gcs = gc.get_stats()[2]["collections"]
    tasks = [first]
    for name, uid in names:
        await asyncio.sleep(0)  # as a triggerer does before each
        tasks.append(asyncio.create_task(wait(name, uid)))
    await settled(who)
    start = {
        "start_s": time.monotonic() - began,
        "start_cpu_s": time.process_time() - cpu,
        "full_gcs": gc.get_stats()[2]["collections"] - full_gcs,
        **watch.take(),
    }
    gang_kb = (rss_kb() - idle_kb) / len(gangs["uids"])
    print_json(ready=True)
    signal.alarm(round(seconds) + END_LIMIT_S)
    await asyncio.sleep(0)
    watch.take()
    since, cpu, began = datetime.now(UTC), time.process_time(), time.monotonic()
    profile = Profile() if os.environ.get("BENCH_PROFILE") else None
    if profile is not None:
        profile.enable()
    if mode != "events":
        ticking.cancel()  # it would cost more than a thousand gangs
    if mode == "idle":
        since, cpu, began = datetime.now(UTC), time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        ended = [task for task in tasks if task.done()]
        assert not ended, f"{len(ended)} triggers ended: {ended[0]}"
    else:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*tasks)
    if profile is not None:
        profile.disable()
        profile.dump_stats(os.environ["BENCH_PROFILE"])
    result = {
        "cpu_s": time.process_time() - cpu,
        "took_s": time.monotonic() - began,
        "steady": watch.take(),
        "first": first_of_all,
        "since": since.isoformat(),
        "until": datetime.now(UTC).isoformat(),
        "kb_per_gang": round(gang_kb, 1),
        "rss_mb": round(rss_kb() / 1024, 1),
        "start": start,
        "events": events,
        "statistics": statistics(who),
        "requests": requests(who),
        "watches": sum(one["watches"] for one in statistics(who).values()),
    }
    print_json(**result)
    ticking.cancel()
    os._exit(0)  # the triggers wait for ever, and their end is not measured


async def settled(who: str) -> None:
    """All triggers have started: little CPU is used for a while. The peer never rests, so it gets two polls."""
    if who == "peer":
        await asyncio.sleep(2 * PEER_POLL_S)
        return
    quiet = -4  # the first connection takes a moment to begin
    for _ in range(240):
        cpu = time.process_time()
        await asyncio.sleep(0.5)
        quiet = quiet + 1 if time.process_time() - cpu < 0.05 else 0
        if quiet >= 3:
            break


def statistics(who: str) -> dict[str, Any]:
    if who == "peer":
        return {}
    from airflow_provider_gangjobs.cluster.informer import informers

    return {
        name.partition(": ")[2]: {
            "objects": one.objects,
            "subscriptions": one.subscriptions,
            "lists": one.lists,
            "watches": one.watches_opened,
            "events": one.events,
        }
        for name, one in informers().statistics().items()
    }


def requests(who: str) -> int:
    """Sent so far, by our own count; the peer has none."""
    if who == "peer":
        return 0
    from airflow_provider_gangjobs.cluster.informer import informers

    return sum(sum(client.requests.values()) for client in informers().client_statistics().values())


def rss_kb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def print_json(**line: Any) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    signal.alarm(int(sys.argv[5]))
    asyncio.run(main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), sys.argv[3], float(sys.argv[4])))

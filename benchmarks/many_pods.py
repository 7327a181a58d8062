"""What the client needs for very large gangs: the store, the looks, and the loop's other work meanwhile.

One gang of 100,000 pods is listed in pages and then ends, pod by pod, as watch events; no server takes part, so that
the figures are the client's own. A look is what the follower takes while the pods change.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from pathlib import Path
from typing import Any

from airflow_provider_gangjobs.cluster.informer.decoding import Views, read_event, read_page
from airflow_provider_gangjobs.cluster.informer.store import Store
from airflow_provider_gangjobs.cluster.pacing import Slices
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.lifecycle import observe
from airflow_provider_gangjobs.gang.pods import pods_of
from airflow_provider_gangjobs.objects.views import JobView, PodView, view
from airflow_provider_gangjobs.tracking.sights import gang_of
from benchmarks.harness import Report, arguments
from benchmarks.loop_watch import LoopWatch
from benchmarks.world import job_manifest, now, pod_manifest, running, succeeded

PAGE = 500
NAME = "gang"


def main() -> None:
    options = arguments(__doc__, pods=100_000)
    sizes = [options.pods] if options.pods else [1_000, 10_000] if options.quick else [10_000, 30_000, 100_000]
    report = Report("many pods", "decoding one page and one event is msgspec's, 6 to 9 us a pod; linear is the aim")
    for pods in sizes:
        report.add(who=f"{pods:,} pods", **asyncio.run(_measure(pods)))
    report.publish(options.out)


async def _measure(pods: int) -> dict[str, Any]:
    watch = LoopWatch()
    watch.install()
    ticking = asyncio.create_task(watch.tick())
    job = {**job_manifest(NAME, pods), "status": {"active": pods, "startTime": now()}}
    job["metadata"] |= {"uid": "job-uid", "namespace": "n", "resourceVersion": "1"}
    store: Store[PodView] = Store(gang_of)
    subscription = store.subscribe(NAME)
    views, slices = Views(PodView), Slices()
    gc.collect()
    before_mb, cpu = _rss_mb(), time.process_time()
    relist = store.relist()
    for first in range(0, pods, PAGE):
        body = _page(job, range(first, min(first + PAGE, pods)))
        cpu += body.cost
        await asyncio.sleep(0)  # as at each request: making the page is not what is measured
        for one in views.read_all(read_page(body.text).items):
            relist.put(one)
            await slices.breathe()
    relist.finish()
    listed = time.process_time() - cpu
    events_cpu = 0.0
    for index in range(pods):
        line = _event(job, index)
        began = time.process_time()
        read = views.read(read_event(line).object)
        assert read is not None
        store.put(read)
        events_cpu += time.process_time() - began
        await slices.breathe()
    await asyncio.sleep(0.1)
    memory_mb = _rss_mb() - before_mb
    watch.take()
    began = time.process_time()
    ref = GangRef("n", NAME, "job-uid")
    seen = list(subscription.objects().values())
    observation = await asyncio.to_thread(observe, view(JobView, job), seen, None, ref)
    look_s = time.process_time() - began
    await asyncio.sleep(0.1)
    look = watch.take()
    assert observation.counts.created == len(pods_of(ref, subscription.objects().values())) == pods
    ticking.cancel()
    return {
        "list_cpu_s": round(listed, 2),
        "events_cpu_s": round(events_cpu, 2),
        "look_cpu_s": round(look_s, 2),
        "memory_mb": round(memory_mb, 1),
        "kb_per_pod": round(memory_mb * 1024 / pods, 2),
        "longest_block_at_a_look_ms": look["longest_callback_ms"],
        "lag_at_a_look_ms": look["lag_max_ms"],
        "longest_gc_ms": look["longest_gc_ms"],
    }


class _Body:
    """A page as text, and the CPU seconds that making it took."""

    def __init__(self, items: list[dict[str, Any]], began: float) -> None:
        listing = {"metadata": {"resourceVersion": "1"}, "items": items}
        self.text = json.dumps(listing).encode()
        self.cost = time.process_time() - began


def _page(job: dict[str, Any], indexes: range) -> _Body:
    began = time.process_time()
    return _Body([_pod(job, index, running(), version="1") for index in indexes], began)


def _event(job: dict[str, Any], index: int) -> bytes:
    pod = _pod(job, index, succeeded('{"accuracy": 0.98}'), version="2")
    return json.dumps({"type": "MODIFIED", "object": pod}).encode()


def _pod(job: dict[str, Any], index: int, status: dict[str, Any], *, version: str) -> dict[str, Any]:
    pod = pod_manifest(job, index) | status
    pod["metadata"] |= {"uid": f"uid-{index}", "namespace": "n", "resourceVersion": version, "creationTimestamp": now()}
    return pod


def _rss_mb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()

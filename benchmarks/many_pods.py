"""The memory and CPU that the client needs for very large gangs, and how long it blocks the loop.

1. store: one gang of 100,000 pods is listed in pages, ends pod by pod as watch events, and is listed again. There is no
   server, so the figures are those of decoding and storing alone.
2. follower: the same gang is followed over HTTP from its first list to its event, as in a triggerer: watches, the
   ledger, the release of the pods that are still held, and the last list. The server is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import TimeSlice
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.cluster.informer.reflector import ViewDecoder
from airflow_provider_gangjobs.cluster.informer.store import Store
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.kube.views import PodView, interner_of
from airflow_provider_gangjobs.tracking.follow import follow
from airflow_provider_gangjobs.tracking.watch.gang_watch import DEFAULT_LIMITS, gang_of
from benchmarks.harness import Report, arguments, rss_mb, run_module, ticks
from benchmarks.loop_watch import LoopWatch
from benchmarks.population import GANG, JOB_UID, NAMESPACE, Population
from benchmarks.synthetic_api import SyntheticApi, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE: Final = 500
HELD_EVERY: Final = 10
"""One pod in so many is still held when it ends. `benchmarks.harvest` measures the release of pods."""
ENDS_PER_S: Final = 5000
GOALS: Final = {
    "memory_mb": "200 at 100,000 pods, over an idle process",
    "longest_callback_ms": "50",
    "cpu_s": "linear",
}


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in PARTS:
        part, pods = sys.argv[1:]
        print(json.dumps(asyncio.run(PARTS[part](int(pods)))))
        return
    options = arguments(__doc__, pods=100_000)
    sizes = [options.pods] if options.pods else [1_000, 10_000] if options.quick else [10_000, 30_000, 100_000]
    limit = f"decoding alone: {_decoding_us():.1f} us a pod, of which {len(Population(1).ended(0, 1)):,} bytes come"
    report = Report("many pods", limit)
    report.notes += [f"Goal for {name}: {goal}" for name, goal in GOALS.items()]
    for part in PARTS:
        for pods in sizes:
            report.add(who=f"{part}, {pods:,}", **run_module("benchmarks.many_pods", part, pods))
    report.publish(options.out)


def _decoding_us() -> float:
    """Return the CPU microseconds of the JSON decoder alone, for a pod that has ended."""
    line = b'{"type":"MODIFIED","object":' + Population(1).ended(0, 1) + b"}"
    views, best = ViewDecoder(PodView), float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(2000):
            views.decode_events(line)
        best = min(best, time.process_time() - began)
    return best / 2000 * 1e6


# -- the store alone -------------------------------------------------------------------------------------------


async def _store(pods: int) -> dict[str, Any]:
    population = Population(pods)
    watch = LoopWatch()
    watch.install()
    ticking = asyncio.create_task(watch.tick())
    store: Store[PodView] = Store(gang_of, intern=interner_of(PodView))
    subscription = store.subscribe(GANG)
    views = ViewDecoder(PodView)
    rss_mb(collect=True)
    before_mb = rss_mb(collect=True)
    figures: dict[str, Any] = {}
    figures["list_cpu_s"] = await _list_cpu_s(store, views, (population.running(i, i) for i in range(pods)))
    figures["running_mb"] = round(rss_mb(collect=True) - before_mb, 1)
    await _take_all(subscription.take_updated)
    figures["events_cpu_s"] = await _events_cpu_s(store, views, (population.ended(i, pods + i) for i in range(pods)))
    figures["memory_mb"] = round(rss_mb(collect=True) - before_mb, 1)
    figures["kb_per_pod"] = round(figures["memory_mb"] * 1024 / pods, 2)
    assert await _take_all(subscription.take_updated) == pods
    figures["relist_cpu_s"] = await _list_cpu_s(store, views, (population.ended(i, pods + i) for i in range(pods)))
    figures["after_relist_mb"] = round(rss_mb(collect=True) - before_mb, 1)
    assert not subscription.take_updated()
    figures["all_gone_cpu_s"] = await _list_cpu_s(store, views, iter(()))
    assert await _take_all(subscription.take_deleted) == pods
    figures |= _of_loop(watch)
    ticking.cancel()
    return figures


async def _take_all(take: Callable[[int], dict[str, PodView]]) -> int:
    """Take all pods in batches, as a follower does, and return their number."""
    time_slice, number = TimeSlice(), 0
    while some := take(DEFAULT_LIMITS.batch_pods):
        number += len(some)
        await time_slice.yield_if_due()
    return number


async def _list_cpu_s(store: Store[PodView], views: ViewDecoder[PodView], pods: Iterator[bytes]) -> float:
    """Put the pods into the store page by page, as the reflector does, and return the CPU seconds."""
    time_slice, cpu = TimeSlice(), 0.0
    relist = store.relist()
    while page := [body for _, body in zip(range(PAGE), pods, strict=False)]:
        body = b'{"metadata":{"resourceVersion":"1"},"items":[' + b",".join(page) + b"]}"
        await asyncio.sleep(0)  # As at each request. The making of the page is not measured.
        began = time.process_time()
        for view in views.decode_page(body).items:
            assert isinstance(view, PodView)
            relist.put(view)
            await time_slice.yield_if_due()
        cpu += time.process_time() - began
    began = time.process_time()
    await relist.finish(time_slice)
    return round(cpu + time.process_time() - began, 2)


async def _events_cpu_s(store: Store[PodView], views: ViewDecoder[PodView], pods: Iterator[bytes]) -> float:
    """Put the pods into the store as watch events, and return the CPU seconds."""
    time_slice, cpu = TimeSlice(), 0.0
    for number, body in enumerate(pods):
        line = b'{"type":"MODIFIED","object":' + body + b"}"
        if number % 100 == 0:
            await asyncio.sleep(0)  # The making of the lines is not measured.
        began = time.process_time()
        for event in views.decode_events(line):
            assert isinstance(event.object, PodView)
            store.put(event.object)
        cpu += time.process_time() - began
        await time_slice.yield_if_due()
    return round(cpu, 2)


# -- a follower ------------------------------------------------------------------------------------------------


async def _follower(pods: int) -> dict[str, Any]:
    watch = LoopWatch()
    watch.install()
    with serving(Population(1, HELD_EVERY)) as api:
        await _follow_to_the_end(api, 1, seconds=0.1, on_synced=lambda: None)  # A process loads libraries once.
    watch.take()
    peak = _Peak()
    ticking = [asyncio.create_task(watch.tick()), asyncio.create_task(peak.sample())]
    figures: dict[str, Any] = {}
    cpu, began = time.process_time(), time.monotonic()

    def synced() -> None:
        figures["list_cpu_s"] = round(time.process_time() - cpu, 2)
        figures["running_mb"] = round(rss_mb() - peak.before_mb, 1)

    with serving(Population(pods, HELD_EVERY)) as api:
        counted = await _follow_to_the_end(api, pods, seconds=pods / ENDS_PER_S, on_synced=synced)
    figures["cpu_s"] = round(time.process_time() - cpu, 2)
    figures["seconds"] = round(time.monotonic() - began, 1)
    figures["memory_mb"] = round(peak.highest_mb - peak.before_mb, 1)
    figures["kb_per_pod"] = round(figures["memory_mb"] * 1024 / pods, 2)
    figures["requests_per_held_pod"] = round(sum(counted["requests"].values()) / (pods / HELD_EVERY), 2)
    assert counted["recorded"] == pods
    assert counted["released"] == len(range(0, pods, HELD_EVERY))
    figures |= _of_loop(watch)
    for task in ticking:
        task.cancel()
    return figures


async def _follow_to_the_end(
    api: SyntheticApi, pods: int, *, seconds: float, on_synced: Callable[[], None]
) -> dict[str, Any]:
    """Follow the gang while its pods end, and return the counters of the server."""
    config = ClusterConfig.from_extras("benchmark", {"kube_config": api.kubeconfig()})
    following = asyncio.create_task(_follow(config))
    async with api.control() as control:
        async for _ in ticks(0.1):
            kept = sum(one.objects for one in informers().statistics().values() if one.synced)
            if kept > pods or following.done():
                break
        on_synced()
        await control.post("/end", json={"seconds": seconds})
        await following
        counted: dict[str, Any] = await (await control.get("/figures")).json()
    await informers().aclose()
    return counted


async def _follow(config: ClusterConfig) -> None:
    async with Client(config) as client:
        event = await follow(client, GangRef(NAMESPACE, GANG, JOB_UID), report=lambda _: None)
    assert event.status is Status.SUCCEEDED, event


# -- measuring -------------------------------------------------------------------------------------------------


class _Peak:
    """The most memory that was in use at any sample, in MiB."""

    def __init__(self) -> None:
        self.before_mb = self.highest_mb = rss_mb(collect=True)

    async def sample(self) -> None:
        async for _ in ticks(0.05):
            self.highest_mb = max(self.highest_mb, rss_mb())


def _of_loop(watch: LoopWatch) -> dict[str, Any]:
    figures = watch.take()
    return {name: figures[name] for name in ("longest_callback_ms", "longest_callback", "longest_gc_ms", "lag_max_ms")}


PARTS: Final = {"store": _store, "follower": _follower}


if __name__ == "__main__":
    main()

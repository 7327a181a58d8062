"""Whether the special paths of the client are worth their code: runs with all special paths, and without one of them.

Every figure comes from a new process that has loaded what a triggerer loads and follows either 1,000 gangs of 8 or one
gang of 20,000: from the first list until each gang has its event. The API server is synthetic, in a process of its
own, with TLS. The processes run in turns, and the figures are medians. A special path stays if a user would notice
its absence: at least a fifth of the CPU or memory of a triggerer, or of the time of a run.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import airflow_provider_gangjobs.triggers.gang_job  # noqa: F401 - as in a triggerer, with all of Airflow
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.cluster.informer.factory import InformerFactory
from airflow_provider_gangjobs.cluster.informer.reflector import InformerConfig
from airflow_provider_gangjobs.cluster.loop_local import WakeupQueue, set_loop_local
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.tracking.follow import follow
from benchmarks.harness import Report, arguments, log_progress, median, rss_mb, run_module, ticks
from benchmarks.population import NAMESPACE, Population, gang_name, job_uid
from benchmarks.synthetic_api import serving

if TYPE_CHECKING:
    from benchmarks.synthetic_api import SyntheticApi

ENDS_PER_S: Final = 2000
IDLE_S: Final = 0.5
IDLE_CPU_S: Final = 0.03
"""A process that uses less CPU than this in `IDLE_S` is idle."""
SAMPLE_S: Final = 0.05
SHIPPED: Final = "all"
SPECIAL_PATHS: Final = ("interning", "limited-wakeups")
FIGURES: Final = ("cpu_s", "triggerer_mb", "after_end_s")
"""The figures that a user may notice."""
NOTICEABLE: Final = 0.2


@dataclass(frozen=True)
class Shape:
    """A number of gangs of equal size."""

    gangs: int
    pods: int
    """The number of pods of each gang."""

    @property
    def title(self) -> str:
        return f"{self.gangs:,} of {self.pods:,}"


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "run":
        variant, gangs, pods = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        print(json.dumps(asyncio.run(_run(variant, Shape(gangs, pods)))))
        return
    options = arguments(__doc__, choices={"without": SPECIAL_PATHS}, gangs=1000, pods=20_000, rounds=3)
    many = Shape(options.gangs or (100 if options.quick else 1000), 8)
    large = Shape(1, options.pods or (2000 if options.quick else 20_000))
    report = Report("special paths", f"the row `{SHIPPED}`: every special path, as the provider runs")
    for shape in (many, large):
        _compare(report, shape, options.without, options.rounds or (1 if options.quick else 3))
    report.publish(options.out)


def _compare(report: Report, shape: Shape, without: list[str], rounds: int) -> None:
    runs: dict[str, list[dict[str, float]]] = {variant: [] for variant in (SHIPPED, *without)}
    for number in range(rounds):
        for variant, results in runs.items():
            log_progress(f"{shape.title}, round {number + 1} of {rounds}: {variant}")
            results.append(run_module("benchmarks.special_paths", "run", variant, shape.gangs, shape.pods))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    rows = {
        variant: {name: median(one[name] for one in results) for name in results[0]}
        for variant, results in runs.items()
    }
    for variant, row in rows.items():
        report.add(who=f"{shape.title}: {_title(variant)}", **{name: round(value, 2) for name, value in row.items()})
        factors = {name: row[name] / rows[SHIPPED][name] for name in FIGURES if variant != SHIPPED}
        noticed = [f"{name} {factor:.2f} times" for name, factor in factors.items() if factor >= 1 / (1 - NOTICEABLE)]
        if factors:
            report.notes.append(f"{shape.title}, {_title(variant)}: {', '.join(noticed) or 'no noticeable difference'}")


def _title(variant: str) -> str:
    return variant if variant == SHIPPED else f"without {variant}"


# -- the process under test ------------------------------------------------------------------------------------


async def _run(variant: str, shape: Shape) -> dict[str, float]:
    logging.disable(logging.INFO)
    if variant != SHIPPED:
        set_loop_local(InformerFactory, _without(variant))
    with serving(Population(1), secure=True) as api:
        await _follow_all(api, Shape(1, 1))  # A process loads libraries once.
    gc.collect()
    idle_mb, peak = rss_mb(), _Peak()
    sampling = asyncio.create_task(peak.sample())
    with serving(Population(shape.gangs * shape.pods, gangs=shape.gangs), secure=True) as api:
        figures = await _follow_all(api, shape)
    sampling.cancel()
    return figures | {
        "triggerer_mb": peak.highest_mb,
        "memory_mb": peak.highest_mb - idle_mb,
        "timer_cpu_max_ms": peak.longest_cpu_ms,
    }


async def _follow_all(api: SyntheticApi, shape: Shape) -> dict[str, float]:
    """Follow all gangs from their first list to their events, and return the figures."""
    config = ClusterConfig.from_extras("benchmark", {"kube_config": api.kubeconfig()})
    cpu = time.process_time()
    following = [asyncio.create_task(_follow(config, gang)) for gang in range(shape.gangs)]
    await _wait_until_idle(shape)
    start_cpu_s = time.process_time() - cpu
    running_mb = rss_mb()
    seconds = max(shape.gangs * shape.pods / ENDS_PER_S, 0.1)
    began = time.monotonic()
    async with api.control() as control:
        await (await control.post("/end", json={"seconds": seconds})).read()
        await asyncio.gather(*following)
        figures = {
            "cpu_s": time.process_time() - cpu,
            "start_cpu_s": start_cpu_s,
            "after_end_s": time.monotonic() - began,
            "running_mb": running_mb,
        }
        counted = await (await control.get("/figures")).json()
    assert counted["recorded"] == counted["released"] == shape.gangs * shape.pods, counted
    await informers().aclose()
    return figures


async def _follow(config: ClusterConfig, gang: int) -> None:
    event = await follow(config, GangRef(NAMESPACE, gang_name(gang), job_uid(gang)), report=lambda _: None)
    assert event.status is Status.SUCCEEDED, event


async def _wait_until_idle(shape: Shape) -> None:
    """Wait until the informers have all objects and the process uses hardly any CPU."""
    expected = shape.gangs * shape.pods + shape.gangs
    async for _ in ticks(SAMPLE_S):
        if sum(one.objects for one in informers().statistics().values() if one.synced) >= expected:
            break
    cpu = -1.0
    async for _ in ticks(IDLE_S):
        if time.process_time() - cpu < IDLE_CPU_S:
            break
        cpu = time.process_time()


def _without(special_path: str) -> InformerFactory:
    """Return the informers and clients of a process that uses every special path except this one.

    Raises:
        ValueError: there is no such special path.
    """
    match special_path:
        case "interning":
            return InformerFactory(config=InformerConfig(intern=False))
        case "limited-wakeups":
            set_loop_local(WakeupQueue, WakeupQueue(None))
            return InformerFactory()
    raise ValueError(special_path)


class _Peak:
    """The largest resident set, and the longest CPU time until the event loop runs a timer, of all samples.

    CPU time does not depend on the other processes of the machine, as a delay does.
    """

    highest_mb = 0.0
    longest_cpu_ms = 0.0

    async def sample(self) -> None:
        before = time.thread_time()
        async for _ in ticks(SAMPLE_S):
            now = time.thread_time()
            self.longest_cpu_ms, before = max(self.longest_cpu_ms, (now - before) * 1000), now
            self.highest_mb = max(self.highest_mb, rss_mb())


if __name__ == "__main__":
    main()

"""Gangs in a queue of the real Kueue: the time until all ranks have a node, and the cost of gangs that wait there.

*Bound*: in turns, the benchmark creates a Job itself, and the provider submits the same Job, without a queue and into a
queue of Kueue with a quota, on a control plane with hollow nodes. The time is from the first request until the last pod
has a node. `provider, gang` is the same Job as a gang of the Workload API.

*Wait*: as many gangs wait in one queue as wait for room without a queue. A process follows each group as a triggerer
does.

`make clusters` builds the control plane and the manager of Kueue.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.errors import NotFound
from airflow_provider_gangjobs.cluster.http.transport import WatchLimits
from airflow_provider_gangjobs.cluster.kueue import watched_workloads
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.service import GangService
from benchmarks.api_server import (
    Json,
    admin_config,
    control_plane,
    gang_job,
    gang_spec,
    hollow_nodes,
    run_all,
    watched_objects,
)
from benchmarks.harness import Report, arguments, log_progress
from benchmarks.waiting_process import IDLE_FIGURES, idle_figures, waiting_process
from tests.queues.kueue.manager import running_kueue
from tests.queues.tenants import kueue_tenant

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

KUEUE_RELEASE: Final = "0.15"
QUEUE: Final = "team"
LABEL_RUN: Final = "benchmark-run"
SIZES: Final = (1, 100, 1000)
QUICK_SIZES: Final = (1, 10)
NODES: Final = 4
POD_LASTS_S: Final = 3.0
WITHIN_S: Final = 300.0
START_LIMIT_S: Final = 300
QUIET_S: Final = 10.0
"""How long Kueue changes no Workload before the cost of waiting is measured."""


def main() -> None:
    options = arguments(__doc__, gangs=(1000, 50), rounds=(3, 1), seconds=(60, 20))
    gangs, rounds, seconds = options.gangs, options.rounds, options.seconds
    report = Report("queues", "the same Job written by hand, with the label of the queue or without a queue")
    with control_plane() as plane, running_kueue(plane, KUEUE_RELEASE) as kueue:
        log_progress("the control plane and Kueue run")
        with hollow_nodes(plane, NODES, lasts_s=POD_LASTS_S), kueue_tenant(plane, "bound") as tenant:
            kueue.create_queue(tenant.namespace, name=QUEUE, cpu="1000")
            for row in asyncio.run(_measure_bound(tenant, QUICK_SIZES if options.quick else SIZES, rounds)):
                report.add(**row)
        for who, queue in (("wait, native", None), ("wait, Kueue", QUEUE)):
            log_progress(f"{gangs:,} gangs: {who}")
            with kueue_tenant(plane, who) as tenant:
                report.add(who=who, gangs=gangs, **_measure_wait(kueue, tenant, queue, gangs, seconds))
    report.publish(options.out)


# -- until all ranks have a node -----------------------------------------------------------------------------------


async def _measure_bound(tenant: Tenant, sizes: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """Return one row for each contender, with the median of its rounds for each size."""
    rows: dict[str, dict[str, Any]] = {}
    async with (
        Client(admin_config(tenant.plane, tenant.namespace)) as admin,
        GangService.connect(tenant.config) as gangs,
    ):
        contenders: dict[str, Callable[[str, int], Awaitable[object]]] = {
            "by hand": lambda run, pods: _by_hand(admin, tenant.namespace, run, pods, None),
            "provider": lambda run, pods: _by_provider(gangs, run, pods),
            "provider, gang": lambda run, pods: _by_provider(gangs, run, pods, gang="required"),
            "by hand, Kueue": lambda run, pods: _by_hand(admin, tenant.namespace, run, pods, QUEUE),
            "provider, Kueue": lambda run, pods: _by_provider(gangs, run, pods, queue_name=QUEUE),
        }
        for pods in sizes:
            took: dict[str, list[float]] = {who: [] for who in contenders}
            for number in range(-1, rounds):  # The first round fills connections and caches, for all contenders.
                for index, (who, submit) in enumerate(contenders.items()):
                    log_progress(f"{pods} pods, {who}, round {number + 1} of {rounds}")
                    run = f"run-{pods}-{number + 1}-{index}"
                    seconds = await _bound_s(admin, tenant.namespace, run, pods, submit)
                    if number >= 0:
                        took[who].append(seconds)
            for who, times in took.items():
                rows.setdefault(who, {"who": who})[f"s_until_{pods}_bound"] = median(times)
    return list(rows.values())


async def _bound_s(
    admin: Client, namespace: str, run: str, pods: int, submit: Callable[[str, int], Awaitable[object]]
) -> float:
    """Return the seconds from the first request until all pods have a node. The pods are deleted afterwards."""
    is_watching = asyncio.Event()
    bound = asyncio.create_task(_wait_until_bound(admin, namespace, run, pods, is_watching))
    await is_watching.wait()
    began = time.perf_counter()
    await submit(run, pods)
    ended = await asyncio.wait_for(bound, WITHIN_S)
    await _remove(admin, namespace, run)
    return ended - began


async def _wait_until_bound(admin: Client, namespace: str, run: str, pods: int, opened: asyncio.Event) -> float:
    """Return the time at which a watch has shown as many pods with a node."""
    bound: set[str] = set()
    selector = f"{LABEL_RUN}={run}"
    watched = watched_objects(
        admin, PODS, namespace, "0", label_selector=selector, limits=WatchLimits(WITHIN_S), on_open=opened.set
    )
    async with aclosing(watched):
        async for pod in watched:
            if pod["spec"].get("nodeName"):
                bound.add(pod["metadata"]["uid"])
            if len(bound) >= pods:
                break
    return time.perf_counter()


async def _by_hand(admin: Client, namespace: str, run: str, pods: int, queue: str | None) -> None:
    job = _job(run, pods, queue)
    job["spec"]["suspend"] = queue is not None
    await admin.create(JOBS, job, namespace)


def _job(name: str, pods: int, queue: str | None) -> Json:
    """Return a Job that has nothing of the provider but its pods."""
    job = gang_job(name, "", pods)
    job["metadata"] = {"name": name, "labels": {LABEL_RUN: name, **({LABEL_KUEUE_QUEUE: queue} if queue else {})}}
    job["spec"]["template"]["metadata"] = {"labels": {LABEL_RUN: name}}
    return job


async def _by_provider(gangs: GangService, run: str, pods: int, **parameters: Any) -> None:
    spec = gang_spec(pods, labels={LABEL_RUN: run}, **parameters)
    await gangs.submit(spec, key=TaskKey("bench", run, "train"), claim="bench")


async def _remove(admin: Client, namespace: str, run: str) -> None:
    """Delete the Job and its pods, and wait until they are gone."""
    selector = f"{LABEL_RUN}={run}"
    for job in await admin.list(JOBS, namespace, label_selector=selector):
        await admin.delete(JOBS, job["metadata"]["name"], namespace)
    async with asyncio.timeout(WITHIN_S):
        while pods := await admin.list(PODS, namespace, label_selector=selector):
            await run_all(partial(_release, admin, namespace), pods)
            await asyncio.sleep(0.5)


async def _release(admin: Client, namespace: str, pod: Json) -> None:
    name = pod["metadata"]["name"]
    with suppress(NotFound):  # the garbage collector deletes the pods, too
        if pod["metadata"].get("finalizers"):
            await admin.patch(PODS, name, namespace, {"metadata": {"finalizers": None}})
        await admin.delete(PODS, name, namespace, grace_period_s=0)


# -- gangs that wait -----------------------------------------------------------------------------------------------


def _measure_wait(kueue: Kueue, tenant: Tenant, queue: str | None, gangs: int, seconds: int) -> dict[str, Any]:
    """Measure a process that follows gangs of one pod, none of which can run."""
    if queue is not None:
        kueue.create_queue(tenant.namespace, name=queue, cpu="1m")
    uids = asyncio.run(_write_waiting(tenant, queue, gangs))
    if queue is not None:
        asyncio.run(_wait_until_judged(tenant, gangs))
    with waiting_process(tenant, "ours", uids, "idle", seconds=seconds, start_limit_s=START_LIMIT_S) as waiting:
        result = idle_figures(tenant, waiting, gangs)
    return {
        **{name: round(result[name], 3) for name in IDLE_FIGURES},
        "watched_resources": result["watched_resources"],
        "start_s": round(result["start"]["start_s"], 1),
        "start_cpu_s": round(result["start"]["start_cpu_s"], 2),
    }


async def _write_waiting(tenant: Tenant, queue: str | None, count: int) -> dict[str, str]:
    """Write Jobs that wait: in the queue, which has too little quota, or for a node, of which none has the label."""
    uids: dict[str, str] = {}
    async with Client(admin_config(tenant.plane, tenant.namespace)) as admin:

        async def write(number: int) -> None:
            job = gang_job(f"run-{number}", tenant.namespace, queue_name=queue)
            if queue is not None:  # as the last step of a submission
                job["spec"]["suspend"] = True
                job["metadata"]["labels"][LABEL_KUEUE_QUEUE] = queue
            job["spec"]["template"]["spec"]["nodeSelector"] = {"benchmark": "none"}
            created = await admin.create(JOBS, job, tenant.namespace)
            uids[created["metadata"]["name"]] = created["metadata"]["uid"]

        await run_all(write, range(count))
    return uids


async def _wait_until_judged(tenant: Tenant, count: int) -> None:
    """Wait until Kueue has said of each Workload that the quota does not suffice, and changes no Workload any more."""
    async with Client(admin_config(tenant.plane, tenant.namespace)) as admin, asyncio.timeout(START_LIMIT_S):
        workloads = await watched_workloads(admin)
        assert workloads is not None
        before: list[str] = []
        while True:
            found = await admin.list(workloads, tenant.namespace)
            judged = [one for one in found if one.get("status", {}).get("conditions")]
            versions = sorted(one["metadata"]["resourceVersion"] for one in found)
            if len(judged) == count and versions == before:
                return
            log_progress(f"Kueue has judged {len(judged):,} of {count:,} gangs")
            before = versions
            await asyncio.sleep(QUIET_S)


if __name__ == "__main__":
    main()

"""The limits of the sandbox: one large gang from its creation to its end, while the sandbox answers other clients.

The Job controller creates the pods of the gang, the scheduler places them together, a process of its own writes their
statuses Running and Succeeded over HTTP as kubelets do, and the Job controller counts them. Each step begins when the
step before is done for all pods. A second gang, on the nodes of the sandbox, has a real process in each pod.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.http.request import WatchLimits
from airflow_provider_gangjobs.cluster.resources import PODS as PODS_PATH
from benchmarks.api_server import run_all, running, succeeded
from benchmarks.harness import Report, arguments, rss_mb
from benchmarks.loop_watch import LoopWatch
from gangjobs_sandbox.cluster import Sandbox, SandboxConfig
from gangjobs_sandbox.gc_freeze import gc_frozen
from gangjobs_sandbox.resources import JOBS, NODES, PODGROUPS, PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.process import BaseProcess
    from multiprocessing.synchronize import Event as Flag

    from gangjobs_sandbox.store import Event

NAMESPACE, NAME = "default", "gang"
PODS_PER_NODE = 100
TIMEOUT_S = 900.0
STEPS = ("create", "bind", "run", "complete")


def main() -> None:
    options = arguments(__doc__, pods=5_000, processes=500)
    sizes = [options.pods] if options.pods else [500, 2_000] if options.quick else [1_000, 5_000, 10_000]
    processes = options.processes or (100 if options.quick else 500)
    report = Report(
        "sandbox",
        "one core, because the whole cluster is one event loop. The least cost of a request is `bare request`: "
        "a GET of /version, client and server together",
    )
    for pods in sizes:
        report.add(who=f"{pods:,} hollow pods", **asyncio.run(_hollow(pods)))
    report.add(who=f"{processes:,} processes", **asyncio.run(_processes(processes)))
    report.publish(options.out)


@dataclass
class Milestones:
    """When each step was done for all pods, as wall time and as CPU time of this process, in seconds."""

    pods: int
    done: dict[str, asyncio.Event] = field(default_factory=lambda: {step: asyncio.Event() for step in STEPS})
    at: dict[str, tuple[float, float]] = field(default_factory=dict)
    _created: int = 0
    _bound: int = 0
    _running: int = 0

    def observe(self, event: Event) -> None:
        if event.resource is JOBS and _is_complete(event.obj):
            self._reached("complete")
        if event.resource is not PODS or event.type == "DELETED":
            return
        self._created += event.type == "ADDED"
        self._bound += _became(event, lambda pod: bool(pod["spec"].get("nodeName")))
        self._running += _became(event, lambda pod: pod["status"]["phase"] != "Pending")
        for step, count in zip(STEPS, (self._created, self._bound, self._running), strict=False):
            if count == self.pods:
                self._reached(step)

    def begin(self) -> None:
        self.at["begin"] = time.perf_counter(), time.process_time()

    def _reached(self, step: str) -> None:
        if not self.done[step].is_set():
            self.at[step] = time.perf_counter(), time.process_time()
            self.done[step].set()

    def figures(self) -> dict[str, float]:
        """Return the pods per second of each step, and the CPU milliseconds of this process for each pod."""
        moments = [self.at["begin"], *(self.at[step] for step in STEPS)]
        rates: dict[str, float] = {}
        costs: dict[str, float] = {}
        for step, (began, cpu_began), (ended, cpu_ended) in zip(STEPS, moments, moments[1:], strict=False):
            rates[f"{step}_pods_a_s"] = round(self.pods / (ended - began))
            costs[f"{step}_cpu_ms_a_pod"] = round((cpu_ended - cpu_began) * 1000 / self.pods, 3)
        return {**rates, **costs, "seconds_in_all": round(moments[-1][0] - moments[0][0], 1)}


async def _hollow(pods: int) -> dict[str, Any]:
    async with Sandbox(SandboxConfig(nodes=0)) as sandbox:
        bare_ms = await _bare_request_ms(sandbox)
        for number in range(-(-pods // PODS_PER_NODE)):
            _hollow_node(sandbox, f"hollow-{number}")
        spawn = multiprocessing.get_context("spawn")
        bound = spawn.Event()
        kubelets = spawn.Process(target=_kubelets_main, args=(str(sandbox.kubeconfig_path), bound), daemon=True)
        kubelets.start()
        measuring = asyncio.create_task(_measure(sandbox, pods, {"bind": bound.set}))
        watching = asyncio.create_task(asyncio.to_thread(_fail_when_ended, kubelets))
        try:
            await asyncio.wait([measuring, watching], return_when=asyncio.FIRST_COMPLETED)
            if not measuring.done():
                await watching
            return await measuring | {"bare_request_ms": bare_ms}
        finally:
            measuring.cancel()
            kubelets.terminate()
            await asyncio.gather(watching, return_exceptions=True)


async def _processes(pods: int) -> dict[str, Any]:
    nodes = 5
    async with Sandbox(SandboxConfig(nodes=nodes, cpu=pods, memory="1Ti")) as sandbox:
        return await _measure(sandbox, pods, {})


async def _measure(sandbox: Sandbox, pods: int, after: Mapping[str, Callable[[], None]]) -> dict[str, Any]:
    watch = LoopWatch()
    watch.install()
    ticking = asyncio.create_task(watch.tick())
    milestones = Milestones(pods)
    before_mb = rss_mb(collect=True)
    stop = sandbox.registry.observe(milestones.observe)
    figures: dict[str, Any] = {}
    try:
        with gc_frozen(sandbox.registry):
            watch.take()
            milestones.begin()
            _create_gang(sandbox, pods)
            async with asyncio.timeout(TIMEOUT_S):
                for step in STEPS:
                    await milestones.done[step].wait()
                    figures[step] = watch.take()
                    after.get(step, lambda: None)()
    finally:
        stop()
        ticking.cancel()
    rows = milestones.figures()
    longest = max(figures.values(), key=lambda one: float(one["longest_callback_ms"]))
    rows |= {f"{step}_longest_ms": one["longest_callback_ms"] for step, one in figures.items()}
    rows |= {"longest_callback": longest["longest_callback"]}  # type: ignore[dict-item]
    rows |= {name: max(float(one[name]) for one in figures.values()) for name in ("lag_p99_ms", "longest_gc_ms")}
    return rows | {"memory_kb_a_pod": round((rss_mb(collect=True) - before_mb) * 1024 / pods, 1)}


def _create_gang(sandbox: Sandbox, pods: int) -> None:
    policy = {"gang": {"minCount": pods}}
    sandbox.registry.create(PODGROUPS, {"metadata": {"name": NAME}, "spec": {"schedulingPolicy": policy}}, NAMESPACE)
    container = {"name": "main", "image": "none", "command": ["true"], "resources": {"requests": {"cpu": "1"}}}
    spec = {"restartPolicy": "Never", "schedulingGroup": {"podGroupName": NAME}, "containers": [container]}
    shape = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 0}
    job = {"metadata": {"name": NAME}, "spec": {**shape, "template": {"spec": spec}}}
    sandbox.registry.create(JOBS, job, NAMESPACE)


def _hollow_node(sandbox: Sandbox, name: str) -> None:
    registry = sandbox.registry
    registry.create(NODES, {"metadata": {"name": name}, "spec": {}})
    capacity = {"cpu": str(PODS_PER_NODE), "memory": "1Ti", "pods": str(PODS_PER_NODE)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "hollow"}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
    registry.patch(NODES, name, None, {"status": status}, subresource="status")
    registry.patch(NODES, name, None, {"spec": {"taints": None}})


async def _bare_request_ms(sandbox: Sandbox, *, times: int = 200) -> float:
    """Return the CPU milliseconds of a request that does nothing. Client and server share this process."""
    async with Client(_config(str(sandbox.kubeconfig_path))) as client:
        await client.version()
        async with aclosing(client.watch(PODS_PATH, None, resource_version="0", limits=WatchLimits(1))) as watch:
            async for _ in watch:  # The process loads the code for streams.
                pass
        began = time.process_time()
        for _ in range(times):
            await client.version()
        return round((time.process_time() - began) * 1000 / times, 3)


def _kubelets_main(kubeconfig: str, bound: Flag) -> None:
    """Run the process that writes statuses: when all pods have nodes, first all Running, and then all Succeeded."""
    asyncio.run(_write_statuses(kubeconfig, bound))


async def _write_statuses(kubeconfig: str, bound: Flag) -> None:
    async with Client(_config(kubeconfig)) as client:
        await asyncio.to_thread(bound.wait)
        names = [pod["metadata"]["name"] for pod in await client.list(PODS_PATH, NAMESPACE)]
        for status in (running(), succeeded()):
            await run_all(
                (
                    lambda name=name, status=status: client.patch(
                        PODS_PATH, name, NAMESPACE, status, subresource="status"
                    )
                )  # type: ignore[misc]
                for name in names
            )
        await asyncio.Event().wait()


def _fail_when_ended(kubelets: BaseProcess) -> None:
    """Wait for the end of the process that writes the statuses. It ends early only if it fails.

    Raises:
        RuntimeError: the process has ended.
    """
    kubelets.join()
    raise RuntimeError(f"the process that writes the statuses ended with exit code {kubelets.exitcode}")


def _config(kubeconfig: str) -> ClusterConfig:
    return ClusterConfig.from_extras("sandbox", {"kube_config_path": kubeconfig})


def _became(event: Event, holds: Any) -> bool:
    return holds(event.obj) and (event.old is None or not holds(event.old))


def _is_complete(job: dict[str, Any]) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Complete" and one["status"] == "True" for one in conditions)


if __name__ == "__main__":
    main()

"""The cost of recording each outcome before its pod is released: one Job of many pods on hollow nodes.

In each round, the same Job runs three times on one real control plane, in changing order: without the finalizer of the
provider (`alone`); with the finalizer, and a trigger of the provider in a process of its own (`ours`); and with the
finalizer, and a minimal harvester that patches each pod when the pod ends and records nothing (`naive`). A pod costs
the API server six writes, and the release of the pod is the seventh. Between two runs, everything of the earlier run is
deleted, and the benchmark waits until the server is at rest. Only ratios within a round are goals, because the speed of
a machine varies.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.gang.identity import GangRef, gang_selector
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from airflow_provider_gangjobs.tracking.harvest.ledger import read_ledger
from benchmarks.api_server import admin_config, clear, control_plane, cpu_s, gang_job, hollow_nodes, watched_objects
from benchmarks.harness import Report, Rounds, arguments, line_of, process
from benchmarks.waiting_process import waiting_process
from tests.cluster.tenant import Tenant

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from subprocess import Popen

    from tests.cluster.control_plane import ControlPlane

NODES: Final = 40
CONTENDERS: Final = ("alone", "ours", "naive")
RUN_MAX_S: Final = 600
START_MAX_S: Final = 120
GOALS: Final = (
    ("complete_s", "alone", 1.15),
    ("released_s", "naive", 1.0),
    ("client_cpu_s_per_1000", "naive", 0.85),
)
"""The figures of `ours`, as multiples of those of another row of the same round, at most."""


def main() -> None:
    options = arguments(__doc__, pods=(5000, 500), rounds=(3, 1), nodes=(NODES, NODES), minutes=(30, 30))
    pods, rounds = options.pods, Rounds()
    deadline = time.monotonic() + 60 * options.minutes
    report = Report(
        "harvest",
        "the row `alone`: the same Job without the finalizer, whose time depends on the CPU of the API server",
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with control_plane() as plane, hollow_nodes(plane, options.nodes):
            rounds.measure(
                options.rounds,
                CONTENDERS,
                lambda who: _measure_run(plane, who, pods, min(deadline - time.monotonic(), RUN_MAX_S)),
            )
    except (TimeoutError, KeyboardInterrupt) as exc:
        report.notes.append(f"Stopped early ({type(exc).__name__}). The figures are those measured until then.")
    for who in filter(rounds.of, CONTENDERS):
        row: dict[str, Any] = rounds.medians(who)
        if who != "alone":
            row |= {f"{name}_times_alone": rounds.ratio(who, name, "alone") for name in ("complete_s", "released_s")}
        report.add(who=who, pods=pods, **row)
    for figure, other, goal in GOALS:
        report.notes += rounds.goal("ours", figure, other, goal)
    report.publish(options.out)


def _measure_run(plane: ControlPlane, who: str, pods: int, within_s: float) -> dict[str, Any]:
    """Measure one run, and wait until the server is at rest again.

    Raises:
        TimeoutError: the run took longer than `within_s` seconds.
    """
    with Tenant.created(plane, f"harvest-{who}") as tenant:
        try:
            return asyncio.run(_run(tenant, who, pods, within_s))
        finally:
            clear(tenant)


async def _run(tenant: Tenant, who: str, pods: int, within_s: float) -> dict[str, Any]:
    async with asyncio.timeout(within_s), Client(admin_config(tenant.plane, tenant.namespace)) as client:
        manifest = gang_job(who, tenant.namespace, pods)
        manifest["spec"]["suspend"] = True
        if who == "alone":
            del manifest["spec"]["template"]["metadata"]["finalizers"]
        job = await client.create(JOBS, manifest, tenant.namespace)
        ref = GangRef(tenant.namespace, job["metadata"]["name"], job["metadata"]["uid"])
        with ExitStack() as stack:
            harvester = stack.enter_context(_harvester(tenant, who, pods, ref)) if who != "alone" else None
            result = await _run_to_the_end(client, tenant, who, pods, job, harvester)
        left = await client.list(PODS, tenant.namespace, label_selector=gang_selector(ref.name))
        kept = [pod for pod in left if FINALIZER_HARVEST in pod["metadata"].get("finalizers", ())]
        assert not kept, f"{len(kept)} pods are still held"
        if who == "ours":
            recorded = await read_ledger(client, ref)
            assert {one.uid for one in recorded} == {pod["metadata"]["uid"] for pod in left}, (
                "the ledger has each pod once"
            )
        return result


async def _run_to_the_end(
    client: Client, tenant: Tenant, who: str, pods: int, job: dict[str, Any], harvester: Popen[str] | None
) -> dict[str, Any]:
    server, began = cpu_s(tenant.plane), time.time()
    name = job["metadata"]["name"]
    await client.patch(JOBS, name, tenant.namespace, {"spec": {"suspend": False}})
    watched = watched_objects(
        client, JOBS, tenant.namespace, job["metadata"]["resourceVersion"], field_selector=f"metadata.name={name}"
    )
    async with aclosing(watched):
        async for seen in watched:
            if any(condition["type"] == "Complete" for condition in seen["status"].get("conditions", ())):
                break
    complete_s = time.time() - began
    figures: dict[str, Any] = {"complete_s": complete_s, "released_s": complete_s}
    if harvester is not None:
        result = await asyncio.to_thread(line_of, harvester)
        at, status = result["events"][name]
        assert status == "succeeded", status
        figures |= {
            "released_s": at - began,
            "client_cpu_s_per_1000": result["cpu_s"] / pods * 1000,
            "requests_per_pod": result["requests"] / pods,
            "rss_mb": result["rss_mb"],
        }
    return figures | {"server_cpu_s_per_1000": (cpu_s(tenant.plane) - server) / pods * 1000}


def _harvester(tenant: Tenant, who: str, pods: int, ref: GangRef) -> AbstractContextManager[Popen[str]]:
    """Run a harvester in a process of its own. Its next line of output has its figures."""
    if who == "naive":
        return process("benchmarks.naive", tenant.kubeconfig, ref.namespace, ref.name, pods)
    return waiting_process(tenant, who, {ref.name: ref.uid}, "cpu", seconds=RUN_MAX_S, start_limit_s=START_MAX_S)


if __name__ == "__main__":
    main()

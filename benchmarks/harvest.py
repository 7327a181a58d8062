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
import json
import signal
import sys
import time
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from airflow_provider_gangjobs.tracking.harvest.ledger import read_ledger
from benchmarks.api_server import (
    admin_config,
    clear,
    control_plane,
    cpu_s,
    hollow_nodes,
    job_manifest,
    tenant_of,
    watched_objects,
)
from benchmarks.harness import Report, arguments, line_of, median
from benchmarks.waiting_process import process_under_test, waiting_process

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant

NODES: Final = 40
NAME: Final = "gang"
LABELS: Final = {"gangjobs.airflow/gang": NAME, "gangjobs.airflow/attempt": "1"}
TURNS: Final = (
    ("alone", "ours", "naive"),
    ("naive", "ours", "alone"),
    ("ours", "alone", "naive"),
)
RUN_MAX_S: Final = 600
START_MAX_S: Final = 120
GOALS: Final = (
    ("complete_s", "alone", 1.15),
    ("released_s", "naive", 1.0),
    ("client_cpu_s_per_1000", "naive", 0.85),
)
"""The figures of `ours`, as multiples of those of another row of the same round, at most."""


@dataclass
class _Measured:
    """The figures so far: for each round, the figures of its runs by the name of the row."""

    rounds: list[dict[str, dict[str, Any]]] = field(default_factory=list)

    def of(self, who: str) -> list[dict[str, Any]]:
        return [one[who] for one in self.rounds if who in one]

    def ratio(self, who: str, figure: str, other: str) -> float | None:
        """Return the median of the ratios of two runs within a round; `None` if no round has both."""
        pairs = (one for one in self.rounds if who in one and other in one)
        ratios = [one[who][figure] / one[other][figure] for one in pairs]
        return round(median(ratios), 3) if ratios else None


def main() -> None:
    options = arguments(__doc__, pods=5000, rounds=3, nodes=NODES, minutes=30)
    pods = options.pods or (500 if options.quick else 5000)
    rounds = options.rounds or (1 if options.quick else 3)
    deadline = time.monotonic() + 60 * (options.minutes or 30)
    report = Report(
        "harvest",
        "the row `alone`: the same Job without the finalizer, whose time depends on the CPU of the API server",
    )
    measured = _Measured()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with control_plane() as plane, hollow_nodes(plane, options.nodes or NODES):
            for number in range(rounds):
                measured.rounds.append({})
                for who in TURNS[number % len(TURNS)]:
                    left_s = deadline - time.monotonic()
                    measured.rounds[-1][who] = _measure_run(plane, who, pods, min(left_s, RUN_MAX_S))
                    print(number + 1, who, json.dumps(measured.rounds[-1][who]), file=sys.stderr)
    except (TimeoutError, KeyboardInterrupt) as exc:
        report.notes.append(f"Stopped early ({type(exc).__name__}). The figures are those measured until then.")
    _summarize(report, measured, pods)
    report.publish(options.out)


def _summarize(report: Report, measured: _Measured, pods: int) -> None:
    for who in ("alone", "ours", "naive"):
        runs = measured.of(who)
        if not runs:
            continue
        row: dict[str, Any] = {name: round(median(run[name] for run in runs), 3) for name in runs[0]}
        if who != "alone":
            row |= {f"{name}_times_alone": measured.ratio(who, name, "alone") for name in ("complete_s", "released_s")}
        report.add(who=who, pods=pods, **row)
    for figure, other, goal in GOALS:
        if (ratio := measured.ratio("ours", figure, other)) is not None:
            verdict = "met" if ratio <= goal else "missed"
            report.notes.append(f"Goal: {figure} <= {goal} times `{other}`: {verdict}, {ratio:.2f}")


def _measure_run(plane: ControlPlane, who: str, pods: int, within_s: float) -> dict[str, Any]:
    """Measure one run, and wait until the server is at rest again.

    Raises:
        TimeoutError: the run took longer than `within_s` seconds.
    """
    with tenant_of(plane, f"harvest-{who}") as tenant:
        try:
            return asyncio.run(_run(tenant, who, pods, within_s))
        finally:
            clear(tenant)


async def _run(tenant: Tenant, who: str, pods: int, within_s: float) -> dict[str, Any]:
    async with asyncio.timeout(within_s), Client(admin_config(tenant.plane, tenant.namespace)) as client:
        manifest = job_manifest(NAME, pods, held=who != "alone", labels=LABELS)
        manifest["spec"]["suspend"] = True
        job = await client.create(JOBS, manifest, tenant.namespace)
        with ExitStack() as stack:
            harvester = (
                stack.enter_context(_harvester(tenant, who, pods, job["metadata"]["uid"])) if who != "alone" else None
            )
            result = await _run_to_the_end(client, tenant, who, pods, job, harvester)
        left = await client.list(PODS, tenant.namespace, label_selector=f"gangjobs.airflow/gang={NAME}")
        kept = [pod for pod in left if FINALIZER_HARVEST in pod["metadata"].get("finalizers", ())]
        assert not kept, f"{len(kept)} pods are still held"
        if who == "ours":
            recorded = await read_ledger(client, GangRef(tenant.namespace, NAME, job["metadata"]["uid"]))
            assert {one.uid for one in recorded} == {pod["metadata"]["uid"] for pod in left}, (
                "the ledger has each pod once"
            )
        return result


async def _run_to_the_end(
    client: Client, tenant: Tenant, who: str, pods: int, job: dict[str, Any], harvester: IO[str] | None
) -> dict[str, Any]:
    server, began = cpu_s(tenant.plane), time.time()
    await client.patch(JOBS, NAME, tenant.namespace, {"spec": {"suspend": False}})
    watched = watched_objects(
        client, JOBS, tenant.namespace, job["metadata"]["resourceVersion"], field_selector=f"metadata.name={NAME}"
    )
    async with aclosing(watched):
        async for seen in watched:
            if any(condition["type"] == "Complete" for condition in seen["status"].get("conditions", ())):
                break
    complete_s = time.time() - began
    figures: dict[str, Any] = {"complete_s": complete_s, "released_s": complete_s}
    if harvester is not None:
        result = await asyncio.to_thread(line_of, harvester)
        at, status = result["events"][NAME]
        assert status == "succeeded", status
        figures |= {
            "released_s": at - began,
            "client_cpu_s_per_1000": result["cpu_s"] / pods * 1000,
            "requests_per_pod": result["requests"] / pods,
            "rss_mb": result["rss_mb"],
        }
    return figures | {"server_cpu_s_per_1000": (cpu_s(tenant.plane) - server) / pods * 1000}


def _harvester(tenant: Tenant, who: str, pods: int, uid: str) -> AbstractContextManager[IO[str]]:
    """Run a harvester in a process of its own. Its next line of output has its figures."""
    if who == "naive":
        return process_under_test(tenant, "benchmarks.naive", tenant.kubeconfig, tenant.namespace, NAME, pods)
    return waiting_process(tenant, who, {NAME: uid}, "cpu", seconds=RUN_MAX_S, start_limit_s=START_MAX_S)


if __name__ == "__main__":
    main()

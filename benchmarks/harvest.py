"""The cost of recording each outcome before its pod is released: one Job of many pods on hollow nodes.

In each round, the same Job runs three times on one real control plane, in changing order: without the finalizer of the
provider (`alone`); with the finalizer, and a trigger of the provider in a process of its own (`ours`); and with the
finalizer, and a minimal harvester that patches each pod when the pod ends and records nothing (`naive`). The first
round has one more run: `ours` with a measurement of the callbacks of its event loop, which adds a fifth to its CPU time
(`watched`). The goals are ratios of one round, which depend on the machine less than seconds do. A pod costs the API
server six writes, and the release of the pod is the seventh. Between two runs, everything of the earlier run is
deleted, and the benchmark waits until the server is at rest.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.labels import FINALIZER_HARVEST
from airflow_provider_gangjobs.tracking.harvest.ledger import read_ledger
from benchmarks.api_server import (
    admin_config,
    airflow_environment,
    clear,
    control_plane,
    cpu_s,
    hollow_nodes,
    job_manifest,
    tenant_of,
)
from benchmarks.harness import ROOT, Report, arguments, median, with_bytecode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant

NODES: Final = 40
NAME: Final = "gang"
LABELS: Final = {"gangjobs.airflow/gang": NAME, "gangjobs.airflow/attempt": "1"}
TURNS: Final = (
    ("alone", "ours", "naive", "watched"),
    ("naive", "ours", "alone"),
    ("ours", "alone", "naive"),
)
OURS: Final = ("ours", "watched")
RUN_MAX_S: Final = 600
START_MAX_S: Final = 120
GOALS: Final = (
    ("client CPU, times the naive harvester's", "client_cpu_s_per_1000", "naive", 0.85),
    ("complete, times the Job alone", "complete_s", "alone", 1.15),
    ("last finalizer gone, times the naive harvester's", "released_s", "naive", 1.0),
)


@dataclass
class _Harvester:
    """A harvester in a process of its own. It prints a line of JSON when it is ready, and another with its figures."""

    process: subprocess.Popen[str]

    def read_json(self) -> dict[str, Any]:
        """Return the next line of JSON. Other lines, which Airflow logs, are printed on standard error."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
            print("  harvester:", line.rstrip(), file=sys.stderr)
        raise EOFError("the harvester has ended")


@dataclass
class _Measured:
    """The figures so far: for each round, the figures of its runs by the name of the row."""

    rounds: list[dict[str, dict[str, Any]]] = field(default_factory=list)

    def of(self, who: str) -> list[dict[str, Any]]:
        return [one[who] for one in self.rounds if who in one]

    def times(self, who: str, figure: str, other: str) -> list[float]:
        """Return the ratio of a figure of two rows, for each round that has both."""
        pairs = (one for one in self.rounds if who in one and other in one)
        return [one[who][figure] / one[other][figure] for one in pairs]


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
    for who in ("alone", *OURS, "naive"):
        runs = measured.of(who)
        if not runs:
            continue
        row = {name: round(median(run[name] for run in runs), 3) for name in runs[0]}
        for name in ("complete", "released"):
            times = measured.times(who, f"{name}_s", "alone")
            if times and who != "alone":
                row[f"{name}_times"] = round(median(times), 3)
                report.notes.append(f"{who}, {name}: {', '.join(f'{one:.2f}' for one in times)} times the Job alone")
        report.add(who=who, pods=pods, **row)
    for what, figure, other, goal in GOALS:
        if times := measured.times("ours", figure, other):
            verdict = "met" if median(times) <= goal else "missed"
            report.notes.append(f"Goal: {what} <= {goal}: {verdict}, {median(times):.2f}")


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
            harvester = stack.enter_context(_harvester(tenant, who, pods, job)) if who != "alone" else None
            result = await _run_to_the_end(client, tenant, who, pods, job, harvester)
        left = await client.list(PODS, tenant.namespace, label_selector=f"gangjobs.airflow/gang={NAME}")
        kept = [pod for pod in left if FINALIZER_HARVEST in pod["metadata"].get("finalizers", ())]
        assert not kept, f"{len(kept)} pods are still held"
        if who in OURS:
            recorded = await read_ledger(client, GangRef(tenant.namespace, NAME, job["metadata"]["uid"]))
            assert {one.uid for one in recorded} == {pod["metadata"]["uid"] for pod in left}, (
                "the ledger has each pod once"
            )
        return result


async def _run_to_the_end(
    client: Client, tenant: Tenant, who: str, pods: int, job: dict[str, Any], harvester: _Harvester | None
) -> dict[str, Any]:
    if harvester is not None:
        assert (await asyncio.to_thread(harvester.read_json))["ready"]
    server, began = cpu_s(tenant.plane), time.time()
    await client.patch(JOBS, NAME, tenant.namespace, {"spec": {"suspend": False}})
    async for seen in _watched(client, tenant.namespace, job["metadata"]["resourceVersion"]):
        if any(condition["type"] == "Complete" for condition in seen["status"].get("conditions", ())):
            break
    complete_s = time.time() - began
    figures: dict[str, Any] = {"complete_s": complete_s, "released_s": complete_s}
    if harvester is not None:
        result = await asyncio.to_thread(harvester.read_json)
        at, status = result["events"][NAME]
        assert status == "succeeded", status
        figures |= {
            "released_s": at - began,
            "client_cpu_s_per_1000": result["cpu_s"] / pods * 1000,
            "requests_per_pod": result["requests"] / pods,
            "watches": result["watches"],
            "rss_mb": result["rss_mb"],
        }
        if who == "watched":
            figures |= {f"longest_{what}_ms": result["steady"][f"longest_{what}_ms"] for what in ("callback", "gc")}
    return figures | {"server_cpu_s_per_1000": (cpu_s(tenant.plane) - server) / pods * 1000}


async def _watched(client: Client, namespace: str, version: str) -> AsyncIterator[dict[str, Any]]:
    while True:
        watch = client.watch(JOBS, namespace, resource_version=version, field_selector=f"metadata.name={NAME}")
        async with aclosing(watch):
            async for lines in watch:
                for line in lines.splitlines():
                    event = json.loads(line)
                    version = event["object"]["metadata"]["resourceVersion"]
                    yield event["object"]


@contextmanager
def _harvester(tenant: Tenant, who: str, pods: int, job: dict[str, Any]) -> Iterator[_Harvester]:
    path = tenant.plane.folder / f"{tenant.namespace}.json"
    path.write_text(json.dumps({"namespace": tenant.namespace, "uids": {NAME: job["metadata"]["uid"]}}))
    program = {
        "ours": ["benchmarks.waiting", "ours", str(path), "cpu", str(RUN_MAX_S), str(START_MAX_S)],
        "watched": ["benchmarks.waiting", "ours", str(path), "events", str(RUN_MAX_S), str(START_MAX_S)],
        "naive": ["benchmarks.naive", str(tenant.kubeconfig), tenant.namespace, NAME, str(pods)],
    }
    with subprocess.Popen(
        [sys.executable, "-m", *program[who]],
        cwd=ROOT,
        env=with_bytecode(os.environ | airflow_environment(tenant)),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield _Harvester(process)
        finally:
            process.kill()


if __name__ == "__main__":
    main()

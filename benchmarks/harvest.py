"""What it costs that every pod's outcome is recorded before the pod may go: one Job of many pods on hollow nodes.

The same Job, without and with the provider's finalizer, by turns on one real control plane. With it, our trigger
follows the Job in a process of its own. A pod alone costs the API server six writes; to release it is the seventh.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from benchmarks.harness import ROOT, Report, arguments, median, with_bytecode
from benchmarks.world import (
    admin_config,
    airflow_environment,
    control_plane,
    cpu_s,
    job_manifest,
    requests_of,
    tenant_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.cluster.plane import ControlPlane
    from tests.cluster.tenant import Tenant

NODES = 40
NAME = "gang"
TIMEOUT_S = 300
LABELS = {"gangjobs.airflow/gang": NAME, "gangjobs.airflow/attempt": "1"}


@dataclass
class _Harvester:
    """Our trigger in a process of its own."""

    process: subprocess.Popen[str]

    def line(self) -> dict[str, Any]:
        """Its next word. What Airflow logs on the same stream is passed on."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
            print("  harvester:", line.rstrip(), file=sys.stderr)
        raise EOFError("the harvester has ended")


def main() -> None:
    options = arguments(__doc__, pods=5000, rounds=3, nodes=NODES)
    pods = options.pods or (500 if options.quick else 5000)
    rounds = options.rounds or (2 if options.quick else 3)
    report = Report("harvest", "the row `alone`: the same Job without finalizer, which the API server's CPU bounds")
    runs: dict[str, list[dict[str, Any]]] = {"alone": [], "ours": []}
    with control_plane() as plane, _hollow_nodes(plane, options.nodes or NODES):
        for number in range(rounds):
            for who in ("alone", "ours") if number % 2 == 0 else ("ours", "alone"):
                with tenant_of(plane, f"harvest-{who}") as tenant:
                    runs[who].append(asyncio.run(_run(tenant, pods, held=who == "ours")))
                    print(who, json.dumps(runs[who][-1]), file=sys.stderr)
    for who, results in runs.items():
        figures = {name: round(median(result[name] for result in results), 3) for name in results[0]}
        report.add(who=who, pods=pods, **figures)
    ratios = [ours["complete_s"] / alone["complete_s"] for ours, alone in zip(runs["ours"], runs["alone"], strict=True)]
    last = [ours["released_s"] / alone["complete_s"] for ours, alone in zip(runs["ours"], runs["alone"], strict=True)]
    report.notes.append(
        f"Complete: {median(ratios):.2f} times the Job alone; last finalizer gone: {median(last):.2f} times"
        f" (medians of {rounds} pairs, {', '.join(f'{r:.2f}' for r in ratios)})"
    )
    report.publish(options.out)


@contextmanager
def _hollow_nodes(plane: ControlPlane, count: int) -> Iterator[None]:
    kubeconfig = str(plane.folder / "admin.kubeconfig")
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hollow", kubeconfig, str(count)],
        cwd=ROOT,
        env=with_bytecode(os.environ),
        stdout=subprocess.PIPE,
    ) as nodes:
        assert nodes.stdout is not None
        nodes.stdout.readline()
        try:
            yield
        finally:
            nodes.kill()


async def _run(tenant: Tenant, pods: int, *, held: bool) -> dict[str, Any]:
    async with Client(admin_config(tenant.plane, tenant.namespace)) as client:
        manifest = job_manifest(NAME, pods, held=held, labels=LABELS)
        manifest["spec"]["suspend"] = True
        job = await client.create(JOBS, manifest, tenant.namespace)
        if held:
            with _harvester(tenant, job["metadata"]["uid"]) as harvester:
                result = await _to_the_end(client, tenant, pods, job, harvester)
        else:
            result = await _to_the_end(client, tenant, pods, job, None)
        left = await client.list(PODS, tenant.namespace, label_selector=f"gangjobs.airflow/gang={NAME}")
        kept = [pod for pod in left if "gangjobs.airflow/harvest" in pod["metadata"].get("finalizers", ())]
        assert not kept, f"{len(kept)} pods are still held"
        return result


async def _to_the_end(
    client: Client, tenant: Tenant, pods: int, job: dict[str, Any], harvester: _Harvester | None
) -> dict[str, Any]:
    if harvester is not None:
        assert (await asyncio.to_thread(harvester.line))["ready"]
    server, since, began = cpu_s(tenant.plane), datetime.now(UTC), time.time()
    await client.patch(JOBS, NAME, tenant.namespace, {"spec": {"suspend": False}})
    async for seen in _watched(client, tenant.namespace, job["metadata"]["resourceVersion"]):
        if any(condition["type"] == "Complete" for condition in seen["status"].get("conditions", ())):
            break
    complete_s = time.time() - began
    figures = {
        "complete_s": complete_s,
        "released_s": complete_s,
        "client_cpu_s_per_1000": 0.0,
        "requests_per_pod": 0.0,
    }
    if harvester is not None:
        result = await asyncio.to_thread(harvester.line)
        at, status = result["events"][NAME]
        assert status == "succeeded", status
        figures |= {
            "released_s": at - began,
            "client_cpu_s_per_1000": result["cpu_s"] / pods * 1000,
            "requests_per_pod": requests_of(tenant, since, datetime.now(UTC)) / pods,
            "longest_block_ms": result["steady"]["longest_callback_ms"],
            "longest_gc_ms": result["steady"]["longest_gc_ms"],
            "rss_mb": result["rss_mb"],
        }
    return figures | {"server_cpu_s_per_1000": (cpu_s(tenant.plane) - server) / pods * 1000}


async def _watched(client: Client, namespace: str, version: str) -> AsyncIterator[dict[str, Any]]:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            watch = client.watch(JOBS, namespace, resource_version=version, field_selector=f"metadata.name={NAME}")
            async with aclosing(watch):
                async for line in watch:
                    event = json.loads(line)
                    version = event["object"]["metadata"]["resourceVersion"]
                    yield event["object"]


@contextmanager
def _harvester(tenant: Tenant, uid: str) -> Iterator[_Harvester]:
    path = tenant.plane.folder / f"{tenant.namespace}.json"
    path.write_text(json.dumps({"namespace": tenant.namespace, "uids": {NAME: uid}}))
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.waiting", "ours", str(path), "events", str(TIMEOUT_S)],
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

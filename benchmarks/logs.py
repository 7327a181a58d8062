"""Logs: 64 ranks of 100 MB that are stored and copied, and 200 gangs that one process streams while deadlines pass.

The nodes generate the logs, and a real API server fetches them from the nodes. All programs share the cores, so the
transfer rates include the generation of the logs and two TLS connections.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import aclosing, contextmanager
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.http.request import WatchLimits
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.labels import ANNOTATION_HALTED
from benchmarks.api_server import admin_config, airflow_environment, api_server, end_pods, tenant_of, write_gangs
from benchmarks.harness import ROOT, Report, arguments, line_of, log_progress, median, with_bytecode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant

TRANSFERS = ("store", "copy")
WAITS = ("no streams", "streams")
LATE_MAX_S = 60
"""A gang that is not halted this long after the last deadline fails the benchmark."""
WATCH_S = 3600
GANG_NAME = re.compile(r"gang-\d+")


def main() -> None:
    options = arguments(__doc__, ranks=64, megabytes=100, gangs=200, seconds=120)
    ranks = options.ranks or (4 if options.quick else 64)
    megabytes = options.megabytes or (25 if options.quick else 100)
    gangs = options.gangs or (20 if options.quick else 200)
    seconds = options.seconds or (10 if options.quick else 120)
    report = Report("logs", "the same bytes through the API server alone; no deadline late by more than a second")
    with api_server() as plane, log_nodes(plane, megabytes * 1_000_000):
        log_progress("the API server and the nodes run")
        with tenant_of(plane, "logs-whole") as tenant:
            uid = asyncio.run(_write_ended_gang(tenant, ranks))
            for mode in TRANSFERS:
                log_progress(f"{mode}: {ranks} ranks of {megabytes} MB")
                report.add(who=mode, ranks=ranks, **_transfer(tenant, mode, tenant.namespace, "gang", uid))
        for mode in WAITS:
            with tenant_of(plane, "logs-streamed") as tenant:
                asyncio.run(_write_running_gangs(tenant, gangs))
                log_progress(f"{mode}: {gangs} gangs, whose deadlines pass within {seconds} s")
                report.add(who=mode, gangs=gangs, **_wait(tenant, mode, str(seconds)))
    report.publish(options.out)


@contextmanager
def log_nodes(plane: ControlPlane, size: int) -> Iterator[None]:
    """Run nodes that serve logs of this size."""
    kubeconfig = str(plane.folder / "admin.kubeconfig")
    command = [sys.executable, "-m", "benchmarks.log_nodes", kubeconfig, str(size)]
    with subprocess.Popen(command, cwd=ROOT, env=with_bytecode(os.environ), stdout=subprocess.PIPE) as nodes:
        assert nodes.stdout is not None
        nodes.stdout.readline()
        try:
            yield
        finally:
            nodes.kill()


@contextmanager
def _process(tenant: Tenant, *command: str) -> Iterator[IO[str]]:
    """Run the process under test, and yield its output."""
    environment = with_bytecode(os.environ | airflow_environment(tenant))
    program = [sys.executable, "-m", "benchmarks.logs_process", *command]
    with subprocess.Popen(program, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


def _transfer(tenant: Tenant, *command: str) -> dict[str, Any]:
    with _process(tenant, *command) as output:
        return line_of(output)


def _wait(tenant: Tenant, *command: str) -> dict[str, Any]:
    """Run the process that waits, and note when it halts each gang whose deadline has passed."""
    with _process(tenant, "wait", tenant.namespace, *command) as output:
        due = line_of(output)
        shown = asyncio.run(_watch_halts(tenant, due))
        return _late_figures(tenant, due, shown) | line_of(output)


def _late_figures(tenant: Tenant, due: dict[str, float], shown: dict[str, float]) -> dict[str, float]:
    """Return the delays of the deadlines, and the parts of them that the process and the API server need.

    :param due: When the deadline of each gang passes, by the name of its Job.
    :param shown: When a watch showed that each Job was halted.
    """
    requests = _requests_by_gang(tenant)
    asked_s, server_s = [], []
    for name, at in due.items():
        spans = sorted(span for span in requests[name] if at <= span[0] <= shown[name])
        asked_s.append(spans[0][0] - at)
        server_s.append(_covered_s(spans, until=shown[name]))
    late_s = [shown[name] - at for name, at in due.items()]
    return {
        "late_median_s": median(late_s),
        "late_max_s": max(late_s),
        "asked_late_median_s": median(asked_s),
        "asked_late_max_s": max(asked_s),
        "server_median_s": median(server_s),
        "server_max_s": max(server_s),
    }


def _requests_by_gang(tenant: Tenant) -> dict[str, list[tuple[float, float]]]:
    """Return when the API server received and answered each request of the tenant for a gang, without streams.

    At its deadline, the process reads the Job, pods, and events of the gang, and then halts the Job.
    """
    requests = defaultdict(list)
    for event in tenant.plane.audited(by=tenant.user):
        uri = unquote(event["requestURI"])
        gang = GANG_NAME.search(uri)
        if gang is not None and event["verb"] != "watch" and not urlsplit(uri).path.endswith("/log"):
            span = (_unix_s(event["requestReceivedTimestamp"]), _unix_s(event["stageTimestamp"]))
            requests[gang[0]].append(span)
    return requests


def _unix_s(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _covered_s(spans: list[tuple[float, float]], *, until: float) -> float:
    """Return the seconds in which at least one request is at the API server."""
    covered, reached = 0.0, 0.0
    for begin, end in spans:
        covered += max(0.0, min(end, until) - max(begin, reached))
        reached = max(reached, end)
    return covered


async def _watch_halts(tenant: Tenant, due: dict[str, float]) -> dict[str, float]:
    """Return when a watch showed that each Job was halted, by the name of the Job."""
    halted: dict[str, float] = {}
    async with (
        asyncio.timeout(max(due.values()) - time.time() + LATE_MAX_S),
        Client(admin_config(tenant.plane, tenant.namespace)) as client,
        aclosing(client.watch(JOBS, tenant.namespace, resource_version="0", limits=WatchLimits(WATCH_S))) as watch,
    ):
        async for lines in watch:
            for line in lines.splitlines():
                metadata = json.loads(line)["object"]["metadata"]
                if ANNOTATION_HALTED in metadata.get("annotations", {}):
                    halted.setdefault(metadata["name"], time.time())
            if len(halted) == len(due):
                break
    return halted


async def _write_ended_gang(tenant: Tenant, ranks: int) -> str:
    async with Client(admin_config(tenant.plane, tenant.namespace)) as client:
        uids = await write_gangs(client, tenant.namespace, ["gang"], pods=ranks)
        await end_pods(client, tenant.namespace, "gang", pods=ranks)
    return uids["gang"]


async def _write_running_gangs(tenant: Tenant, count: int) -> None:
    async with Client(admin_config(tenant.plane, tenant.namespace)) as client:
        await write_gangs(client, tenant.namespace, [f"gang-{number}" for number in range(count)])


if __name__ == "__main__":
    main()

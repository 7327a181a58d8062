"""list_gangs: `gangjobs list` of many gangs on a real API server, in processes of their own.

The Jobs are those that tasks submit. No controller runs. Each process lists all
gangs once, so its time contains the start of Python. The goal is two seconds for 10,000 gangs.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.kube.resources import JOBS
from benchmarks.api_server import admin_config, api_server, cpu_s, gang_job, now, run_all
from benchmarks.harness import Report, Rounds, arguments, log_progress, run_python, with_progress
from tests.cluster.tenant import Tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = {
    "--help": ["--help"],
    "list": ["list"],
    "list -o json": ["list", "-o", "json"],
    "top": ["top"],
    "why": ["why", "dag-7", "task"],
}
RUNS_PER_DAG = 50


def main() -> None:
    options = arguments(__doc__, gangs=(10_000, 1000), rounds=(5, 2))
    gangs, rounds = options.gangs, Rounds()
    report = Report("list_gangs", "the row `--help` is a process that sends no request")
    with many_gangs(gangs) as tenant:
        rounds.measure(options.rounds, tuple(COMMANDS), lambda name: measure(tenant, COMMANDS[name]))
        for name in COMMANDS:
            best = min(one["seconds"] for one in rounds.of(name))
            report.add(who=name, gangs=gangs, best_seconds=round(best, 3), **rounds.medians(name))
    report.publish(options.out)


@contextmanager
def many_gangs(count: int) -> Iterator[Tenant]:
    """Run an API server during the block, and yield the account of a namespace with as many gangs."""
    with api_server() as plane, Tenant.created(plane, "list") as tenant:
        log_progress("the API server runs")
        asyncio.run(write_jobs(tenant, count))
        yield tenant


async def write_jobs(tenant: Tenant, count: int) -> None:
    """Write the Jobs of as many tasks that run."""
    namespace = tenant.namespace
    async with Client(admin_config(tenant.plane, namespace)) as client:

        async def write(number: int) -> None:
            run, dag = divmod(number, RUNS_PER_DAG)
            key = TaskKey(f"dag-{dag}", f"scheduled__2026-01-01T{run:05d}", "task", installation="production")
            job = await client.create(JOBS, job_of_task(key, namespace), namespace)
            status = {"active": 4, "ready": 4, "startTime": now(), "uncountedTerminatedPods": {}}
            await client.patch(JOBS, job["metadata"]["name"], namespace, {"status": status}, subresource="status")

        await run_all(write, with_progress(count, "written"))


def job_of_task(key: TaskKey, namespace: str) -> dict[str, Any]:
    """Return the Job of a gang of four with GPUs."""
    return gang_job(key, namespace, 4, resources={"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1})


def measure(tenant: Tenant, command: list[str]) -> dict[str, float]:
    """Run `gangjobs` once. Return its wall time, and the CPU of it and of the API server, in seconds."""
    cluster = [] if command == ["--help"] else ["--kubeconfig", tenant.kubeconfig, "-n", tenant.namespace]
    server = cpu_s(tenant.plane)
    done = run_python("-m", "airflow_provider_gangjobs.cli.main", *command, *cluster, fails=command[0] == "why")
    return {"seconds": done.wall_s, "cpu_s": done.cpu_s, "server_cpu_s": cpu_s(tenant.plane) - server}


if __name__ == "__main__":
    main()

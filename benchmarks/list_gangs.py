"""list_gangs: `gangjobs list` of many gangs on a real API server, in processes of their own.

One gang is submitted as a task does, and its Job is copied for many tasks. No controller runs. Each process lists all
gangs once, so its time contains the start of Python. The goal is two seconds for 10,000 gangs.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.identity import Claim, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.spec import GangSpec, OnFinish, OnKill, Policies
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_SUBMISSION_ID, ANNOTATION_TASK, LABEL_GANG, LABEL_TASK
from airflow_provider_gangjobs.service import GangService
from benchmarks.api_server import admin_config, api_server, cpu_s, now, run_all
from benchmarks.harness import Report, Rounds, arguments, log_progress, with_bytecode, with_progress
from tests.cluster.tenant import Tenant

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    with api_server() as plane, Tenant.created(plane, "list") as tenant:
        log_progress("the API server runs")
        asyncio.run(write_jobs(tenant, with_progress([str(number) for number in range(gangs)], "written")))
        rounds.measure(options.rounds, tuple(COMMANDS), lambda name: measure(tenant, COMMANDS[name]))
        for name in COMMANDS:
            best = min(one["seconds"] for one in rounds.of(name))
            report.add(who=name, gangs=gangs, best_seconds=round(best, 3), **rounds.medians(name))
    report.publish(options.out)


async def write_jobs(tenant: Tenant, numbers: Iterable[str]) -> None:
    """Write one Job for each number, as the Job of a task that runs."""
    namespace = tenant.namespace
    async with Client(admin_config(tenant.plane, namespace)) as client:
        model = await submitted_job(client)

        async def write(number: str) -> None:
            run, dag = divmod(int(number), RUNS_PER_DAG)
            key = TaskKey(f"dag-{dag}", f"scheduled__2026-01-01T{run:05d}", "task", installation="production")
            job = job_of_task(model, key, namespace)
            await client.create(JOBS, job, namespace)
            status = {"active": 4, "ready": 4, "startTime": now(), "uncountedTerminatedPods": {}}
            await client.patch(JOBS, job["metadata"]["name"], namespace, {"status": status}, subresource="status")

        await run_all(write, numbers)


async def submitted_job(client: Client, installation: str = "production") -> dict[str, Any]:
    """Return the Job of a gang as the API server has it after its submission, without what the server has added."""
    spec = GangSpec(
        image="registry.example/train:1",
        command=["python", "/gang/files/train.py"],
        workers=4,
        resources={"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1},
        env={f"SETTING_{number}": "x" * 20 for number in range(10)},
        gang="off",
    )
    policies = Policies(OnKill.DELETE, OnFinish.DELETE_SUCCEEDED)
    key = TaskKey("model", "run", "task", installation=installation)
    submitted = await GangService(client).submit(spec, key=key, claim="claim", policies=policies)
    job = await client.get(JOBS, submitted.ref.name, submitted.ref.namespace)
    metadata = {name: job["metadata"][name] for name in ("labels", "annotations")}
    left_out = {"batch.kubernetes.io/controller-uid", "controller-uid", "batch.kubernetes.io/job-name", "job-name"}
    template = job["spec"]["template"]["metadata"]
    template["labels"] = {name: text for name, text in template["labels"].items() if name not in left_out}
    del job["spec"]["selector"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job["spec"]}


def job_of_task(model: dict[str, Any], key: TaskKey, namespace: str) -> dict[str, Any]:
    """Return a copy of a Job for another task of the same installation."""
    attempt = build_attempt(key, Claim("claim"), namespace=namespace, number=0)
    own = {LABEL_GANG: attempt.name, LABEL_TASK: key.digest}
    metadata = {
        "name": attempt.name,
        "labels": model["metadata"]["labels"] | own,
        "annotations": model["metadata"]["annotations"]
        | {ANNOTATION_TASK: key.to_json(), ANNOTATION_SUBMISSION_ID: attempt.submission_id},
    }
    template = model["spec"]["template"]
    of_pods = {**template["metadata"], "labels": template["metadata"]["labels"] | own}
    spec = {**model["spec"], "suspend": False, "template": {**template, "metadata": of_pods}}
    return {**model, "metadata": metadata, "spec": spec}


def measure(tenant: Tenant, command: list[str]) -> dict[str, float]:
    """Run `gangjobs` once. Return its wall time, and the CPU of it and of the API server, in seconds."""
    program = [sys.executable, "-m", "airflow_provider_gangjobs.cli.main", *command]
    cluster = [] if command == ["--help"] else ["--kubeconfig", str(tenant.kubeconfig), "-n", tenant.namespace]
    server, own = cpu_s(tenant.plane), resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    subprocess.run([*program, *cluster], env=with_bytecode(os.environ), check=command[0] != "why", capture_output=True)
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds,
        "cpu_s": used.ru_utime + used.ru_stime - own.ru_utime - own.ru_stime,
        "server_cpu_s": cpu_s(tenant.plane) - server,
    }


if __name__ == "__main__":
    main()

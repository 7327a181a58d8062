"""The cost of a submission beyond its requests: many gangs at full rate from one process, on a real API server.

In turns, the provider submits gangs of four, and the same requests are sent bare: the same bodies, rendered and encoded
beforehand, by the same HTTP library over as many connections, without checks and without the handling of errors.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import yaml

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.resources import JOBS, podgroups, workloads
from airflow_provider_gangjobs.gang.identity import Claim, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.labels import ANNOTATION_GANG, LABEL_TASK
from airflow_provider_gangjobs.gang.render.job import group_of, render_job
from airflow_provider_gangjobs.gang.render.policy import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.render.shape import shape_of
from airflow_provider_gangjobs.gang.schedulers.native import select_dialect
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.submission.adopt_or_submit import TaskRule
from airflow_provider_gangjobs.submission.discovery.schedulers import discover_for
from airflow_provider_gangjobs.submission.request import SubmissionRequest
from airflow_provider_gangjobs.submission.submit import submit
from benchmarks.api_server import api_server, run_all, tenant_of
from benchmarks.harness import Report, arguments, median

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources
    from tests.cluster.tenant import Tenant

GANGS = 200
ROUNDS = 5
IN_FLIGHT = 32
REQUESTS = 5
SPEC = GangSpec(
    image="registry.example/train:1",
    command=["python", "train.py"],
    workers=4,
    env={f"SETTING_{number}": "x" * 20 for number in range(10)},
    resources={"cpu": "1", "memory": "1Gi"},
    rendezvous=False,
)
GANG_PATH = "/metadata/annotations/" + ANNOTATION_GANG.replace("/", "~1")
JOB_UID, WORKLOAD_UID = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"


def keys(round_number: int, who: str, gangs: int) -> list[TaskKey]:
    """Return a key for each gang of a round. All keys of all rounds differ."""
    return [TaskKey("bench", f"{who}-{round_number}-{number}", "train") for number in range(gangs)]


@dataclass(frozen=True)
class Bodies:
    """The bodies of one bare submission, rendered and encoded."""

    selector: str
    name: str
    job: bytes
    workload: bytes
    pod_group: bytes
    decision: str


def bodies_of(key: TaskKey, namespace: str, discovered: DiscoveredResources) -> Bodies:
    """Render what the provider would send for this key."""
    dialect = select_dialect(discovered.resources)
    assert dialect is not None
    decision = PlacementDecision(Placement.GANG, dialect.name)
    attempt = build_attempt(key, Claim("bench"), namespace=namespace, number=0)
    job = render_job(SPEC, attempt, decision, dialect)
    group = group_of(job, shape_of(SPEC, {}))
    return Bodies(
        selector=f"{LABEL_TASK}={key.digest}",
        name=attempt.name,
        job=msgspec.json.encode(job),
        workload=msgspec.json.encode(dialect.workload(group, JOB_UID)),
        pod_group=msgspec.json.encode(dialect.pod_group(group, JOB_UID, WORKLOAD_UID)),
        decision=str(decision),
    )


class Bare:
    """Sends the requests of a submission, and does nothing else."""

    def __init__(self, session: aiohttp.ClientSession, namespace: str, version: str) -> None:
        self._session = session
        self._jobs = JOBS.path(namespace)
        self._workloads = workloads(version).path(namespace)
        self._pod_groups = podgroups(version).path(namespace)

    async def submit(self, bodies: Bodies) -> None:
        await self._send("GET", f"{self._jobs}?labelSelector={bodies.selector}&limit=500")
        job = (await self._post(self._jobs, bodies.job))["metadata"]
        uid = job["uid"].encode()
        workload = (await self._post(self._workloads, bodies.workload.replace(JOB_UID.encode(), uid)))["metadata"]
        owners = ((JOB_UID, uid), (WORKLOAD_UID, workload["uid"].encode()))
        pod_group = bodies.pod_group
        for placeholder, real in owners:
            pod_group = pod_group.replace(placeholder.encode(), real)
        await self._post(self._pod_groups, pod_group)
        patch = [
            *({"op": "test", "path": f"/metadata/{n}", "value": job[n]} for n in ("uid", "generation", "annotations")),
            {"op": "add", "path": GANG_PATH, "value": bodies.decision},
            {"op": "add", "path": "/spec/suspend", "value": False},
        ]
        await self._send(
            "PATCH", f"{self._jobs}/{bodies.name}", msgspec.json.encode(patch), "application/json-patch+json"
        )

    async def _post(self, path: str, body: bytes) -> Any:
        return await self._send("POST", f"{path}?fieldValidation=Strict", body, "application/json")

    async def _send(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> Any:
        headers = {"Content-Type": kind} if kind else {}
        async with self._session.request(method, path, data=body, headers=headers) as reply:
            content = await reply.read()
            reply.raise_for_status()
            return msgspec.json.decode(content)


@dataclass(frozen=True)
class Measured:
    """One round of one contender."""

    wall_s: float
    cpu_s: float


async def measure(work: Sequence[Callable[[], Awaitable[object]]]) -> Measured:
    """Call the functions, `IN_FLIGHT` at a time, and return what they took together."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await run_all(work, in_flight=IN_FLIGHT)
    return Measured(time.perf_counter() - wall, time.process_time() - cpu)


async def compare(tenant: Tenant, gangs: int, rounds: int) -> tuple[dict[str, list[Measured]], list[int]]:
    """Return the figures of each contender by round, and the number of requests of each submission of the provider."""
    took: dict[str, list[Measured]] = {"bare": [], "provider": []}
    requests: list[int] = []
    config = yaml.safe_load(tenant.kubeconfig.read_text())
    headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT, ssl=ssl.create_default_context(cafile=str(tenant.plane.ca_file)))
    async with (
        Client(tenant.config) as client,
        aiohttp.ClientSession(tenant.plane.url, connector=connector, headers=headers) as session,
    ):
        discovered = await discover_for(client, SPEC, namespace=tenant.namespace)
        version = discovered.scheduling_versions[0]
        bare = Bare(session, tenant.namespace, version)

        async def ours(key: TaskKey) -> None:
            submission = await submit(
                client,
                SPEC,
                SubmissionRequest(key=key, claim=Claim("bench"), rule=TaskRule()),
                discovered=discovered,
                namespace=tenant.namespace,
            )
            requests.append(submission.requests)

        for number in range(-1, rounds):  # The first round fills connections and caches, for both contenders.
            bodies = [bodies_of(key, tenant.namespace, discovered) for key in keys(number, "bare", gangs)]
            work = {
                "bare": [lambda one=one: bare.submit(one) for one in bodies],
                "provider": [lambda key=key: ours(key) for key in keys(number, "provider", gangs)],
            }
            for who in ("bare", "provider") if number % 2 else ("provider", "bare"):
                result = await measure(work[who])
                if number >= 0:
                    took[who].append(result)
    return took, requests


def main() -> None:
    options = arguments(__doc__, gangs=GANGS, rounds=ROUNDS)
    gangs = options.gangs or (50 if options.quick else GANGS)
    rounds = options.rounds or (3 if options.quick else ROUNDS)
    with api_server() as plane, tenant_of(plane, "submit") as tenant:
        took, requests = asyncio.run(compare(tenant, gangs, rounds))
    report = Report(
        f"submit: {gangs} gangs of {SPEC.workers}, {IN_FLIGHT} at a time, {rounds} rounds by turns",
        "the same requests sent bare by the same HTTP library, bodies rendered and encoded beforehand",
    )
    for who, results in took.items():
        wall_s, cpu_s = median(one.wall_s for one in results), median(one.cpu_s for one in results)
        report.add(
            who=who,
            requests_a_gang=REQUESTS if who == "bare" else median(requests),
            wall_s=wall_s,
            gangs_a_second=gangs / wall_s,
            client_cpu_ms_a_gang=1000 * cpu_s / gangs,
            wall_ratio=median(mine.wall_s / base.wall_s for mine, base in zip(results, took["bare"], strict=True)),
            cpu_ratio=median(mine.cpu_s / base.cpu_s for mine, base in zip(results, took["bare"], strict=True)),
        )
    report.notes.append("Goal: at most 1.3 times the wall time and 2 times the client CPU of the bare requests.")
    report.publish(options.out)


if __name__ == "__main__":
    main()

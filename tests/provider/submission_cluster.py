"""An embedded cluster for tests of submission: HTTP, simulated time, and clients that crash where a test says."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.served_resources import DiscoveredResources, discover, with_release
from airflow_provider_gangjobs.gang.identity import Claim, TaskKey
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.spec import GangSpec, Policies
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.jobs.requests import claim_patch
from airflow_provider_gangjobs.kube import resources
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG_ROLE, LABEL_TASK
from airflow_provider_gangjobs.submission.submit import submit
from gangjobs_sandbox.api import create_app, serving
from gangjobs_sandbox.controllers import ControllerSettings
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODGROUPS, PODS, SERVICES, WORKLOADS
from tests.sandbox.builders import NAMESPACE, Bench
from tests.submission_requests import task_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.submission.submission import ConfirmTry, Submission

TOKENS = (f"sandbox-{number}" for number in count())
"""Numbers for the tokens of clusters. Discovery is cached by address and token, and addresses are reused."""
KEY = TaskKey("etl", "manual__2026-01-01", "train")
GANG_OF_4 = GangSpec(image="trainer:1", workers=4, files={"train.py": "pass\n"})
RELEASES = ("1.36", "1.37")
OBJECTS = (JOBS, SERVICES, CONFIGMAPS, WORKLOADS, PODGROUPS)


@dataclass
class InterleavingClient:
    """A client that calls a function once, just before its request `at`, as if another process were faster."""

    api: Any
    at: str
    """The method of the client and the plural of the resource, such as `delete jobs`."""
    meanwhile: Callable[[], Awaitable[object]]
    happened: int = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.api, name)
        if not self.at.startswith(f"{name} "):
            return method

        async def call(resource: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.happened and f"{name} {resource.plural}" == self.at:
                self.happened += 1
                await self.meanwhile()
            return await method(resource, *args, **kwargs)

        return call


TURNS_A_SECOND: Final = 200
"""How many turns of the event loop a second of sleep takes, so that pauses of other lengths part concurrent calls."""


class FakeTime:
    """A clock in which time passes only during a sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[float], None] = lambda seconds: None
        """A function that is called after each sleep."""

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now, sleep=self._sleep, random=random.Random(3))

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile(seconds)
        for _ in range(round(seconds * TURNS_A_SECOND)):
            await asyncio.sleep(0)


@dataclass
class SubmissionCluster:
    """An embedded cluster over HTTP, its objects, and its faults."""

    bench: Bench
    client: Client
    discovered: DiscoveredResources
    faults: Any
    time: FakeTime

    async def submit(
        self,
        spec: GangSpec = GANG_OF_4,
        *,
        claim: str = "ti-1",
        key: TaskKey = KEY,
        durable: bool = True,
        policies: Policies | None = None,
        max_tries: int | None = None,
        api: Client | None = None,
        confirm: ConfirmTry | None = None,
    ) -> Submission:
        return await submit(
            api or self.client,
            spec,
            task_request(key, claim, durable=durable, policies=policies, max_tries=max_tries, confirm=confirm),
            discovered=self.discovered,
        )

    async def adopt(self, ref: GangRef, claim: str) -> None:
        """Claim a gang, as a try that adopts the gang does."""
        job = await self.client.get(resources.JOBS, ref.name, ref.namespace)
        await self.client.patch(resources.JOBS, ref.name, ref.namespace, claim_patch(job, Claim(claim)))

    def run_controllers_during_sleep(self) -> None:
        """Let the controllers work whenever the submission sleeps."""
        self.time.meanwhile = self.bench.run

    def ignore_scheduling_fields(self) -> None:
        """Let the API server drop the scheduling fields of Jobs, although it serves the Workload API."""
        served = frozenset({"get", "list", "watch", "create"})
        resources = {"v1beta1": {"workloads": served, "podgroups": served}}
        self.discovered = replace(self.discovered, resources=resources)

    def objects(self, resource: Any) -> list[dict[str, Any]]:
        if resource.plural in {"workloads", "podgroups"} and not self.bench.registry.release.scheduling_versions:
            return []
        return self.bench.registry.list(resource, NAMESPACE)

    def jobs(self) -> list[dict[str, Any]]:
        return [job for job in self.objects(JOBS) if LABEL_TASK in job["metadata"]["labels"]]

    def live_jobs(self) -> list[dict[str, Any]]:
        return [job for job in self.jobs() if state_of(read_job(job)) is SubmissionState.IN_PROGRESS]

    def finish_job(self, job: str, *, ok: bool = True) -> None:
        """Let the pods of the Job end, so that the Job ends."""
        self.bench.run()
        for pod in self.bench.live_pods(job):
            (self.bench.succeed if ok else self.bench.fail)(pod)
            if not ok:
                break
        for _ in range(3):
            self.bench.run()
            self.bench.stop_deleted()
            for pod in self.bench.pods(job):
                if pod["status"].get("phase") in {"Succeeded", "Failed"}:
                    self.bench.release(pod, "gangjobs.airflow/harvest")
        self.bench.run()

    def check_one_live_gang(self, submission: Submission, workers: int = 4) -> None:
        """Check that exactly one gang is live, that all objects belong to it, and that all of its pods are placed."""
        self.bench.run(30)
        (job,) = self.live_jobs()
        uid = job["metadata"]["uid"]
        assert uid == submission.ref.uid
        roles = {one["metadata"]["labels"].get(LABEL_GANG_ROLE): one for one in self.objects(JOBS)}
        parts = [roles[role.name] for role in read_job(job).record.roles] or [job]
        assert not any(part["spec"]["suspend"] for part in parts)
        for resource in OBJECTS[1:]:
            for thing in self.objects(resource):
                owners = {owner["uid"] for owner in thing["metadata"].get("ownerReferences", ())}
                assert uid in owners, f"{resource.plural} {thing['metadata']['name']} does not belong to the gang"
        pods = self.objects(PODS)
        assert {owner["uid"] for pod in pods for owner in pod["metadata"]["ownerReferences"]} == {
            part["metadata"]["uid"] for part in parts
        }
        assert sum(len(self.bench.bound(part["metadata"]["name"])) for part in parts) == len(pods) == workers
        if PlacementDecision.parse(submission.decision).placement is Placement.GANG:
            assert len(self.objects(WORKLOADS)) == 1
            assert len(self.objects(PODGROUPS)) == 1
        services, config_maps = ({one["metadata"]["name"] for one in self.objects(kind)} for kind in OBJECTS[1:3])
        volumes = [volume for pod in pods for volume in pod["spec"].get("volumes", ()) if "configMap" in volume]
        assert {volume["configMap"]["name"] for volume in volumes} <= config_maps
        assert {pod["spec"]["subdomain"] for pod in pods if "subdomain" in pod["spec"]} <= services


NO_PERMISSION: Final = 'jobs.batch is forbidden: User "system:serviceaccount:ml:airflow" cannot write resource "jobs"'
"""What the API server says if the service account lacks a permission."""
DISCOVERY: Final = "GET /apis"
"""The request that reads what the cluster serves, as `InterceptedClient` records it."""


@asynccontextmanager
async def running_cluster(
    release: str = "1.37", *, nodes: int = 2, workload_with_job: bool = False
) -> AsyncIterator[SubmissionCluster]:
    """Run a cluster of this release with nodes of four CPUs."""
    bench = Bench(release, settings=ControllerSettings(workload_with_job=workload_with_job))
    for number in range(nodes):
        bench.node(f"node-{number}")
    token = next(TOKENS)
    app = create_app(bench.registry, token=token)
    fake_time = FakeTime()
    async with serving(app) as address, Client(config(address.url, token), clock=fake_time.clock()) as client:
        discovered = await with_release(client, await discover(client))
        yield SubmissionCluster(bench, client, discovered, app.state.faults, fake_time)


def config(url: str, token: str) -> ClusterConfig:
    kube_config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "sandbox", "cluster": {"server": url}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "admin"}}],
        "current-context": "sandbox",
    }
    return ClusterConfig.from_extras("test", {"kube_config": kube_config})

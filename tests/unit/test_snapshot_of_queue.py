"""The snapshot of a gang that waits in a queue of Kueue, over HTTP against a server that serves Kueue's resources."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.tracking.explanation import read_view
from airflow_provider_gangjobs.tracking.gang_listing import list_attempts
from tests.provider.virtual_time import in_virtual_time
from tests.unit.builders import REF, JobBuilder, condition, job
from tests.unit.fault_server import Connection, FaultServer, Request, status

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.view import GangView

KEY = TaskKey("dag", "run", "task")
LACKS = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor f, 2 more needed"
NEVER = "insufficient quota for cpu in flavor f, request > maximum capacity (4)"
LACKS_LINE = (
    "Kueue queue team does not admit the gang yet: insufficient unused quota for cpu in flavor f, 2 more needed"
)


def queued(ranks: int = 4) -> JobBuilder:
    return job(ranks).label(LABEL_KUEUE_QUEUE, "team").suspended(0)


def workload(message: str = LACKS, **spec: Any) -> dict[str, Any]:
    conditions = [condition("QuotaReserved", False, 1, "Pending", message)]
    return {"metadata": {"name": "job-train-0-1a2b3"}, "spec": spec, "status": {"conditions": conditions}}


class KueueApi:
    """An API server with one gang. Of Kueue it serves Workloads and positions, unless a status says otherwise."""

    def __init__(self, gang: JobBuilder, kueue: dict[str, Any] | None = None, **refused: int) -> None:
        self.gang = gang.obj
        self.kueue = workload() if kueue is None else kueue
        self.events: list[dict[str, Any]] = []
        self.refused = refused
        self.server = FaultServer(self.handle)

    async def handle(self, request: Request, connection: Connection) -> None:
        resource = request.path.rpartition("/")[2]
        if (code := self.refused.get(resource)) is not None:
            await connection.reply(code, status(code, "Refused"))
        else:
            await connection.reply(200, {"metadata": {"resourceVersion": "1"}, "items": self.items(resource, request)})

    def items(self, resource: str, request: Request) -> list[dict[str, Any]]:
        match resource:
            case "jobs":
                return [self.gang]
            case "workloads":
                return [self.kueue] if request.query["labelSelector"].endswith(f"={REF.uid}") else []
            case "events":
                return self.events
            case "pendingworkloads":
                item = {"metadata": {"ownerReferences": [{"uid": REF.uid}]}, "positionInClusterQueue": 5}
                return [item]
        return []

    def sent(self, resource: str) -> int:
        return [request.path.rpartition("/")[2] for request in self.server.requests].count(resource)


async def view_of(api: KueueApi, *, looks: int = 1) -> GangView:
    """The last of some views in a row."""
    clock = Clock(monotonic=asyncio.get_running_loop().time)
    async with api.server as server, Client(server.config, clock=clock) as client:
        for _ in range(looks):
            (gang,) = await list_attempts(client, REF.namespace, KEY.digest)
            seen = await read_view(client, gang)
    return seen


@pytest.mark.parametrize("ranks", [4, 2000])
@in_virtual_time
async def test_tab_says_what_the_log_says_with_one_read_of_the_positions(ranks: int) -> None:
    api = KueueApi(queued(ranks))
    view = await view_of(api, looks=3)
    assert (view.phase, view.summary) == ("queued", f"{LACKS_LINE}. Position 6 in the ClusterQueue")
    assert (api.sent("pendingworkloads"), api.sent("workloads")) == (1, 3)
    assert (api.sent("podgroups"), api.sent("events")) == (0, 0), "they say nothing about a Job that is suspended"


@pytest.mark.parametrize("code", [403, 404, 503])
@in_virtual_time
async def test_position_that_cannot_be_read_is_unknown(code: int) -> None:
    view = await view_of(KueueApi(queued(), pendingworkloads=code))
    assert (view.summary, view.notes) == (LACKS_LINE, ())


@pytest.mark.parametrize("kind", ["job", "jobset"])
@pytest.mark.parametrize("code", [403, 404, 503])
@in_virtual_time
async def test_workload_that_cannot_be_read_is_explained_by_its_events(code: int, kind: str) -> None:
    api = KueueApi(queued(), workloads=code)
    involved = {"kind": "Workload", "name": f"{kind}-train-0-1a2b3"}
    told = {"type": "Warning", "reason": "Pending", "message": LACKS}
    api.events = [{"metadata": {"name": "e"}, "involvedObject": involved, **told}]
    view = await view_of(api)
    assert (view.summary, view.notes) == (f"{LACKS_LINE}. Position 6 in the ClusterQueue", ())


@pytest.mark.parametrize("kueue", [workload(NEVER), workload(active=False)], ids=["never fits", "deactivated"])
@in_virtual_time
async def test_gang_that_cannot_be_admitted_costs_no_read_of_the_positions(kueue: dict[str, Any]) -> None:
    api = KueueApi(queued(), kueue)
    view = await view_of(api)
    assert "Position" not in view.summary
    assert api.sent("pendingworkloads") == 0


@pytest.mark.parametrize(
    "gang",
    [job().suspended(0), queued().stopped(), job().started(1)],
    ids=["kept suspended", "stopped", "without a queue"],
)
@in_virtual_time
async def test_gang_that_does_not_wait_for_kueue_costs_no_request_about_it(gang: JobBuilder) -> None:
    api = KueueApi(gang)
    await view_of(api)
    assert (api.sent("workloads"), api.sent("pendingworkloads")) == (0, 0)


@in_virtual_time
async def test_gang_that_kueue_has_suspended_without_a_queue_says_so() -> None:
    gang = job().suspended(0)
    gang.obj["metadata"]["generation"] = 3
    view = await view_of(KueueApi(gang))
    assert "manageJobsWithoutQueueName" in view.summary

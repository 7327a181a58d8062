"""Gangs that tests on real control planes run, and how they follow them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant

MEET = """
import json, os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

def patiently(do):  # a name can be resolved a moment after its pod has started
    while True:
        try:
            return do()
        except OSError:
            time.sleep(0.05)

if rank == 0:
    with patiently(lambda: socket.create_server(address)) as listener:
        met = [listener.accept()[0].recv(1)[0] for _ in range(size - 1)]
else:
    patiently(lambda: socket.create_connection(address, timeout=5)).sendall(bytes([rank]))
    met = [0]
print("rank", rank, "met", sorted(met), flush=True)
open(os.environ["GANG_RESULT_PATH"], "w").write(json.dumps(sorted(met)))
"""


def gang_spec(workers: int = 3, *, code: str = MEET, cpu: str = "1", **changes: Any) -> GangSpec:
    """Return a gang whose ranks run this program. By default they connect to each other."""
    command = ["python", "-c", code]
    return GangSpec(image="python:3.12", command=command, workers=workers, resources={"cpu": cpu}, **changes)


async def submit_gang(gangs: GangService, spec: GangSpec, run: str = "run") -> Submission:
    return await gangs.submit(spec, key=TaskKey("dag", run, "task", -1), claim="somebody")


async def follow_gang(tenant: Tenant, submission: Submission, deadlines: Deadlines | None = None) -> GangEvent:
    return await follow(tenant.config, submission.ref, FollowOptions(deadlines=deadlines or Deadlines()))

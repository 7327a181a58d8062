"""The API server's looks: shared by all who ask, bounded, and silent about connections when they fail."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.errors import (
    ClusterError,
    CredentialsFailed,
    InvalidConnection,
    Unreachable,
)
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.hooks.airflow_exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.plugins import snapshot_cache as lookings
from airflow_provider_gangjobs.plugins.locator import Lead
from airflow_provider_gangjobs.plugins.snapshot_cache import (
    FRESH_S,
    NO_CONNECTION_KNOWN,
    REFUSED,
    TIMED_OUT,
    Looking,
    Sight,
)

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.config import ClusterConfig

LEAD = Lead(TaskKey("dag", "run", "task"), GangRef("team", "train-0", "uid"), "gpu")
SECRET = "https://10.0.0.1:6443 token=hunter2 /home/airflow/.kube/config"


@dataclass
class Refusing:
    """A connection that cannot be used, once it is allowed to answer."""

    error: Exception
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0

    async def __call__(self, lead: Lead) -> ClusterConfig:
        self.asked += 1
        await self.answers.wait()
        raise self.error


def refusing(error: Exception) -> Refusing:
    found = Refusing(error)
    found.answers.set()
    return found


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(
            Unreachable(f"GET {SECRET}", SECRET),
            "Airflow's API server does not reach the cluster of connection 'gpu'.",
            id="no way to it",
        ),
        pytest.param(
            InvalidConnection("gpu", SECRET, SECRET),
            "The connection 'gpu' cannot be used by Airflow's API server.",
            id="a kubeconfig that is not there",
        ),
        pytest.param(
            CredentialsFailed("gpu", SECRET),
            "The cluster does not accept the connection 'gpu' as it is used here.",
            id="an exec plugin that is not installed",
        ),
        pytest.param(
            AirflowNotFoundException(SECRET), "Airflow's API server finds no connection 'gpu'.", id="no connection"
        ),
        pytest.param(ClusterError(SECRET), REFUSED, id="anything else of the cluster"),
        pytest.param(RuntimeError(SECRET), REFUSED, id="a secrets backend"),
    ],
)
async def test_fault_is_told_without_anything_of_the_connection(error: Exception, text: str) -> None:
    looking = Looking(config_of=refusing(error))

    sight = await looking.look(LEAD)

    assert sight == Sight(None, text)
    await looking.aclose()


async def test_all_who_ask_at_once_share_one_look() -> None:
    connection = Refusing(ClusterError("no"))
    looking = Looking(config_of=connection)

    asking = [asyncio.create_task(looking.look(LEAD)) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()
    connection.answers.set()
    sights = await asyncio.gather(*asking, return_exceptions=True)

    assert isinstance(sights[0], asyncio.CancelledError)
    assert sights[1:] == [Sight(None, REFUSED)] * 49
    assert connection.asked == 1
    await looking.aclose()


async def test_sight_serves_until_it_is_old() -> None:
    now = 100.0
    connection = refusing(ClusterError("no"))
    looking = Looking(clock=lambda: now, config_of=connection)

    await looking.look(LEAD)
    now += FRESH_S / 2
    await looking.look(LEAD)
    assert connection.asked == 1
    now += FRESH_S
    await looking.look(LEAD)

    assert connection.asked == 2
    await looking.aclose()


async def test_gangs_of_other_tasks_are_looked_at_by_themselves() -> None:
    connection = refusing(ClusterError("no"))
    looking = Looking(config_of=connection)

    for lead in (LEAD, replace(LEAD, key=TaskKey("dag", "run", "other")), replace(LEAD, kubernetes_conn_id="b")):
        await looking.look(lead)

    assert connection.asked == 3
    await looking.aclose()


async def test_cluster_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookings, "LOOK_S", 0.0)
    looking = Looking(config_of=Refusing(ClusterError("never")))

    assert await looking.look(LEAD) == Sight(None, TIMED_OUT)
    await looking.aclose()


async def test_unknown_connection_is_not_asked_for() -> None:
    connection = refusing(ClusterError("no"))
    looking = Looking(config_of=connection)

    assert await looking.look(replace(LEAD, kubernetes_conn_id=None)) == Sight(None, NO_CONNECTION_KNOWN)
    assert connection.asked == 0
    await looking.aclose()

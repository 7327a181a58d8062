"""Every request of an impersonating kubeconfig has the headers of the impersonated user, over each transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from tests.unit.connection_server import ConnectionServer
from tests.unit.fault_server import kubeconfig

if TYPE_CHECKING:
    from tests.unit.conftest import Connect

USER = {"token": "t0ken", "as": "jane", "as-groups": ["a", "b"], "as-user-extra": {"scope": ["x", "y"]}}
HEADERS = [
    "Authorization: Bearer t0ken",
    "Impersonate-User: jane",
    "Impersonate-Group: a",
    "Impersonate-Group: b",
    "Impersonate-Extra-scope: x",
    "Impersonate-Extra-scope: y",
]


def impersonating(url: str) -> ClusterConfig:
    return ClusterConfig.from_extras("k8s", {"kube_config": kubeconfig(url, user=USER)})


def credentials_in(head: str) -> list[str]:
    return [line for line in head.split("\r\n") if line.startswith(("Authorization", "Impersonate"))]


async def test_request_impersonates(connect: Connect) -> None:
    async with ConnectionServer() as server, connect(impersonating(server.url)) as client:
        await client.version()
    assert credentials_in(server.heads[0]) == HEADERS

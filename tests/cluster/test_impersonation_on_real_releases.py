"""A kubeconfig that impersonates a user: the API server sees that user, with its groups and its extra values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import Forbidden
from airflow_provider_gangjobs.kube.resources import PODS, Resource

if TYPE_CHECKING:
    from tests.cluster.control_plane import ControlPlane

SELF = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
JANE = {
    "as": "jane",
    "as-uid": "7",
    "as-groups": ["team-a", "team-b"],
    "as-user-extra": {"example.org/Scope": ["x", "y"]},
}


def impersonating(plane: ControlPlane, fields: dict[str, Any]) -> ClusterConfig:
    content = yaml.safe_load((plane.folder / "admin.kubeconfig").read_text())
    content["users"][0]["user"].update(fields)
    return ClusterConfig.from_extras("k8s", {"kube_config": content})


async def test_server_sees_the_impersonated_user(plane: ControlPlane) -> None:
    async with Client(impersonating(plane, JANE)) as client:
        review = await client.create(SELF, {"apiVersion": SELF.api_version, "kind": SELF.kind})
    user = review["status"]["userInfo"]
    assert (user["username"], user["uid"]) == ("jane", "7")
    assert set(user["groups"]) == {"team-a", "team-b", "system:authenticated"}
    assert user["extra"] == {"example.org/scope": ["x", "y"]}


async def test_impersonated_user_has_its_own_rights(plane: ControlPlane) -> None:
    async with Client(impersonating(plane, {"as": "jane"})) as client:
        with pytest.raises(Forbidden, match='User "jane" cannot list'):
            await client.list(PODS, "default")

"""A namespace for one test, used as a ServiceAccount that may do what `docs/rbac.yaml` says and nothing more."""

from __future__ import annotations

import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
import yaml

from airflow_provider_gangjobs.cluster.connection import ClusterConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.plane import ControlPlane

ROLE = Path(__file__).resolve().parents[2] / "docs" / "rbac.yaml"
ACCOUNT = "airflow"
TOKEN_S = 3600


@dataclass(frozen=True)
class Tenant:
    """What a user of the cluster has been given."""

    plane: ControlPlane
    namespace: str
    kubeconfig: Path

    @property
    def user(self) -> str:
        """The name under which the audit log knows the ServiceAccount."""
        return f"system:serviceaccount:{self.namespace}:{ACCOUNT}"

    @property
    def config(self) -> ClusterConfig:
        """As the provider reads it from an Airflow connection."""
        extras = {"kube_config_path": str(self.kubeconfig), "namespace": self.namespace}
        return ClusterConfig.from_extras("kubernetes_default", extras)

    def refused(self) -> list[str]:
        """Requests of the ServiceAccount that RBAC refused, as `verb resource`."""
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.plane.audited()
            if event["user"]["username"] == self.user
            and event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        ]

    def used(self) -> set[tuple[str, str, str]]:
        """What the ServiceAccount did: (API group, resource with subresource, verb)."""
        used = set()
        for event in self.plane.audited():
            of = event.get("objectRef")
            if event["user"]["username"] == self.user and of:
                resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
                used.add((of.get("apiGroup", ""), resource, event["verb"]))
        return used

    @classmethod
    @contextmanager
    def admitted(cls, plane: ControlPlane, purpose: str) -> Iterator[Self]:
        """Make the namespace, the account and its binding; delete the namespace at the end."""
        name = f"{re.sub('[^a-z0-9]+', '-', purpose.lower()).strip('-')[:40]}-{uuid.uuid4().hex[:6]}"
        with plane.client() as admin:
            _post(admin, "/api/v1/namespaces", {"metadata": {"name": name}})
            _post(admin, f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
            rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}"
            role = yaml.safe_load(ROLE.read_text())
            _post(admin, f"{rbac}/roles", role)
            _post(admin, f"{rbac}/rolebindings", _binding(name, role["metadata"]["name"]))
            issued = _post(
                admin,
                f"/api/v1/namespaces/{name}/serviceaccounts/{ACCOUNT}/token",
                {
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenRequest",
                    "spec": {"expirationSeconds": TOKEN_S},
                },
            )
            try:
                yield cls(plane, name, plane.kubeconfig(name, issued["status"]["token"], namespace=name))
            finally:
                gone = admin.delete(f"/api/v1/namespaces/{name}")
                assert gone.is_success or gone.status_code == httpx.codes.NOT_FOUND, gone.text


def _binding(namespace: str, role: str) -> dict[str, Any]:
    return {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
    }


def _post(admin: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = admin.post(path, json=body)
    assert reply.is_success, reply.text
    answer: dict[str, Any] = reply.json()
    return answer

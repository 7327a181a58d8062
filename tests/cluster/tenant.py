"""A namespace for one test, used as a ServiceAccount that may do what `rbac.yaml` says and nothing more."""

from __future__ import annotations

import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from tests.leftovers import delete_gangs
from tests.replies import accepted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.cluster.control_plane import ControlPlane

ROLE = Path(__file__).resolve().parents[2] / "airflow_provider_gangjobs" / "rbac" / "rbac.yaml"
ACCOUNT = "airflow"
TOKEN_S = 12 * 3600
"""Longer than any benchmark."""


@dataclass(frozen=True)
class Tenant:
    """What a user of the cluster has been given."""

    plane: ControlPlane
    namespace: str
    kubeconfig: Path
    account: str = ACCOUNT
    _audited_from: int = 0
    """Where the events of the ServiceAccount begin in the audit log, which becomes long."""

    @property
    def user(self) -> str:
        """The name under which the audit log knows the ServiceAccount."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"

    @property
    def extras(self) -> dict[str, str]:
        """The extras of an Airflow connection to the namespace."""
        return {"kube_config_path": str(self.kubeconfig), "namespace": self.namespace}

    @property
    def config(self) -> ClusterConfig:
        """As the provider reads it from an Airflow connection."""
        return ClusterConfig.from_extras("kubernetes_default", self.extras)

    def audited(self) -> Iterator[dict[str, Any]]:
        """The audit events of the ServiceAccount."""
        return self.plane.audited(by=self.user, from_byte=self._audited_from)

    def forbidden_requests(self) -> list[str]:
        """Requests of the ServiceAccount that RBAC refused, as `verb resource`."""
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.audited()
            if event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        ]

    def used_permissions(self) -> set[tuple[str, str, str]]:
        """What the ServiceAccount did: (API group, resource with subresource, verb)."""
        used = set()
        for event in self.audited():
            if of := event.get("objectRef"):
                resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
                used.add((of.get("apiGroup", ""), resource, event["verb"]))
        return used

    @classmethod
    @contextmanager
    def created(cls, plane: ControlPlane, purpose: str) -> Iterator[Self]:
        """Make the namespace, the account and its binding. At the end, delete the Jobs and pods of the namespace."""
        name = f"{re.sub('[^a-z0-9]+', '-', purpose.lower()).strip('-')[:40]}-{uuid.uuid4().hex[:6]}"
        audited_from = plane.audit_log.stat().st_size
        with plane.client() as admin:
            _post(admin, "/api/v1/namespaces", {"metadata": {"name": name}})
            token = _account(admin, name, ACCOUNT, yaml.safe_load(ROLE.read_text()))
            try:
                yield cls(plane, name, plane.kubeconfig(name, token, namespace=name), _audited_from=audited_from)
            finally:
                delete_gangs(admin, name)

    def grant(self, role: dict[str, Any]) -> None:
        """Bind the account to a further Role."""
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        with self.plane.client() as admin:
            _post(admin, f"{rbac}/roles", role)
            _post(admin, f"{rbac}/rolebindings", _binding(self.namespace, self.account, role["metadata"]["name"]))

    def grant_everywhere(self, role: dict[str, Any]) -> None:
        """Bind the account to a further ClusterRole, which gets a name of its own."""
        rbac, name = "/apis/rbac.authorization.k8s.io/v1", f"{role['metadata']['name']}-{self.namespace}"
        binding = _binding(self.namespace, self.account, name)
        binding["roleRef"]["kind"] = "ClusterRole"
        with self.plane.client() as admin:
            _post(admin, f"{rbac}/clusterroles", {**role, "metadata": {"name": name}})
            _post(admin, f"{rbac}/clusterrolebindings", binding)

    def with_account(self, account: str, rules: list[dict[str, Any]]) -> Tenant:
        """Another ServiceAccount of the namespace, which may do what these rules say."""
        with self.plane.client() as admin:
            token = _account(admin, self.namespace, account, {"metadata": {"name": account}, "rules": rules})
        kubeconfig = self.plane.kubeconfig(f"{self.namespace}-{account}", token, namespace=self.namespace)
        return Tenant(self.plane, self.namespace, kubeconfig, account, self._audited_from)


def _account(admin: httpx.Client, namespace: str, account: str, role: dict[str, Any]) -> str:
    """Make a ServiceAccount that is bound to a Role; a token of it."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    _post(admin, accounts, {"metadata": {"name": account}})
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    _post(admin, f"{rbac}/roles", role)
    _post(admin, f"{rbac}/rolebindings", _binding(namespace, account, role["metadata"]["name"]))
    wanted = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_S},
    }
    return str(_post(admin, f"{accounts}/{account}/token", wanted)["status"]["token"])


def _binding(namespace: str, account: str, role: str) -> dict[str, Any]:
    return {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


def _post(admin: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    return accepted(admin.post(path, json=body))

"""Namespaces of tests in a cluster with Kueue, with the documented rights."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.cluster.tenant import ACCOUNT, Tenant
from tests.replies import accepted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.control_plane import ControlPlane

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
ROLES: Final = Path(__file__).resolve().parents[2] / "airflow_provider_gangjobs" / "rbac" / "rbac-kueue.yaml"


@contextmanager
def kueue_tenant(
    plane: ControlPlane, purpose: str, *, role: bool = True, cluster_role: bool = True
) -> Iterator[Tenant]:
    """A namespace whose ServiceAccount has the Role of `rbac.yaml`, and what is asked for of `rbac-kueue.yaml`."""
    documents = list(yaml.safe_load_all(ROLES.read_text()))
    with Tenant.created(plane, purpose) as tenant:
        for document in documents:
            if role if document["kind"] == "Role" else cluster_role:
                _grant(tenant, document)
        yield tenant


def _grant(tenant: Tenant, role: dict[str, Any]) -> None:
    kind, name = role["kind"], f"{tenant.namespace}-{role['metadata']['name']}"
    where = f"{RBAC}/namespaces/{tenant.namespace}" if kind == "Role" else RBAC
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": tenant.namespace}
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [account],
    }
    with tenant.plane.client() as admin:
        for plural, body in (
            (f"{kind.lower()}s", {**role, "metadata": {"name": name}}),
            (f"{kind.lower()}bindings", binding),
        ):
            accepted(admin.post(f"{where}/{plural}", json=body))

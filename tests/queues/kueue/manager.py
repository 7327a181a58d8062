"""The manager of Kueue beside a real control plane: definitions, webhooks by URL, a certificate and a configuration."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

from scripts.ports import free_port
from tests.cluster.control_plane import skip_or_fail
from tests.queues.kueue.build import (
    BUILDER,
    CERTIFICATES_VARIABLE,
    VISIBILITY_PORT_VARIABLE,
    binary,
    folder,
)
from tests.queues.webhook_controller import WebhookController
from tests.replies import accepted, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx

    from tests.cluster.control_plane import ControlPlane

GROUP: Final = "/apis/kueue.x-k8s.io"
VERSION: Final = "v1beta2"
CONVERTED: Final = {"localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters"}
"""The storage version of these resources differs from the version that the manager reads."""
WEBHOOKS: Final = {
    *("mjob.kb.io", "mclusterqueue.kb.io", "mresourceflavor.kb.io", "mworkload.kb.io"),
    *("mjobset.kb.io", "vjobset.kb.io"),
    *("vjob.kb.io", "vclusterqueue.kb.io", "vcohort.kb.io", "vresourceflavor.kb.io", "vworkload.kb.io"),
}
KINDS: Final = {
    "resourceflavors": "ResourceFlavor",
    "clusterqueues": "ClusterQueue",
    "localqueues": "LocalQueue",
    "workloadpriorityclasses": "WorkloadPriorityClass",
    "topologies": "Topology",
    "admissionchecks": "AdmissionCheck",
}


@dataclass
class Kueue(WebhookController):
    """A manager of Kueue."""

    name = "kueue"
    release: str
    config: Mapping[str, Any] = field(default_factory=dict)
    visibility: int = field(default_factory=free_port)

    def install(self) -> None:
        """Create the namespace, the definitions, and wait until they are served. The manager exits otherwise."""
        self.write_certificate()
        with self.plane.client() as client:
            accepted(client.post("/api/v1/namespaces", json={"metadata": {"name": "kueue-system"}}))
            for path in sorted((folder(self.release) / "crds").glob("*.yaml")):
                definition = yaml.load(path.read_text(), yaml.CSafeLoader)
                if definition["spec"]["names"]["plural"] in CONVERTED:
                    webhook: dict[str, Any] = {"clientConfig": self.client_config("/convert")}
                    webhook["conversionReviewVersions"] = ["v1"]
                    definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
                accepted(client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=definition))
            wait_until(lambda: not {*KINDS, "workloads"} - _served(client), "the resources of Kueue are served")

    def start(self) -> None:
        """Start the manager, and its webhooks as soon as it can serve them."""
        variables = {CERTIFICATES_VARIABLE: str(self.work), VISIBILITY_PORT_VARIABLE: str(self.visibility)}
        self.run(binary(self.release), self.configuration, **variables)

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration of the manager."""
        return {
            "apiVersion": f"config.kueue.x-k8s.io/{VERSION}",
            "namespace": "kueue-system",
            "metrics": {"bindAddress": "0"},
            "clientConnection": {"qps": 200, "burst": 400},
            "integrations": {"frameworks": ["batch/job"]},
            **self.config,
        }

    def install_webhooks(self) -> None:
        """Create the webhook configurations. From then on every Job needs the manager."""
        self.create_webhooks(folder(self.release) / "webhooks" / "manifests.yaml", WEBHOOKS)

    def install_visibility(self) -> None:
        """Let the API server forward requests of the visibility API to the manager, and wait until it does."""
        spec = {"type": "ExternalName", "externalName": "127.0.0.1"}
        service = {"metadata": {"name": "visibility-server"}, "spec": spec}
        with self.plane.client() as client:
            accepted(client.post("/api/v1/namespaces/kueue-system/services", json=service))
            for path in sorted((folder(self.release) / "visibility").glob("apiservice_*.yaml")):
                document = yaml.load(path.read_text(), yaml.CSafeLoader)
                document["spec"]["service"]["port"] = self.visibility
                accepted(client.post("/apis/apiregistration.k8s.io/v1/apiservices", json=document))
            wait_until(
                lambda: client.get("/apis/visibility.kueue.x-k8s.io/v1beta2").is_success, "the visibility API is served"
            )

    def create(self, plural: str, body: Mapping[str, Any], namespace: str | None = None) -> None:
        """Create an object, as soon as the webhooks answer."""
        where = f"/namespaces/{namespace}" if namespace else ""
        document = {"apiVersion": f"kueue.x-k8s.io/{VERSION}", "kind": KINDS[plural], **body}
        with self.plane.client() as client:
            path = f"{GROUP}/{VERSION}{where}/{plural}"
            wait_until(lambda: client.post(path, json=document).is_success, f"{plural} accept {body['metadata']}")

    def exists(self, plural: str, name: str) -> bool:
        """Whether there is an object of this name, of a resource without namespaces."""
        with self.plane.client() as client:
            return client.get(f"{GROUP}/{VERSION}/{plural}/{name}").is_success

    def patch(self, plural: str, name: str, body: Mapping[str, Any], namespace: str | None = None) -> None:
        """Merge-patch an object."""
        where = f"/namespaces/{namespace}" if namespace else ""
        headers = {"Content-Type": "application/merge-patch+json"}
        with self.plane.client() as client:
            accepted(client.patch(f"{GROUP}/{VERSION}{where}/{plural}/{name}", json=body, headers=headers))

    def workload_of(self, namespace: str, job_uid: str) -> dict[str, Any] | None:
        """The Workload of a Job."""
        query = {"labelSelector": f"kueue.x-k8s.io/job-uid={job_uid}"}
        with self.plane.client() as client:
            reply = client.get(f"{GROUP}/{VERSION}/namespaces/{namespace}/workloads", params=query)
        found: list[dict[str, Any]] = accepted(reply)["items"]
        return found[0] if found else None

    def used_cpu(self, cluster_queue: str) -> str:
        """How much CPU of its quota a ClusterQueue has given away."""
        with self.plane.client() as client:
            status = accepted(client.get(f"{GROUP}/{VERSION}/clusterqueues/{cluster_queue}")).get("status", {})
        usage = status.get("flavorsUsage") or [{"resources": [{"name": "cpu", "total": "0"}]}]
        return next(str(one["total"]) for one in usage[0]["resources"] if one["name"] == "cpu")

    def create_queue(
        self,
        namespace: str,
        *,
        name: str = "team",
        cpu: str = "4",
        flavor: Mapping[str, Any] | None = None,
        is_complete: bool = True,
        **spec: Any,
    ) -> str:
        """Create a LocalQueue, with a ClusterQueue and a flavor of its own. Returns the name of the ClusterQueue.

        :param is_complete: Whether the flavor names only what exists, so that the queue becomes active.
        """
        cluster_queue = f"{namespace}-{name}"
        resources = [{"name": "cpu", "nominalQuota": cpu}]
        group = {"coveredResources": ["cpu"], "flavors": [{"name": cluster_queue, "resources": resources}]}
        self.create("resourceflavors", {"metadata": {"name": cluster_queue}, "spec": dict(flavor or {})})
        self.create(
            "clusterqueues",
            {
                "metadata": {"name": cluster_queue},
                "spec": {
                    "namespaceSelector": {},
                    "preemption": {"withinClusterQueue": "LowerPriority"},
                    "resourceGroups": [group],
                    **spec,
                },
            },
        )
        self.create("localqueues", {"metadata": {"name": name}, "spec": {"clusterQueue": cluster_queue}}, namespace)
        if is_complete:
            wait_until(lambda: self.is_active(namespace, name), f"the queue {name} is active")
        return cluster_queue

    def is_active(self, namespace: str, name: str) -> bool:
        """Whether a LocalQueue takes Workloads."""
        with self.plane.client() as client:
            queue = accepted(client.get(f"{GROUP}/{VERSION}/namespaces/{namespace}/localqueues/{name}"))
        conditions = queue.get("status", {}).get("conditions") or ()
        return any((item["type"], item["status"]) == ("Active", "True") for item in conditions)


@contextlib.contextmanager
def running_kueue(plane: ControlPlane, release: str, **config: Any) -> Iterator[Kueue]:
    """The manager of Kueue while the block runs. Without its binary the test is skipped, except in CI."""
    if not BUILDER.is_current(release):
        skip_or_fail(f"no manager of Kueue {release}: run `python -m tests.queues.kueue.build {release}`")
    kueue = Kueue(plane, release, config)
    try:
        kueue.install()
        kueue.start()
        kueue.install_webhooks()
        kueue.install_visibility()
        yield kueue
    finally:
        kueue.stop()


def _served(client: httpx.Client) -> set[str]:
    reply = client.get(f"{GROUP}/{VERSION}")
    return {resource["name"] for resource in reply.json()["resources"]} if reply.is_success else set()

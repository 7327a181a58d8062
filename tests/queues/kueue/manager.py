"""The manager of Kueue beside a real control plane: definitions, webhooks by URL, a certificate and a configuration."""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

from scripts.ports import free_port
from tests.cluster.certificates import write_certificate
from tests.cluster.control_plane import skip_or_fail
from tests.queues.kueue.build import (
    BUILDER,
    CERTIFICATES_VARIABLE,
    VISIBILITY_PORT_VARIABLE,
    binary,
    folder,
)
from tests.replies import accepted, is_healthy, wait_until
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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
class Kueue:
    """A manager of Kueue. `start` and `stop` may be called in turn; the definitions stay."""

    plane: ControlPlane
    release: str
    config: Mapping[str, Any] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    health: int = field(default_factory=free_port)
    visibility: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def work(self) -> Path:
        """The folder of the certificate, the configuration and the log."""
        return self.plane.folder / "kueue"

    def install(self) -> None:
        """Create the namespace, the definitions, and wait until they are served. The manager exits otherwise."""
        bundle = base64.b64encode(write_certificate(self.work, "webhooks")).decode()
        with self.plane.client() as client:
            accepted(client.post("/api/v1/namespaces", json={"metadata": {"name": "kueue-system"}}))
            for path in sorted((folder(self.release) / "crds").glob("*.yaml")):
                definition = yaml.load(path.read_text(), yaml.CSafeLoader)
                if definition["spec"]["names"]["plural"] in CONVERTED:
                    webhook: dict[str, Any] = {"clientConfig": self._client_config("/convert", bundle)}
                    webhook["conversionReviewVersions"] = ["v1"]
                    definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
                accepted(client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=definition))
            wait_until(lambda: not {*KINDS, "workloads"} - _served(client), "the resources of Kueue are served")

    def start(self) -> None:
        """Start the manager, and its webhooks as soon as it can serve them."""
        config = {
            "apiVersion": f"config.kueue.x-k8s.io/{VERSION}",
            "kind": "Configuration",
            "namespace": "kueue-system",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self.port, "certDir": str(self.work)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 200, "burst": 400},
            "integrations": {"frameworks": ["batch/job"]},
            **self.config,
        }
        (self.work / "config.yaml").write_text(yaml.safe_dump(config))
        with (self.work / "manager.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(binary(self.release)),
                    f"--config={self.work / 'config.yaml'}",
                    f"--kubeconfig={self.plane.folder / 'admin.kubeconfig'}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    CERTIFICATES_VARIABLE: str(self.work),
                    VISIBILITY_PORT_VARIABLE: str(self.visibility),
                },
            )
        wait_until(self._is_ready, "the manager of Kueue is ready")

    def install_webhooks(self) -> None:
        """Create the webhook configurations. From then on every Job needs the manager."""
        bundle = base64.b64encode((self.work / "tls.crt").read_bytes()).decode()
        manifests = (folder(self.release) / "webhooks" / "manifests.yaml").read_text()
        with self.plane.client() as client:
            for document in yaml.load_all(manifests, yaml.CSafeLoader):
                kept = [hook for hook in document["webhooks"] if hook["name"] in WEBHOOKS]
                for hook in kept:
                    hook["clientConfig"] = self._client_config(hook["clientConfig"]["service"]["path"], bundle)
                document |= {"webhooks": kept, "metadata": {"name": f"kueue-{document['kind'].lower()[:8]}"}}
                path = f"/apis/admissionregistration.k8s.io/v1/{document['kind'].lower()}s"
                accepted(client.post(path, json=document))

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

    def stop(self) -> None:
        """Stop the manager and wait until it is gone. The webhooks stay."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(TIMEOUT_S)
            finally:
                self._process.kill()

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

    def _client_config(self, path: str, bundle: str) -> dict[str, Any]:
        return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": bundle}

    def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"the manager ended: {(self.work / 'manager.log').read_text()[-3000:]}")
        return is_healthy(f"http://127.0.0.1:{self.health}/readyz")


@contextlib.contextmanager
def running_kueue(plane: ControlPlane, release: str, **config: Any) -> Iterator[Kueue]:
    """The manager of Kueue while the block runs. Without its binary the test is skipped, except in CI."""
    if not BUILDER.is_current(release):
        skip_or_fail(f"no manager of Kueue {release}: run `python -m tests.queues.kueue.build {release}`")
    kueue = Kueue(plane, release, config)
    kueue.work.mkdir()
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

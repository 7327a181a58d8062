"""The JobSet controller beside a real control plane: its definition, webhooks by URL, a certificate and a process."""

from __future__ import annotations

import base64
import contextlib
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

from scripts.ports import free_port
from tests.cluster.certificates import write_certificate
from tests.cluster.control_plane import MISSING_BINARY_ADVICE, die_with_parent, skip_or_fail
from tests.queues.jobset.build import BUILDER, NAME, binary, folder
from tests.replies import accepted, is_healthy, wait_until
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import httpx

    from tests.cluster.control_plane import ControlPlane

API: Final = "/apis/jobset.x-k8s.io/v1alpha2"
WEBHOOKS: Final = {"mjobset.kb.io", "vjobset.kb.io"}
"""The webhooks of JobSets. Those of pods place each Job in a topology of its own, and no test needs this."""


@dataclass
class JobSetController:
    """The controller of JobSets. `start` and `stop` may be called in turn; the definition and the webhooks stay."""

    plane: ControlPlane
    port: int = field(default_factory=free_port)
    health: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def work(self) -> Path:
        """The folder of the certificate, the configuration and the log."""
        return self.plane.folder / "jobset"

    def install(self) -> None:
        """Create the certificate and the definition, and wait until JobSets are served."""
        self.work.mkdir()
        write_certificate(self.work, "webhooks")
        with self.plane.client() as client:
            for path in sorted((folder() / "definitions").glob("*.yaml")):
                definition = yaml.load(path.read_text(), yaml.CSafeLoader)
                accepted(client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=definition))
            wait_until(lambda: client.get(f"{API}/jobsets").is_success, "JobSets are served")

    def start(self) -> None:
        """Start the controller, and wait until its webhooks answer."""
        config = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.health}"},
            "metrics": {"bindAddress": "0", "certDir": str(self.work)},
            "webhook": {"host": "127.0.0.1", "port": self.port, "certDir": str(self.work)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
        }
        (self.work / "config.yaml").write_text(yaml.safe_dump(config))
        command = [
            str(binary()),
            f"--config={self.work / 'config.yaml'}",
            f"--kubeconfig={self.plane.folder / 'admin.kubeconfig'}",
        ]
        with (self.work / "controller.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)
        wait_until(self._is_ready, "the JobSet controller is ready")

    def install_webhooks(self) -> None:
        """Create the webhook configurations, and wait until they are in force.

        The controller fails on a JobSet without the defaults that its webhook sets.
        """
        bundle = base64.b64encode((self.work / "tls.crt").read_bytes()).decode()
        manifests = (folder() / "webhooks" / "manifests.yaml").read_text()
        with self.plane.client() as client:
            for document in filter(None, yaml.load_all(manifests, yaml.CSafeLoader)):
                kept = [hook for hook in document["webhooks"] if hook["name"] in WEBHOOKS]
                for hook in kept:
                    url = f"https://127.0.0.1:{self.port}{hook['clientConfig']['service']['path']}"
                    hook["clientConfig"] = {"url": url, "caBundle": bundle}
                document |= {"webhooks": kept, "metadata": {"name": f"jobset-{document['kind'].lower()[:8]}"}}
                path = f"/apis/admissionregistration.k8s.io/v1/{document['kind'].lower()}s"
                accepted(client.post(path, json=document))
            wait_until(lambda: _has_defaults(client), "the webhook sets defaults")

    def stop(self) -> None:
        """Stop the controller and wait until it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(TIMEOUT_S)
            finally:
                self._process.kill()

    def create(
        self, namespace: str, name: str, *, labels: Mapping[str, str] | None = None, **spec: Any
    ) -> dict[str, Any]:
        """Create a JobSet."""
        body = _job_set(name, **spec)
        body["metadata"]["labels"] = dict(labels or {})
        with self.plane.client() as client:
            return accepted(client.post(f"{API}/namespaces/{namespace}/jobsets", json=body))

    def delete(self, namespace: str, name: str) -> None:
        """Delete a JobSet and everything that it owns."""
        with self.plane.client() as client:
            accepted(client.delete(f"{API}/namespaces/{namespace}/jobsets/{name}"))

    def jobs_of(self, namespace: str, name: str) -> dict[str, dict[str, Any]]:
        """The Jobs of a JobSet, by the name of their replicated Job."""
        query = {"labelSelector": f"jobset.sigs.k8s.io/jobset-name={name}"}
        with self.plane.client() as client:
            found = accepted(client.get(f"/apis/batch/v1/namespaces/{namespace}/jobs", params=query))
        return {job["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"]: job for job in found["items"]}

    def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"the controller ended: {(self.work / 'controller.log').read_text()[-3000:]}")
        return is_healthy(f"http://127.0.0.1:{self.health}/readyz")


def _has_defaults(client: httpx.Client) -> bool:
    """Return whether a new JobSet gets its defaults. The controller answers webhooks with 404 until it has all."""
    url = f"{API}/namespaces/default/jobsets?dryRun=All"
    reply = client.post(url, json=_job_set("probe", replicatedJobs=[]))
    return reply.is_success and "network" in reply.json()["spec"]


@contextlib.contextmanager
def running_job_sets(plane: ControlPlane) -> Iterator[JobSetController]:
    """The controller while the block runs. Without its binary the test is skipped, except in CI."""
    if not BUILDER.is_current(NAME):
        skip_or_fail(f"no JobSet controller: run `python -m tests.queues.jobset.build`; {MISSING_BINARY_ADVICE}")
    controller = JobSetController(plane)
    try:
        controller.install()
        controller.start()
        controller.install_webhooks()
        yield controller
    finally:
        controller.stop()


def _job_set(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": spec}

"""The JobSet controller beside a real control plane: its definition, webhooks by URL, a certificate and a process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.cluster.control_plane import MISSING_BINARY_ADVICE, die_with_parent, skip_or_fail
from tests.queues.jobset.build import BUILDER, NAME, binary, folder
from tests.queues.webhook_controller import WebhookController
from tests.replies import accepted, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx

    from tests.cluster.control_plane import ControlPlane

API: Final = "/apis/jobset.x-k8s.io/v1alpha2"
WEBHOOKS: Final = {"mjobset.kb.io", "vjobset.kb.io"}
"""The webhooks of JobSets. Those of pods place each Job in a topology of its own, and no test needs this."""


class JobSetController(WebhookController):
    """The controller of JobSets."""

    name = "jobset"
    before_exec = staticmethod(die_with_parent)

    def install(self) -> None:
        """Create the certificate and the definition, and wait until JobSets are served."""
        self.write_certificate()
        with self.plane.client() as client:
            for path in sorted((folder() / "definitions").glob("*.yaml")):
                definition = yaml.load(path.read_text(), yaml.CSafeLoader)
                accepted(client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=definition))
            wait_until(lambda: client.get(f"{API}/jobsets").is_success, "JobSets are served")

    def start(self) -> None:
        """Start the controller, and wait until its webhooks answer."""
        config = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "metrics": {"bindAddress": "0", "certDir": str(self.work)},
        }
        self.run(binary(), config)

    def install_webhooks(self) -> None:
        """Create the webhook configurations, and wait until they are in force.

        The controller fails on a JobSet without the defaults that its webhook sets.
        """
        self.create_webhooks(folder() / "webhooks" / "manifests.yaml", WEBHOOKS)
        with self.plane.client() as client:
            wait_until(lambda: _has_defaults(client), "the webhook sets defaults")

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

"""A Job without controllers, and pods that a test creates in the state that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.gang.identity import ledger_selector
from airflow_provider_gangjobs.jobs.requests import list_pods
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST, LABEL_GANG
from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester
from airflow_provider_gangjobs.tracking.harvest.ledger import Ledger
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import CONFIGMAPS, PODS
from tests.provider.virtual_control_plane import INDEX, NAMESPACE, VirtualControlPlane

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef


class GangWithoutControllers:
    """A Job of four workers that no controller handles, so that the test creates its pods."""

    def __init__(self, plane: VirtualControlPlane) -> None:
        self.plane = plane
        self.ref: GangRef = plane.submit(workers=4, gang=False)

    def pod(
        self, rank: int, *, phase: str = "Succeeded", message: str = "", held: bool = True, node: str | None = "node-0"
    ) -> dict[str, Any]:
        """Create a pod of this rank in this phase. `held` pods have the provider's finalizer."""
        meta = {
            "name": f"train-{rank}",
            "labels": {LABEL_GANG: "train", "batch.kubernetes.io/controller-uid": self.ref.uid},
            "annotations": {INDEX: str(rank)},
            "finalizers": [FINALIZER_HARVEST] if held else [],
        }
        containers = [{"name": "main", "image": "i"}]
        placed = {"nodeName": node} if node else {}
        body = {"metadata": meta, "spec": {"containers": containers, **placed}}
        made = self.plane.registry.create(PODS, body, NAMESPACE)
        if phase == "Pending":
            return made
        ended = {"exitCode": int(phase == "Failed"), "message": message, "finishedAt": "2026-01-01T00:00:09Z"}
        state = {"terminated": ended} if phase != "Running" else {"running": {}}
        container = {"name": "main", "image": "i", "imageID": "i", "ready": False, "restartCount": 0, "state": state}
        status = {"phase": phase, "containerStatuses": [container]}
        patch = {"status": status}
        return self.plane.registry.patch(
            PODS, made["metadata"]["name"], NAMESPACE, patch, PatchKind.MERGE, subresource="status"
        )

    def ledger(self, **options: Any) -> Ledger:
        return Ledger(self.plane.client, self.ref, **options)

    def harvester(self, ledger: Ledger | None = None) -> Harvester:
        return Harvester(self.plane.client, ledger or self.ledger())

    async def full_harvester(self, harvester: Harvester | None = None) -> Harvester:
        """Return a harvester that has seen all pods."""
        harvester = harvester or self.harvester()
        await self.enqueue_all(harvester)
        return harvester

    async def enqueue_all(self, harvester: Harvester) -> None:
        harvester.enqueue(await list_pods(self.plane.client, self.ref))

    def shards(self) -> list[dict[str, Any]]:
        return self.plane.registry.list(CONFIGMAPS, NAMESPACE, ledger_selector(self.ref.name, self.ref.uid))

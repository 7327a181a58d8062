"""Creates, deletes, releases and adopts pods for the Job controller, and records an Event for each change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.job.pods import FINALIZER_TRACKING, is_tracked
from gangjobs_sandbox.controllers.meta import (
    Obj,
    controller_ref,
    is_deleting,
    name_of,
    namespace_of,
    uid_of,
)
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Registry
from gangjobs_sandbox.resources import JOBS, PODS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangjobs_sandbox.cooperative import Cooperative

log = logging.getLogger(__name__)

COMPONENT = "job-controller"
SLOW_START_PODS = 1
_NOT_FOUND = 404


class PodControl:
    """Writes the pods of a Job. If one pod is refused, the other pods are still tried."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def create(self, job: Obj, pods: Iterable[Obj]) -> Cooperative[tuple[int, StatusError | None]]:
        """Create pods in batches of 1, 2, 4... and stop after the first batch with a refusal.

        Returns the number of created pods and the first refusal. A quota that refuses every pod thus costs one request.
        """
        created, batch_end = 0, SLOW_START_PODS
        refusal: StatusError | None = None
        for tried, pod in enumerate(pods):
            if tried == batch_end:
                if refusal is not None:
                    break
                batch_end = batch_end * 2 + SLOW_START_PODS
            refused = self._create(job, pod)
            created += refused is None
            refusal = refusal or refused
            yield
        return created, refusal

    def delete(
        self, job: Obj, pods: Iterable[Obj], *, uncounted: bool
    ) -> Cooperative[tuple[list[Obj], StatusError | None]]:
        """Delete pods. With `uncounted`, the finalizer is removed first, so that the pods do not count.

        Returns the pods that are deleted or were already gone, and the first refusal.
        """
        deleted: list[Obj] = []
        refusal: StatusError | None = None
        for pod in pods:
            try:
                if uncounted:
                    self.release(pod)
                self._delete(job, pod)
                deleted.append(pod)
            except StatusError as exc:
                refusal = refusal or exc
            yield
        return deleted, refusal

    def release_all(self, pods: Iterable[Obj]) -> Cooperative[tuple[set[str], StatusError | None]]:
        """Release each pod. Returns the UIDs of the released pods, and the first refusal."""
        released: set[str] = set()
        refusal: StatusError | None = None
        for pod in pods:
            try:
                self.release(pod)
                released.add(uid_of(pod))
            except StatusError as exc:
                refusal = refusal or exc
            yield
        return released, refusal

    def release(self, pod: Obj) -> None:
        """Remove the tracking finalizer. A pod that is gone needs no write. Raises StatusError."""
        if is_tracked(pod):
            self._patch(pod, {"$deleteFromPrimitiveList/finalizers": [FINALIZER_TRACKING]})

    def adopt(self, job: Obj, pod: Obj) -> None:
        """Make the Job the controller of a pod, if the Job still exists. Raises StatusError."""
        current = self._registry.find(JOBS, namespace_of(job), name_of(job))
        if current is None or uid_of(current) != uid_of(job) or is_deleting(current):
            return
        self._patch(pod, {"ownerReferences": [controller_ref(job)], "finalizers": [FINALIZER_TRACKING]})

    def disown(self, job: Obj, pod: Obj) -> None:
        """Remove the owner reference of a pod that no longer matches the Job's selector. Raises StatusError."""
        self._patch(
            pod,
            {
                "ownerReferences": [{"$patch": "delete", "uid": uid_of(job)}],
                "$deleteFromPrimitiveList/finalizers": [FINALIZER_TRACKING],
            },
        )

    def _create(self, job: Obj, pod: Obj) -> StatusError | None:
        try:
            created = self._registry.create(PODS, pod, namespace_of(job))
        except StatusError as exc:
            # A namespace that is being deleted refuses every pod. The Job is not at fault.
            if not is_namespace_terminating(exc):
                self._registry.record_event(job, "Warning", "FailedCreate", f"Error creating: {exc.message}", COMPONENT)
            return exc
        self._registry.record_event(job, "Normal", "SuccessfulCreate", f"Created pod: {name_of(created)}", COMPONENT)
        return None

    def _delete(self, job: Obj, pod: Obj) -> None:
        name = name_of(pod)
        try:
            self._registry.delete(PODS, name, namespace_of(pod), uid=uid_of(pod))
        except StatusError as exc:
            if exc.code == _NOT_FOUND:
                return
            self._registry.record_event(job, "Warning", "FailedDelete", f"Error deleting: {exc.message}", COMPONENT)
            raise
        self._registry.record_event(job, "Normal", "SuccessfulDelete", f"Deleted pod: {name}", COMPONENT)

    def _patch(self, pod: Obj, metadata: Obj) -> None:
        patch = {"metadata": {"uid": uid_of(pod), **metadata}}
        try:
            self._registry.patch(PODS, name_of(pod), namespace_of(pod), patch, PatchKind.STRATEGIC)
        except StatusError as exc:
            if exc.code != _NOT_FOUND:
                raise


def is_namespace_terminating(refusal: StatusError) -> bool:
    return any(cause.get("reason") == "NamespaceTerminating" for cause in refusal.details.get("causes", ()))

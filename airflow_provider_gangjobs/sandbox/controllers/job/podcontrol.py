"""What the Job controller does to pods, each with the event that tells of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.sandbox.controllers.job.pods import FINALIZER_TRACKING, is_tracked
from airflow_provider_gangjobs.sandbox.controllers.meta import Obj, controller_ref, name_of, namespace_of, uid_of
from airflow_provider_gangjobs.sandbox.errors import StatusError
from airflow_provider_gangjobs.sandbox.registry import PatchKind, Registry
from airflow_provider_gangjobs.sandbox.resources import PODS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logging.getLogger(__name__)

COMPONENT = "job-controller"
SLOW_START_PODS = 1
_NOT_FOUND = 404


class PodControl:
    """Writes pods for a Job. A refusal of one pod does not keep the others from being tried."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def create(self, job: Obj, pods: Iterable[Obj]) -> tuple[int, StatusError | None]:
        """Create pods in batches of 1, 2, 4...; the batch in which one is refused is the last.

        Returns how many were created, and the first refusal: a quota that refuses every pod is asked once.
        """
        created = 0
        for batch in _growing_batches(list(pods)):
            refusals = [refusal for pod in batch if (refusal := self._create(job, pod)) is not None]
            created += len(batch) - len(refusals)
            if refusals:
                return created, refusals[0]
        return created, None

    def delete(self, job: Obj, pods: Iterable[Obj], *, uncounted: bool) -> tuple[list[Obj], StatusError | None]:
        """Delete pods. With `uncounted` their finalizer goes first, so they will count for nothing.

        Returns the pods that are deleted, or were gone already, and the first refusal.
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
        return deleted, refusal

    def release(self, pod: Obj) -> None:
        """Remove the tracking finalizer; a pod that is gone has none. Raises StatusError."""
        if is_tracked(pod):
            self._patch(pod, {"$deleteFromPrimitiveList/finalizers": [FINALIZER_TRACKING]})

    def adopt(self, job: Obj, pod: Obj) -> None:
        """Make the Job the controller of a pod that its selector matches. Raises StatusError."""
        self._patch(pod, {"ownerReferences": [controller_ref(job)], "finalizers": [FINALIZER_TRACKING]})

    def disown(self, job: Obj, pod: Obj) -> None:
        """Give up a pod that the Job's selector does not match any more. Raises StatusError."""
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
            # A namespace that is being deleted refuses every pod; that is no failure of the Job.
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


def _growing_batches(pods: list[Obj]) -> Iterator[list[Obj]]:
    start, size = 0, SLOW_START_PODS
    while start < len(pods):
        yield pods[start : start + size]
        start, size = start + size, size * 2

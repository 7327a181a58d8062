"""The pods of a Job: finds, adopts, creates, deletes and releases them, and records an Event for each change.

An index has the pods by controller. The registry delivers each event before the call that caused it returns, so the
index is never stale. A claim adopts matching pods that have no controller, and disowns pods that no longer match the
selector.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gangjobs_sandbox.apimachinery import selectors
from gangjobs_sandbox.controllers.job.pods import FINALIZER_TRACKING, is_tracked
from gangjobs_sandbox.controllers.meta import (
    Obj,
    controller_of,
    controller_ref,
    is_deleting,
    labels_of,
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


class PodIndex:
    """The index. Its owner calls `put` for an added or modified pod, and `drop` for a removed pod."""

    def __init__(self, pods: Iterable[Obj] = ()) -> None:
        self._by_controller: dict[str, dict[str, Obj]] = {}
        self._free: dict[str, dict[str, Obj]] = {}
        self._bucket_of: dict[str, dict[str, Obj]] = {}
        for pod in pods:
            self.put(pod)

    def put(self, pod: Obj) -> None:
        owner = controller_of(pod)
        if owner is None:
            bucket = self._free.setdefault(namespace_of(pod), {})
        else:
            bucket = self._by_controller.setdefault(owner["uid"], {})
        uid = uid_of(pod)
        if self._bucket_of.get(uid, bucket) is not bucket:
            del self._bucket_of[uid][uid]
        bucket[uid] = pod
        self._bucket_of[uid] = bucket

    def drop(self, pod: Obj) -> None:
        bucket = self._bucket_of.pop(uid_of(pod), None)
        if bucket is not None:
            bucket.pop(uid_of(pod), None)
        owner = controller_of(pod)
        if owner is not None and not self._by_controller.get(owner["uid"], True):
            del self._by_controller[owner["uid"]]

    def controlled_by(self, uid: str) -> list[Obj]:
        """Return the pods that the object of this UID controls, in order of their creation."""
        return list(self._by_controller.get(uid, {}).values())

    def without_controller(self, namespace: str) -> list[Obj]:
        """Return the pods of the namespace that have no controller."""
        return list(self._free.get(namespace, {}).values())


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


def claim(job: Obj, pods: PodIndex, control: PodControl) -> Cooperative[None]:
    """Adopt and disown pods so that they match the Job's selector. Raises StatusError.

    A Job that is being deleted neither adopts nor disowns pods. Pods that are being deleted are not adopted.
    """
    if is_deleting(job):
        return
    selected = selectors.from_object(job["spec"].get("selector"))
    for pod in _alive(pods.controlled_by(job["metadata"]["uid"])):
        if not selected.matches(labels_of(pod)):
            control.disown(job, pod)
        yield
    for pod in _alive(pods.without_controller(job["metadata"]["namespace"])):
        if selected.requirements and selected.matches(labels_of(pod)):
            control.adopt(job, pod)
        yield


def _alive(pods: Iterable[Obj]) -> list[Obj]:
    return [pod for pod in pods if not is_deleting(pod)]

"""An index of pods by controller, and of pods without a controller, kept up to date by events.

The registry delivers each event before the call that caused it returns, so the index is never stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.meta import Obj, controller_of, namespace_of, uid_of

if TYPE_CHECKING:
    from collections.abc import Iterable


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

"""Removes the protection finalizer of a deleted PodGroup when no pod that may still run refers to the group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.meta import (
    Obj,
    finalizers_of,
    is_deleting,
    is_terminal,
    name_of,
    namespace_of,
    uid_of,
)
from gangjobs_sandbox.controllers.workqueue import WorkQueue
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Registry
from gangjobs_sandbox.registry.scheduling import PROTECTION_FINALIZER
from gangjobs_sandbox.releases import pod_group_of
from gangjobs_sandbox.resources import PODGROUPS, PODS

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.store import Event


class PodGroupProtection:
    """Removes the finalizers of deleted PodGroups. Keys are (namespace, name) of PodGroups."""

    name = "podgroup-protection"

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._users: dict[tuple[str, str], dict[str, None]] = {}
        self._groups: dict[tuple[str, str], Obj] = {}
        self.queue: WorkQueue[Hashable] = WorkQueue(clock)
        for pod in registry.list(PODS):
            self._pod(pod, is_gone=False)
        for group in registry.list(PODGROUPS):
            self._group(group)

    def observe(self, event: Event) -> None:
        if event.resource is PODS:
            self._pod(event.obj, is_gone=event.type == "DELETED")
        elif event.resource is PODGROUPS:
            if event.type == "DELETED":
                self._groups.pop(_key(event.obj), None)
            else:
                self._group(event.obj)

    def sync(self, key: Hashable) -> None:
        """Remove the finalizer if the group is being deleted and unused. Raises StatusError."""
        assert isinstance(key, tuple)
        group = self._groups.get(key)
        if group is None or not is_deleting(group) or self._users.get(key):
            return
        kept = [name for name in finalizers_of(group) if name != PROTECTION_FINALIZER]
        if len(kept) == len(finalizers_of(group)):
            return
        patch = {"metadata": {"uid": uid_of(group), "finalizers": kept or None}}
        try:
            self._registry.patch(PODGROUPS, name_of(group), namespace_of(group), patch, PatchKind.MERGE)
        except StatusError as exc:
            if exc.code != 404:
                raise

    def _group(self, group: Obj) -> None:
        self._groups[_key(group)] = group
        if is_deleting(group):
            self.queue.add(_key(group))

    def _pod(self, pod: Obj, *, is_gone: bool) -> None:
        group = pod_group_of(pod)
        if group is None:
            return
        key = (namespace_of(pod), group)
        users = self._users.setdefault(key, {})
        if not is_gone and not is_terminal(pod):
            users[uid_of(pod)] = None
            return
        users.pop(uid_of(pod), None)
        if not users:
            del self._users[key]
            self.queue.add(key)


def _key(group: Obj) -> tuple[str, str]:
    return namespace_of(group), name_of(group)

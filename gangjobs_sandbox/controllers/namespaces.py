"""Deletes the content of a namespace that is being deleted, and then finalizes the namespace.

Objects are deleted in the background, with their own grace periods. The controller waits for finalizers of other
parties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.meta import Obj, is_deleting, name_of, namespace_of, uid_of
from gangjobs_sandbox.controllers.workqueue import WorkQueue
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import Propagation, Registry
from gangjobs_sandbox.resources import EVENTS, NAMESPACES, RESOURCES, Resource

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.cooperative import Cooperative
    from gangjobs_sandbox.store import Event


class NamespaceController:
    """Empties and finalizes deleted namespaces. Keys are names of namespaces."""

    name = "namespace"

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._terminating: dict[str, Obj] = {}
        self.queue: WorkQueue[Hashable] = WorkQueue(clock)
        for namespace in registry.list(NAMESPACES):
            self._namespace(namespace)

    def observe(self, event: Event) -> None:
        if event.resource is NAMESPACES:
            if event.type == "DELETED":
                self._terminating.pop(name_of(event.obj), None)
            else:
                self._namespace(event.obj)
        elif self._terminating and event.type == "DELETED" and namespace_of(event.obj) in self._terminating:
            self.queue.add(namespace_of(event.obj))

    def sync(self, key: Hashable) -> Cooperative[None]:
        """Delete the remaining objects. If there are none, finalize the namespace. Raises StatusError."""
        namespace = self._terminating.get(str(key))
        if namespace is None:
            return
        left = [(resource, obj) for resource in _ordered() for obj in self._registry.list(resource, name_of(namespace))]
        for resource, obj in left:
            if not is_deleting(obj):
                self._delete(resource, obj)
                yield
        if not any(self._registry.list(resource, name_of(namespace)) for resource in _ordered()):
            self._finalize(namespace)

    def _delete(self, resource: Resource, obj: Obj) -> None:
        try:
            self._registry.delete(
                resource, name_of(obj), namespace_of(obj), propagation=Propagation.BACKGROUND, uid=uid_of(obj)
            )
        except StatusError as exc:
            if exc.code != 404:
                raise

    def _finalize(self, namespace: Obj) -> None:
        """Remove the finalizer from the namespace's spec. The server removes a namespace without finalizers."""
        spec = {**(namespace.get("spec") or {}), "finalizers": []}
        self._registry.update(NAMESPACES, {**namespace, "spec": spec}, subresource="finalize")

    def _namespace(self, namespace: Obj) -> None:
        if is_deleting(namespace):
            self._terminating[name_of(namespace)] = namespace
            self.queue.add(name_of(namespace))


def _ordered() -> list[Resource]:
    """Return the namespaced resources. Events are last, because the deletion of other objects creates Events."""
    return sorted((resource for resource in RESOURCES if resource.namespaced), key=lambda resource: resource is EVENTS)

"""Records Kubernetes Events. When the same fact occurs again, its Event counts the occurrences."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from gangjobs_sandbox.clock import timestamp
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.resources import EVENTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.resources import Resource
    from gangjobs_sandbox.store import Object

__all__ = ["Recorder"]

REMEMBERED_MAX = 4096
"""The number of facts whose repetitions are counted. The correlator of client-go has the same limit."""
MESSAGE_MAX = 1024


class EventStore(Protocol):
    """The members of `Registry` that the recorder uses."""

    clock: Clock

    def find(self, resource: Resource, namespace: str | None, name: str) -> Object | None: ...
    def create(self, resource: Resource, obj: Object, namespace: str | None = None) -> Object: ...
    def update(self, resource: Resource, obj: Object) -> Object: ...
    def random_suffix(self) -> str: ...


class Recorder:
    """Writes Events about objects into the objects' namespaces."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._names: OrderedDict[tuple[str, ...], tuple[str, str]] = OrderedDict()

    def record(self, involved: Object, kind: str, reason: str, message: str, component: str) -> None:
        """Record a fact about an object. The same fact again increases the count of its Event.

        An Event that cannot be written, for example because its namespace is being deleted, is dropped.
        """
        reference = _reference(involved)
        fact = (reference.get("uid", ""), reference["name"], kind, reason, message, component)
        now = self._store.clock.now()
        try:
            if fact in self._names and self._count_up(*self._names[fact], now):
                self._names.move_to_end(fact)
                return
            self._names[fact] = self._create(reference, kind, reason, message[:MESSAGE_MAX], component, now)
        except StatusError:
            return
        if len(self._names) > REMEMBERED_MAX:
            self._names.popitem(last=False)

    def _count_up(self, namespace: str, name: str, now: datetime) -> bool:
        found = self._store.find(EVENTS, namespace, name)
        if found is None:
            return False
        self._store.update(EVENTS, {**found, "count": found.get("count", 1) + 1, "lastTimestamp": timestamp(now)})
        return True

    def _create(
        self, reference: Object, kind: str, reason: str, message: str, component: str, now: datetime
    ) -> tuple[str, str]:
        namespace = reference.get("namespace") or "default"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{reference['name']}.{int(now.timestamp() * 1e9):x}{self._store.random_suffix()}"},
            "involvedObject": reference,
            "reason": reason,
            "message": message,
            "source": {"component": component},
            "reportingComponent": component,
            "reportingInstance": "",
            "firstTimestamp": timestamp(now),
            "lastTimestamp": timestamp(now),
            "eventTime": None,
            "count": 1,
            "type": kind,
        }
        created = self._store.create(EVENTS, event, namespace)
        return namespace, created["metadata"]["name"]


def _reference(obj: Mapping[str, Any]) -> Object:
    metadata = obj["metadata"]
    reference = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "namespace": metadata.get("namespace"),
        "name": metadata["name"],
        "uid": metadata.get("uid"),
        "resourceVersion": metadata.get("resourceVersion"),
    }
    return {name: value for name, value in reference.items() if value}

"""Kubernetes Events: one object per fact, counted up when the fact repeats."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import timestamp
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.resources import EVENTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gangjobs_sandbox.registry.registry import Registry
    from gangjobs_sandbox.store import Object

__all__ = ["Recorder"]

REMEMBERED_MAX = 4096
"""Facts that are counted up rather than told again; client-go's correlator has the same limit."""
MESSAGE_MAX = 1024


class Recorder:
    """Writes events about objects into their namespaces."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._names: OrderedDict[tuple[str, ...], tuple[str, str]] = OrderedDict()

    def record(self, involved: Object, kind: str, reason: str, message: str, component: str) -> None:
        """Tell this fact about an object; the same fact again only raises its count.

        An event that cannot be written (its namespace is going away) is dropped: events are advice.
        """
        reference = _reference(involved)
        fact = (reference.get("uid", ""), reference["name"], kind, reason, message, component)
        now = self._registry.clock.now()
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
        found = self._registry.find(EVENTS, namespace, name)
        if found is None:
            return False
        self._registry.update(EVENTS, {**found, "count": found.get("count", 1) + 1, "lastTimestamp": timestamp(now)})
        return True

    def _create(
        self, reference: Object, kind: str, reason: str, message: str, component: str, now: datetime
    ) -> tuple[str, str]:
        namespace = reference.get("namespace") or "default"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{reference['name']}.{int(now.timestamp() * 1e9):x}{self._registry.suffix()}"},
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
        created = self._registry.create(EVENTS, event, namespace)
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

"""All changes of a namespace's Jobs, pods, and ConfigMaps, as the API server stored them.

The history is read from a watch after the test, so that it does not depend on the state of the provider, and works
with any control plane. Resource versions give the order of changes of different kinds.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS, JOBS, PODS, Resource
from airflow_provider_gangjobs.gang.labels import FINALIZER_HARVEST, LABEL_GANG, LABEL_ROLE, Role

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client

Obj = dict[str, Any]

READ_WITHIN_S = 60.0

_IDLE = {"restartPolicy": "Never", "schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
_MARKERS: dict[Resource, Obj] = {
    JOBS: {"apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True, "template": {"spec": _IDLE}}},
    PODS: {"apiVersion": "v1", "kind": "Pod", "spec": _IDLE},
    CONFIGMAPS: {"apiVersion": "v1", "kind": "ConfigMap"},
}
"""What is recorded, and for each kind an object that does nothing: it marks the end of what is read."""


@dataclass(frozen=True)
class Change:
    """One change of one object; of the last one, its state when it went."""

    resource: Resource
    revision: int
    deleted: bool
    obj: Obj
    old: Obj | None


@dataclass
class ObjectHistory:
    """Changes in the order in which the server made them."""

    history: list[Change] = field(default_factory=list)

    def ledger(self, name: str) -> dict[str, str]:
        """Entries of all the ledger's ConfigMaps, of those too that have been deleted since."""
        found: dict[str, str] = {}
        for change in self.history:
            if is_ledger(change) and change.obj["metadata"]["labels"][LABEL_GANG] == name:
                found |= change.obj.get("data") or {}
        return found

    def held(self, name: str) -> list[Obj]:
        """The gang's pods that exist and carry our finalizer."""
        return [pod for pod in self.last(PODS, name) if FINALIZER_HARVEST in (pod["metadata"].get("finalizers") or ())]

    def uids(self, name: str) -> set[str]:
        """Every pod that the gang has ever had."""
        return {change.obj["metadata"]["uid"] for change in self.history if _is_of(change, PODS, name)}

    def job(self, name: str) -> Obj:
        """The Job as it was last."""
        return [change.obj for change in self.history if _is_of(change, JOBS, name)][-1]

    def last(self, resource: Resource, name: str) -> list[Obj]:
        """The gang's objects that are there now."""
        found: dict[str, Obj] = {}
        for change in self.history:
            if _is_of(change, resource, name):
                found[change.obj["metadata"]["uid"]] = change.obj
                if change.deleted:
                    del found[change.obj["metadata"]["uid"]]
        return list(found.values())

    @classmethod
    async def since(cls, admin: Client, namespace: str, revision: str) -> ObjectHistory:
        """Everything from this revision until now."""
        changes = await asyncio.gather(*(_changes(admin, resource, namespace, revision) for resource in _MARKERS))
        return cls(sorted(chain.from_iterable(changes), key=lambda change: change.revision))


def is_ledger(change: Change) -> bool:
    labels = change.obj["metadata"].get("labels") or {}
    return change.resource is CONFIGMAPS and labels.get(LABEL_ROLE) == Role.LEDGER


async def current_revision(admin: Client, namespace: str) -> str:
    """From where to read what comes."""
    page = msgspec.json.decode(await admin.list_page(PODS, namespace))
    revision: str = page["metadata"]["resourceVersion"]
    return revision


async def _changes(admin: Client, resource: Resource, namespace: str, revision: str) -> list[Change]:
    """All that a watch tells from there until an object that is made now."""
    name = f"until-here-{uuid.uuid4().hex[:8]}"
    await admin.create(resource, {**_MARKERS[resource], "metadata": {"name": name}}, namespace)
    latest: dict[str, Obj] = {}
    found: list[Change] = []
    watch = admin.watch(resource, namespace, resource_version=revision, timeout_s=READ_WITHIN_S)
    async with aclosing(watch):
        async for lines in watch:
            for event in map(msgspec.json.decode, lines.splitlines()):
                if event["type"] == "BOOKMARK":
                    continue
                assert event["type"] != "ERROR", event
                obj = event["object"]
                meta = obj["metadata"]
                if meta["name"] == name:
                    await admin.delete(resource, name, namespace, grace_period_s=0)
                    return found
                deleted = event["type"] == "DELETED"
                found.append(Change(resource, int(meta["resourceVersion"]), deleted, obj, latest.get(meta["uid"])))
                latest[meta["uid"]] = obj
    raise AssertionError(f"the watch of {resource} did not tell everything in {READ_WITHIN_S:g} s")


def _is_of(change: Change, resource: Resource, name: str) -> bool:
    labels = change.obj["metadata"].get("labels") or {}
    return change.resource is resource and labels.get(LABEL_GANG) == name

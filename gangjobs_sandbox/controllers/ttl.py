"""Deletes finished Jobs after their `ttlSecondsAfterFinished`, with foreground propagation."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gangjobs_sandbox.controllers.meta import (
    Obj,
    find_condition,
    has_condition,
    is_deleting,
    name_of,
    namespace_of,
    parse_time,
    uid_of,
)
from gangjobs_sandbox.controllers.workqueue import WorkQueue
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import Propagation, Registry
from gangjobs_sandbox.resources import JOBS

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gangjobs_sandbox.clock import Clock
    from gangjobs_sandbox.store import Event


class TtlAfterFinished:
    """Deletes finished Jobs when their TTL expires. Keys are (namespace, name) of Jobs."""

    name = "ttl-after-finished"

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self.queue: WorkQueue[Hashable] = WorkQueue(clock)
        for job in registry.list(JOBS):
            self._enqueue(job)

    def observe(self, event: Event) -> None:
        if event.resource is JOBS and event.type != "DELETED":
            self._enqueue(event.obj)

    def sync(self, key: Hashable) -> None:
        """Delete the Job if its TTL has expired, or else queue the key for the expiry. Raises StatusError."""
        assert isinstance(key, tuple)
        namespace, name = key
        try:
            job = self._registry.get(JOBS, name, namespace)
        except StatusError as exc:
            if exc.code == 404:
                return
            raise
        expiry = expires_at(job)
        if expiry is None:
            return
        if expiry > self._clock.now():
            self._enqueue(job)
        else:
            self._registry.delete(JOBS, name, namespace, propagation=Propagation.FOREGROUND, uid=uid_of(job))

    def _enqueue(self, job: Obj) -> None:
        expiry = expires_at(job)
        if expiry is not None:
            after_s = (expiry - self._clock.now()).total_seconds()
            self.queue.add((namespace_of(job), name_of(job)), after_s=after_s)


def expires_at(job: Obj) -> datetime | None:
    """Return when the TTL of the Job expires, or None if it has no TTL or has not finished."""
    ttl_s = job["spec"].get("ttlSecondsAfterFinished")
    if ttl_s is None or is_deleting(job):
        return None
    for kind in ("Complete", "Failed"):
        if has_condition(job, kind):
            finished = parse_time((find_condition(job, kind) or {}).get("lastTransitionTime"))
            return None if finished is None else finished + timedelta(seconds=ttl_s)
    return None

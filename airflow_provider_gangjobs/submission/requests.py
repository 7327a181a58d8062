"""Requests of a submission: counted, and repeated where that changes nothing.

A write whose answer is unknown is never taken for a failed one. What is repeated here is safe to
repeat: reads, deletes with a uid, and patches that set what they set however often they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from airflow_provider_gangjobs.cluster.client import PatchType, PropagationPolicy
from airflow_provider_gangjobs.cluster.clock import Backoff, Clock
from airflow_provider_gangjobs.cluster.deadline import current_deadline
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Invalid, NotFound, is_of_another_uid
from airflow_provider_gangjobs.cluster.resources import JOBS, Resource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from airflow_provider_gangjobs.gang.identity import GangRef

TRIES_MAX: Final = 6
"""With the pauses below about ten seconds; the client itself waits longer where the server asks for it."""
PAUSE_BASE_S: Final = 0.2
PAUSE_CAP_S: Final = 5.0

Object = dict[str, Any]
Objects = list[Object]
T = TypeVar("T")


class Api(Protocol):
    """What submission needs of `cluster.client.Client`."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """One object."""

    async def list(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str | None = None
    ) -> Objects:
        """All objects that the selector picks."""

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        limit: int,
        continue_token: str | None = None,
    ) -> bytes:
        """One page of a list, undecoded."""

    async def create(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """Create an object, and return what was stored, or would have been."""

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: Mapping[str, Any] | Objects,
        *,
        patch_type: PatchType = PatchType.MERGE,
    ) -> Object:
        """Change an object."""

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation_policy: PropagationPolicy = PropagationPolicy.BACKGROUND,
    ) -> None:
        """Delete an object."""


@dataclass(frozen=True)
class Removal:
    """The result of a conditional deletion."""

    deleted: bool
    kept: Object | None = None
    """The object as it was last judged, if the judgement was to leave it. None if it is deleted or was gone."""


class RetryingRequests:
    """The requests of one submission in one namespace."""

    def __init__(self, client: Api, namespace: str, *, clock: Clock | None = None) -> None:
        self._client = client
        self.namespace = namespace
        self.clock = clock or Clock()
        self.sent = 0
        """How many were made, not counting what the client repeated by itself."""

    def backoff(self) -> Backoff:
        """Pauses for one series of tries."""
        return Backoff(self.clock, base_s=PAUSE_BASE_S, cap_s=PAUSE_CAP_S)

    async def sleep_before_retry(self, pause_s: float) -> bool:
        """Sleep, and return true. Return false at once if the pause would end after the deadline of the requests."""
        if self.clock.monotonic() + pause_s > current_deadline():
            return False
        await self.clock.sleep(pause_s)
        return True

    async def find(self, resource: Resource, name: str) -> Object | None:
        """The object, or None if there is none."""
        self.sent += 1
        try:
            return await self._client.get(resource, name, self.namespace)
        except NotFound:
            return None

    async def list(self, resource: Resource, selector: str | None = None) -> Objects:
        """All objects of the namespace that the label selector picks."""
        self.sent += 1
        return await self._client.list(resource, self.namespace, label_selector=selector)

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> Object:
        """One POST, not repeated."""
        self.sent += 1
        return await self._client.create(resource, body, self.namespace)

    async def dry_run_create(self, resource: Resource, body: Mapping[str, Any]) -> Object:
        """What the server would store; nothing is stored."""
        self.sent += 1
        return await self._client.create(resource, body, self.namespace, dry_run=True)

    async def patch_job(self, name: str, body: Mapping[str, Any]) -> Object:
        """One merge patch of a Job, not repeated."""
        self.sent += 1
        return await self._client.patch(JOBS, name, self.namespace, body)

    async def patch_job_if(self, name: str, expected: Mapping[str, Any], values: Mapping[str, Any]) -> Object:
        """One JSON patch of a Job, not repeated: set `values` if `expected` holds. Both are by JSON pointer.

        Raises:
            Invalid: it does not hold.
        """
        tests = [{"op": "test", "path": path, "value": value} for path, value in expected.items()]
        additions = [{"op": "add", "path": path, "value": value} for path, value in values.items()]
        self.sent += 1
        return await self._client.patch(JOBS, name, self.namespace, [*tests, *additions], patch_type=PatchType.JSON)

    async def patch_as_seen(self, job: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
        """One merge patch, not repeated, of the Job as it was seen. False if it has changed since, or is gone."""
        seen = {name: job["metadata"][name] for name in ("uid", "resourceVersion")}
        try:
            await self.patch_job(job["metadata"]["name"], {**body, "metadata": {**body.get("metadata", {}), **seen}})
        except (NotFound, Conflict):
            return False
        except Invalid as error:
            if is_of_another_uid(error):
                return False
            raise
        return True

    async def mark_job(self, ref: GangRef, body: Mapping[str, Any]) -> bool:
        """Merge-patch the Job of this uid, until it is known to be done. False if that Job is not there any more."""
        metadata = {**body.get("metadata", {}), "uid": ref.uid}

        async def patch() -> bool:
            await self.patch_job(ref.name, {**body, "metadata": metadata})
            return True

        return await self._retry_unless_gone(patch, JOBS, ref.name, ref.uid)

    async def remove_job(self, ref: GangRef) -> bool:
        """Delete the Job of this uid and, by garbage collection, all it owns. False if it was gone already."""

        return await self.remove(JOBS, ref.name, ref.uid)

    async def remove(self, resource: Resource, name: str, uid: str) -> bool:
        """Delete the object of exactly this uid. False if it was gone already."""

        async def delete() -> bool:
            self.sent += 1
            await self._client.delete(
                resource, name, self.namespace, uid=uid, propagation_policy=PropagationPolicy.BACKGROUND
            )
            return True

        return await self._retry_unless_gone(delete, resource, name, uid)

    async def remove_if(
        self,
        resource: Resource,
        name: str,
        uid: str,
        judge: Callable[[Object], bool],
        *,
        seen: Object | None = None,
    ) -> Removal:
        """Delete the object of this uid in exactly the version for which `judge` holds.

        The DELETE carries the uid and the resourceVersion that were judged. It is not simply repeated: after a
        conflict, and after an answer that was lost, the object is read and judged again.

        :param seen: The object as it was just read, which saves the first read.

        Raises:
            Conflict: others changed the object before each of `TRIES_MAX` deletions.
            ClusterError: it is not known whether the object is deleted.
        """
        backoff = self.backoff()
        may_be_deleted = False
        for tries_left in reversed(range(TRIES_MAX)):
            stored = seen or await self.retry(lambda: self.find(resource, name))
            seen = None
            if stored is None or stored["metadata"]["uid"] != uid:
                return Removal(deleted=may_be_deleted)
            if not judge(stored):
                return Removal(deleted=may_be_deleted and "deletionTimestamp" in stored["metadata"], kept=stored)
            try:
                await self._remove_as_seen(resource, stored)
            except NotFound:
                return Removal(deleted=may_be_deleted)
            except ClusterError as error:
                if not tries_left or not (isinstance(error, Conflict) or error.transient or error.may_have_applied):
                    raise
                may_be_deleted = may_be_deleted or error.may_have_applied
                if not await self.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                    raise
            else:
                return Removal(deleted=True)
        raise AssertionError("the last try returns or raises")

    async def _remove_as_seen(self, resource: Resource, stored: Object) -> None:
        metadata = stored["metadata"]
        self.sent += 1
        await self._client.delete(
            resource,
            metadata["name"],
            self.namespace,
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            propagation_policy=PropagationPolicy.BACKGROUND,
        )

    async def _retry_unless_gone(
        self, action: Callable[[], Awaitable[bool]], resource: Resource, name: str, uid: str
    ) -> bool:
        """Do it until it is done. False if there is no object of this uid (any more)."""
        backoff = self.backoff()
        for _ in range(TRIES_MAX - 1):
            try:
                return await self.retry(action)
            except NotFound:
                return False
            except (Invalid, Conflict) as error:
                if is_of_another_uid(error):
                    return False
                if isinstance(error, Invalid):
                    raise
                # Someone changed the object at the same time: only its uid tells whether it is gone.
                stored = await self.find(resource, name)
                if stored is None or stored["metadata"]["uid"] != uid:
                    return False
            if not await self.sleep_before_retry(backoff.next()):
                break
        return await self.retry(action)

    async def retry(self, action: Callable[[], Awaitable[T]]) -> T:
        """Do what is safe to repeat until the server answers it, `TRIES_MAX` times at most."""
        backoff = self.backoff()
        for _ in range(TRIES_MAX - 1):
            try:
                return await action()
            except ClusterError as error:
                if not (error.transient or error.may_have_applied):
                    raise
                if not await self.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                    raise
        return await action()

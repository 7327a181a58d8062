"""The requests of a submission. This module counts the requests and retries those that are safe to repeat.

A write whose answer was lost is never treated as a failed write. Safe to repeat are reads, deletions with a uid, and
patches that have the same result however often they are sent.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.client import PatchType, PropagationPolicy
from airflow_provider_gangjobs.cluster.clock import Backoff, Clock
from airflow_provider_gangjobs.cluster.deadline import current_deadline
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Invalid, NotFound, is_of_another_uid
from airflow_provider_gangjobs.cluster.resources import JOBS, Resource
from airflow_provider_gangjobs.cluster.uid_patch import patch_uid
from airflow_provider_gangjobs.gang.selectors import gang_selector
from airflow_provider_gangjobs.gang.state.halt import REMOVAL_MARK, end_patch, without_removal_mark
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.gang.state.roles import must_delete_job_set, parts_to_end, read_gang
from airflow_provider_gangjobs.halting import delete_job_set, finish_halted
from airflow_provider_gangjobs.kube.objects import Object

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.kube.views import JobView

TRIES_MAX: Final = 6
"""With the pauses below, about ten seconds. The client waits longer if the server asks for it."""
PAUSE_BASE_S: Final = 0.2
PAUSE_CAP_S: Final = 5.0

Objects = list[Object]
T = TypeVar("T")


class Api(Protocol):
    """The methods of `cluster.client.Client` that submission uses."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Return one object."""

    async def list(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str | None = None
    ) -> Objects:
        """Return all objects that match the label selector."""

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        limit: int,
        continue_token: str | None = None,
    ) -> bytes:
        """Return one page of a list as JSON text."""

    async def create(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """Create an object. Returns the object as the server stored it, or would store it."""

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: Mapping[str, Any] | Objects,
        *,
        patch_type: PatchType = PatchType.MERGE,
    ) -> Object:
        """Patch an object. Returns the object as the server stored it."""

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


class Removal(Struct, frozen=True):
    """The result of a conditional deletion."""

    deleted: bool
    kept: Object | None = None
    """The object as it was last judged, if it was kept. None if the object is deleted or was gone."""
    removed: Object | None = None
    """The version that was deleted. None if the object was kept or was gone."""
    job: Job | None = None
    """The gang whose Job was kept or deleted, with the state of all its Jobs. None if the object is no Job."""


class RetryingRequests:
    """Sends the requests of one submission in one namespace, and retries those that are safe to repeat."""

    def __init__(self, client: Api, namespace: str, *, clock: Clock | None = None) -> None:
        self._client = client
        self.namespace = namespace
        self.clock = clock or Clock()
        self.sent = 0
        """How many requests were sent, without those that the client retried."""
        self._found: dict[tuple[Resource, str], Object | None] = {}
        self._listed: dict[Resource, Objects] = {}

    def backoff(self) -> Backoff:
        """Return the pauses for one series of tries."""
        return Backoff(self.clock, base_s=PAUSE_BASE_S, cap_s=PAUSE_CAP_S)

    async def sleep_before_retry(self, pause_s: float) -> bool:
        """Sleep, and return true. Return false at once if the pause would end after the deadline of the requests."""
        if self.clock.monotonic() + pause_s > current_deadline():
            return False
        await self.clock.sleep(pause_s)
        return True

    async def find(self, resource: Resource, name: str) -> Object | None:
        """Return the object, or None if the object does not exist."""
        self.sent += 1
        try:
            return await self._client.get(resource, name, self.namespace)
        except NotFound:
            return None

    async def list(self, resource: Resource, selector: str | None = None) -> Objects:
        """Return all objects of the namespace that match the label selector."""
        self.sent += 1
        return await self._client.list(resource, self.namespace, label_selector=selector)

    async def find_once(self, resource: Resource, name: str) -> Object | None:
        """Return the object as `find` does. An object that this submission has read before is not read again."""
        if (resource, name) not in self._found:
            self._found[resource, name] = await self.find(resource, name)
        return self._found[resource, name]

    async def list_once(self, resource: Resource) -> Objects:
        """Return all objects of the namespace. What this submission has listed before is not listed again."""
        if resource not in self._listed:
            self._listed[resource] = await self.list(resource)
        return self._listed[resource]

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> Object:
        """Create an object with one POST, which is not retried."""
        self.sent += 1
        return await self._client.create(resource, body, self.namespace)

    async def dry_run_create(self, resource: Resource, body: Mapping[str, Any]) -> Object:
        """Return the object that the server would store. Nothing is stored."""
        self.sent += 1
        return await self._client.create(resource, body, self.namespace, dry_run=True)

    async def patch_job(self, name: str, body: Mapping[str, Any]) -> Object:
        """Merge-patch a Job with one request, which is not retried."""
        self.sent += 1
        return await self._client.patch(JOBS, name, self.namespace, body)

    async def patch_job_if(self, name: str, expected: Mapping[str, Any], values: Mapping[str, Any]) -> Object:
        """Set values of a Job with one JSON patch, which is not retried.

        :param expected: The values that the Job must have, by JSON pointer.
        :param values: The values to set, by JSON pointer.

        Raises:
            Invalid: the Job does not have the expected values.
        """
        tests = [{"op": "test", "path": path, "value": value} for path, value in expected.items()]
        additions = [{"op": "add", "path": path, "value": value} for path, value in values.items()]
        self.sent += 1
        return await self._client.patch(JOBS, name, self.namespace, [*tests, *additions], patch_type=PatchType.JSON)

    async def patch_version(self, resource: Resource, metadata: Mapping[str, Any], body: Mapping[str, Any]) -> Object:
        """Merge-patch an object in the version that was read, with one request, which is not retried.

        :param metadata: The metadata that was read.

        Raises:
            Conflict: the object has changed.
        """
        seen = {name: metadata[name] for name in ("uid", "resourceVersion")}
        self.sent += 1
        return await self._client.patch(
            resource, metadata["name"], self.namespace, {**body, "metadata": {**body.get("metadata", {}), **seen}}
        )

    async def start_role(self, name: str, uid: str, generation: int) -> Object:
        """Let the Job of a role that is not the first one run, unless the Job was ended since it was read.

        :param generation: The generation that was read. A halt changes it.

        Raises:
            Invalid: the Job has changed.
        """
        seen = {"/metadata/uid": uid, "/metadata/generation": generation}
        return await self.patch_job_if(name, seen, {"/spec/suspend": False})

    async def patch_as_seen(self, job: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
        """Merge-patch the Job if it has not changed since it was read. Not retried.

        Returns false if the Job has changed or is gone.
        """
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
        """Merge-patch the Job of this uid, with retries. Returns false if that Job is gone."""

        async def patch() -> bool:
            self.sent += 1
            return await patch_uid(self._client, JOBS, ref.name, self.namespace, ref.uid, body)

        return await self._retry_unless_gone(patch, JOBS, ref.name, ref.uid)

    async def read_gang(self, stored: Object) -> Job:
        """Read the gang of a stored Job. If the gang has roles, its other Jobs are listed, with retries."""
        job = read_job(stored)
        if not job.has_roles:
            return job
        return read_gang(stored, await self.retry(lambda: self.list(JOBS, gang_selector(job.ref.name))))

    async def end_parts(self, ref: GangRef) -> None:
        """End the Jobs of the other roles of a gang whose record is halted. Their Jobs fail. Safe to repeat."""
        stored = await self.retry(lambda: self.find(JOBS, ref.name))
        if stored is None or read_job(stored).ref != ref:
            return
        gang = await self.read_gang(stored)
        for part in parts_to_end(gang):
            if part.metadata.uid != ref.uid:
                await self.mark_job(Job(part).ref, end_patch())
        if must_delete_job_set(gang):
            await self.retry(lambda: delete_job_set(self._client, ref))

    async def finish_halted(self, ref: GangRef, pauses_s: Sequence[float]) -> bool:
        """Let the Job of a halted gang end as failed, see `halting.finish_halted`. The requests are not counted."""
        return await finish_halted(self._client, ref, clock=self.clock, pauses_s=pauses_s)

    async def remove_job(self, ref: GangRef) -> bool:
        """Delete the Job of this uid and, by garbage collection, what it owns. Returns false if the Job was gone."""
        return await self.remove(JOBS, ref.name, ref.uid)

    async def remove(self, resource: Resource, name: str, uid: str) -> bool:
        """Delete the object of exactly this uid. Returns false if the object was gone."""

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

        The DELETE carries the uid and the resourceVersion of the judged object as preconditions. After a conflict, and
        after an answer that was lost, the object is read and judged again before the next DELETE. A Job whose pods may
        still exist is deleted in the foreground, see `propagation_of`.

        :param seen: The object as it was just read, which saves the first read.

        Raises:
            Conflict: others changed the object before each of `TRIES_MAX` deletions.
            ClusterError: it is unknown whether the object is deleted.
        """

        async def judge_object(stored: Object) -> bool:
            return judge(stored)

        return await self._remove_if(resource, name, uid, judge_object, seen=seen)

    async def _remove_if(
        self,
        resource: Resource,
        name: str,
        uid: str,
        judge: Callable[[Object], Awaitable[bool]],
        *,
        prepare: Callable[[Object], Awaitable[Object]] | None = None,
        seen: Object | None = None,
        foreground: bool = False,
    ) -> Removal:
        """Delete the object in the version for which `judge` holds.

        :param prepare: Makes changes on which the deletion depends, and returns the version to delete. Raises Conflict
            if what was judged has changed.
        """
        backoff = self.backoff()
        may_be_deleted: Object | None = None
        for tries_left in reversed(range(TRIES_MAX)):
            stored = seen or await self.retry(lambda: self.find(resource, name))
            seen = None
            if stored is None or stored["metadata"]["uid"] != uid:
                return Removal(deleted=may_be_deleted is not None, removed=may_be_deleted)
            if not await judge(stored):
                is_deleted = may_be_deleted is not None and "deletionTimestamp" in stored["metadata"]
                return Removal(deleted=is_deleted, kept=stored, removed=may_be_deleted if is_deleted else None)
            is_prepared = prepare is None
            try:
                version = await prepare(stored) if prepare is not None else stored
                is_prepared = True
                await self._remove_as_seen(resource, version, foreground=foreground)
            except NotFound:
                return Removal(deleted=may_be_deleted is not None, removed=may_be_deleted)
            except ClusterError as error:
                if not tries_left or not (isinstance(error, Conflict) or error.transient or error.may_have_applied):
                    raise
                may_be_deleted = may_be_deleted or (stored if is_prepared and error.may_have_applied else None)
                if not await self.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                    raise
            else:
                return Removal(deleted=True, removed=stored)
        raise AssertionError("the last try returns or raises")

    async def remove_job_if(
        self, ref: GangRef, judge: Callable[[Job], bool], *, seen: Object | None = None, foreground: bool = False
    ) -> Removal:
        """Delete the Job of this uid in exactly the version for which `judge` holds, as `remove_if` does.

        The Jobs of the other roles of a gang are judged, too, see `_prevent_success`.

        :param foreground: Delete in the foreground in any case.
        """
        judged: list[Job] = []
        is_decided = False

        async def judge_gang(stored: Object) -> bool:
            if not is_decided:
                judged.append(without_removal_mark(await self.read_gang(stored)))
            return is_decided or judge(judged[-1])

        async def prepare(stored: Object) -> Object:
            nonlocal is_decided
            version = stored if is_decided else await self._prevent_success(stored, judged[-1])
            is_decided = is_decided or version is not stored
            return version

        removal = await self._remove_if(
            JOBS, ref.name, ref.uid, judge_gang, prepare=prepare, seen=seen, foreground=foreground
        )
        is_known = removal.kept is not None or removal.removed is not None
        return replace(removal, job=judged[-1]) if is_known and judged else removal

    async def _prevent_success(self, record: Object, gang: Job) -> Object:
        """Make sure that a gang that was judged as live cannot succeed any more, and return its record.

        The precondition of a deletion concerns one Job. If the record has ended or has no pods, the gang succeeds when
        the last of the other Jobs is complete, which does not change the record. So the record is marked as halted,
        which keeps other tries from adopting the gang, and then a Job that has not ended is deleted in the version that
        was judged. If that Job is complete by then, the gang has succeeded, and the mark has no effect. A Job of a
        JobSet is made to fail instead, because the JobSet controller creates a deleted Job again.

        Raises:
            Conflict: the record or the Job has changed.
        """
        live = [part for part in gang.parts[1:] if not Job(part).has_end_condition]
        if not live or not (gang.has_job_set or Job(gang.parts[0]).has_end_condition):
            return record
        metadata = record["metadata"]
        mark = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": REMOVAL_MARK}}
        marked = await self.patch_job(metadata["name"], mark)
        part = live[0].metadata
        if gang.has_job_set:
            await self._end_version(live[0])
            return marked
        self.sent += 1
        with suppress(NotFound):  # somebody else has deleted the Job, so the gang cannot succeed either
            await self._client.delete(
                JOBS,
                part.name,
                self.namespace,
                uid=part.uid,
                resource_version=part.resource_version,
                propagation_policy=PropagationPolicy.FOREGROUND,
            )
        return marked

    async def _end_version(self, job: JobView) -> None:
        """Let a Job fail in the version that was read. It cannot be complete after that: its controller compares the
        version, too."""
        metadata = {
            "name": job.metadata.name,
            "uid": job.metadata.uid,
            "resourceVersion": job.metadata.resource_version,
        }
        with suppress(NotFound):
            await self.patch_version(JOBS, metadata, end_patch())

    async def _remove_as_seen(self, resource: Resource, stored: Object, *, foreground: bool) -> None:
        metadata = stored["metadata"]
        self.sent += 1
        await self._client.delete(
            resource,
            metadata["name"],
            self.namespace,
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            propagation_policy=PropagationPolicy.FOREGROUND if foreground else propagation_of(resource, stored),
        )

    async def _retry_unless_gone(
        self, action: Callable[[], Awaitable[bool]], resource: Resource, name: str, uid: str
    ) -> bool:
        """Retry the action until it is done. Returns false if no object of this uid exists."""
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
                # The object was changed at the same time. Only its uid shows whether the object is gone.
                stored = await self.find(resource, name)
                if stored is None or stored["metadata"]["uid"] != uid:
                    return False
            if not await self.sleep_before_retry(backoff.next()):
                break
        return await self.retry(action)

    async def retry(self, action: Callable[[], Awaitable[T]]) -> T:
        """Retry an action that is safe to repeat until the server answers, at most `TRIES_MAX` times."""
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


def propagation_of(resource: Resource, stored: Object) -> PropagationPolicy:
    """Return how an object is deleted: in the foreground if it is a Job whose pods may still exist.

    In the foreground, the API server keeps the Job until its pods are gone, and pods that the harvest finalizer holds
    are not gone. So whoever releases the pods of a deleted gang can die at any time: the Job stays, and shows the next
    process that pods are to be released, that the number of the attempt is used, and that ranks may still run.
    """
    if resource is not JOBS:
        return PropagationPolicy.BACKGROUND
    job = read_job(stored)
    return PropagationPolicy.BACKGROUND if job.is_ended or job.never_ran else PropagationPolicy.FOREGROUND

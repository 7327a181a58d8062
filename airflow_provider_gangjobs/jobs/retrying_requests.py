"""Requests about the gangs of one namespace. They are counted, and callers have those retried that are safe to repeat.

A write whose answer was lost is never treated as a failed write. Safe to repeat are reads, deletions with a uid, and
patches that have the same result however often they are sent. The table of the package `submission` says which loop
repeats what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_gangjobs.cluster.client import PatchType
from airflow_provider_gangjobs.cluster.client_protocol import delete_uid, patch_version
from airflow_provider_gangjobs.cluster.clock import Backoff
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, NotFound
from airflow_provider_gangjobs.cluster.http.transport import current_deadline
from airflow_provider_gangjobs.cluster.resources import JOBS, Resource
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gang
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.jobs.requests import JobRequests
from airflow_provider_gangjobs.kube.views import Object

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from airflow_provider_gangjobs.cluster.client import PropagationPolicy
    from airflow_provider_gangjobs.cluster.client_protocol import ClientProtocol
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef


class RestartSubmission(Exception):  # noqa: N818 - not an error: the submission lists the Jobs again
    """This attempt cannot be completed, but another attempt can be submitted."""

    def __init__(self, reason: str, *, min_attempt: int = 0) -> None:
        super().__init__(reason)
        self.min_attempt = min_attempt
        """The attempt numbers below this one are used."""


TRIES_MAX: Final = 6
"""With the pauses below, about ten seconds. The client waits longer if the server asks for it."""
PAUSE_BASE_S: Final = 0.2
PAUSE_CAP_S: Final = 5.0

Objects = list[Object]
T = TypeVar("T")


class RetryingRequests:
    """Sends the requests of one operation on gangs in one namespace: a submission, an ending, an upload or a cleanup.

    A request is not retried, unless its method says so, or a caller sends it with `retry` or `retry_write`.
    """

    def __init__(self, client: ClientProtocol, namespace: str, *, clock: Clock | None = None) -> None:
        self.client = client
        self.namespace = namespace
        self.clock = clock or client.clock
        self.sent = 0
        """How many requests were sent, without those that the client retried."""
        self._found: dict[tuple[Resource, str], Object | None] = {}
        self._listed: dict[Resource, Objects] = {}

    def jobs(self, ref: GangRef) -> JobRequests:
        """Return the requests about the Jobs of one gang. They are counted, and retried as `retry_write` does."""
        return JobRequests(self.client, ref, retry=self._retry_counted, clock=self.clock)

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
            return await self.client.get(resource, name, self.namespace)
        except NotFound:
            return None

    async def list(self, resource: Resource, selector: str | None = None) -> Objects:
        """Return all objects of the namespace that match the label selector."""
        self.sent += 1
        return await self.client.list(resource, self.namespace, label_selector=selector)

    async def send(self, request: Callable[[ClientProtocol], Awaitable[T]]) -> T:
        """Return the answer of one request, which is not retried.

        :param request: Sends the request with the client of the submission.
        """
        self.sent += 1
        return await request(self.client)

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
        return await self.client.create(resource, body, self.namespace)

    async def dry_run_create(self, resource: Resource, body: Mapping[str, Any]) -> Object:
        """Return the object that the server would store. Nothing is stored."""
        self.sent += 1
        return await self.client.create(resource, body, self.namespace, dry_run=True)

    async def patch_job(self, name: str, body: Mapping[str, Any]) -> Object:
        """Merge-patch a Job with one request, which is not retried."""
        self.sent += 1
        return await self.client.patch(JOBS, name, self.namespace, body)

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
        return await self.client.patch(JOBS, name, self.namespace, [*tests, *additions], patch_type=PatchType.JSON)

    async def patch_version(self, resource: Resource, metadata: Mapping[str, Any], body: Mapping[str, Any]) -> Object:
        """Merge-patch an object in the version that was read, with one request, which is not retried.

        :param metadata: The metadata that was read.

        Raises:
            Conflict: the object has changed.
        """
        self.sent += 1
        stored: Object = await patch_version(self.client, resource, metadata, body)
        return stored

    async def delete_version(
        self, resource: Resource, metadata: Mapping[str, Any], propagation_policy: PropagationPolicy
    ) -> None:
        """Delete an object in the version that was read, with one request, which is not retried.

        :param metadata: The metadata that was read.

        Raises:
            Conflict: the object has changed.
            NotFound: the object does not exist.
        """
        self.sent += 1
        await self.client.delete(
            resource,
            metadata["name"],
            self.namespace,
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            propagation_policy=propagation_policy,
        )

    async def read_gang(self, stored: Object) -> Job:
        """Read the gang of a stored Job. If the gang has roles, its other Jobs are listed."""
        job = read_job(stored)
        if not job.has_roles:
            return job
        return read_gang(stored, await self.list(JOBS, gang_selector(job.ref.name)))

    async def remove(self, resource: Resource, name: str, uid: str) -> bool:
        """Delete the object of exactly this uid, with retries. Returns false if the object was gone."""

        async def delete() -> bool:
            self.sent += 1
            return await delete_uid(self.client, resource, name, self.namespace, uid)

        return await self.retry_write(delete)

    async def retry(self, request: Callable[[], Awaitable[T]]) -> T:
        """Retry a request that is safe to repeat until the server answers, at most `TRIES_MAX` times."""
        return await self._retry(request, lambda error: error.transient or error.may_have_applied)

    async def retry_write(self, request: Callable[[], Awaitable[T]]) -> T:
        """Retry a write as `retry` does, and also after a conflict: others changed the object at the same time."""
        return await self._retry(
            request, lambda error: error.transient or error.may_have_applied or isinstance(error, Conflict)
        )

    async def _retry(self, request: Callable[[], Awaitable[T]], is_safe: Callable[[ClusterError], bool]) -> T:
        backoff = self.backoff()
        for _ in range(TRIES_MAX - 1):
            try:
                return await request()
            except ClusterError as error:
                if not is_safe(error):
                    raise
                if not await self.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                    raise
        return await request()

    async def _retry_counted(self, request: Callable[[], Awaitable[T]]) -> T:
        async def send() -> T:
            self.sent += 1
            return await request()

        return await self.retry_write(send)

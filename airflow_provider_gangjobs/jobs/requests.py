"""The requests about the Jobs and pods of gangs: the reads, and the rules that repeat requests.

A write whose answer was lost is never treated as a failed write. Safe to repeat are reads, deletions with a uid, and
patches that have the same result however often they are sent. The table of the package `submission` says which loop
repeats what. Nothing is cached here.

The claim is the annotation that names the task instance that is responsible for a gang. A kill reads it first, so a
kill by a former owner does nothing. A task instance that adopts a gang takes the claim with a patch that carries the
resourceVersion of the Job that it has read. So of two task instances that adopt the same gang, the second has read what
the first has written.

A submission gives up at its deadline, and a follower waits for an answer (`retry_until_answered`): it may wait for
days, and an API server that is down comes back, so the number of its retries is not limited. Only a refusal that has
lasted (missing permission, an untrusted certificate, a connection that cannot be used) ends them, because a person has
to correct the cause.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_gangjobs.cluster.client import patch_uid
from airflow_provider_gangjobs.cluster.clock import Backoff
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, InvalidConnection, NotFound
from airflow_provider_gangjobs.cluster.http.transport import PropagationPolicy, current_deadline
from airflow_provider_gangjobs.gang.identity import gang_selector, roles_selectors
from airflow_provider_gangjobs.gang.record import StoredClaim, to_text
from airflow_provider_gangjobs.gang.state.pods import pods_of
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, build_gang, jobs_to_end, read_gang, read_job
from airflow_provider_gangjobs.kube.resources import JOBS, PODS, Resource
from airflow_provider_gangjobs.kube.views import Object, PodView, make_interner
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM, ANNOTATION_DELIVERED, LABEL_INSTALLATION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import Claim, GangRef
    from airflow_provider_gangjobs.gang.render.placement import TimeLimit


T = TypeVar("T")

REFUSED_FOR_S: Final = 300.0
"""Long enough for a token to be rotated, a webhook to restart, or a role to be corrected."""
WAIT_PAUSE_BASE_S: Final = 0.5
WAIT_PAUSE_CAP_S: Final = 30.0


class ClusterRefused(Exception):  # noqa: N818 - a state of the cluster
    """The cluster has refused a request for `REFUSED_FOR_S`, or cannot be reached at all. `error` is the last error."""

    def __init__(self, error: ClusterError) -> None:
        self.error = error
        super().__init__(str(error))


async def retry_until_answered(request: Callable[[], Awaitable[T]], *, clock: Clock) -> T:
    """Repeat a request until it is answered. "No such object" is an answer.

    Raises:
        NotFound: The object does not exist.
        ClusterRefused: The request was refused for `REFUSED_FOR_S`, or cannot be sent.
    """
    backoff = Backoff(clock, base_s=WAIT_PAUSE_BASE_S, cap_s=WAIT_PAUSE_CAP_S)
    refused_since: float | None = None
    while True:
        try:
            return await request()
        except NotFound:
            raise
        except InvalidConnection as error:
            raise ClusterRefused(error) from error
        except ClusterError as error:
            now = clock.monotonic()
            if error.transient or error.may_have_applied:
                refused_since = None
            elif refused_since is None:
                refused_since = now
            if refused_since is not None and now - refused_since >= REFUSED_FOR_S:
                raise ClusterRefused(error) from error
            await clock.sleep(backoff.next(at_least_s=error.retry_after_s))


async def gather_or_cancel(*requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all at once and return the results in order. If one fails, cancel the others and raise its error."""
    tasks = [asyncio.create_task(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_NONE: Final[Mapping[str, PodView]] = {}


async def list_pods(
    client: Client, ref: GangRef, cached: Mapping[str, PodView] = _NONE, *, leave_out_cached: bool = False
) -> list[PodView]:
    """Return the pods of the gang as the API server has them now.

    :param cached: Pod views by uid that the caller keeps. A view that is still current is returned again instead of a
        second copy.
    :param leave_out_cached: Do not return pods whose cached view is still current.

    Raises:
        ClusterError: The pods could not be listed.
    """
    found: list[PodView] = []
    intern_value = make_interner()
    pages = client.list_views(PodView, PODS, ref.namespace, label_selector=gang_selector(ref.name))
    async with aclosing(pages):
        async for page in pages:
            for pod in page:
                known = cached.get(pod.metadata.uid)
                if known is None or known.metadata.resource_version != pod.metadata.resource_version:
                    pod.intern(intern_value)
                    found.append(pod)
                elif not leave_out_cached:
                    found.append(known)
    return pods_of(ref, found)


async def get_job(client: Client, ref: GangRef) -> StoredGang | None:
    """Return the Job that has the gang's name now, combined with the other Jobs of its gang; `None` if there is none.

    A gang of one Job costs one request. If the gang has roles, its Jobs are listed, too.

    Raises:
        ClusterError: The Jobs could not be read.
    """
    try:
        stored = await client.get(JOBS, ref.name, ref.namespace)
    except NotFound:
        return None
    if not read_job(stored).record.roles:
        return read_job(stored)
    listed = await client.list(JOBS, ref.namespace, label_selector=gang_selector(ref.name))
    # The list is one moment, so the main Job is taken from it, too.
    main_job = next((job for job in listed if job["metadata"]["name"] == ref.name), None)
    return read_gang(main_job, listed) if main_job is not None else None


async def get_main_job(client: Client, ref: GangRef) -> StoredGang | None:
    """Return the Job with exactly this uid; `None` if it is gone. The other Jobs of a gang with roles are not read.

    Raises:
        ClusterError: The Job could not be read.
    """
    try:
        job = read_job(await client.get(JOBS, ref.name, ref.namespace))
    except NotFound:
        return None
    return job if job.ref == ref else None


async def list_role_jobs(
    client: Client, namespace: str | None, main_jobs: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """Return the Jobs of the other roles of some gangs. Requests are sent only if one of the gangs has roles.

    :param main_jobs: The Jobs of the gangs, which were selected by a label that the other Jobs do not have.

    Raises:
        ClusterError: The Jobs could not be read.
    """
    names = [job["metadata"]["name"] for job in main_jobs if read_job(job).record.roles]
    return await list_jobs(client, namespace, roles_selectors(names))


async def list_jobs(client: Client, namespace: str | None, label_selectors: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the Jobs that one of the label selectors selects, with one list for each.

    Raises:
        ClusterError: The Jobs could not be read.
    """
    jobs: list[Mapping[str, Any]] = []
    for selector in label_selectors:
        jobs += await client.list(JOBS, namespace, label_selector=selector)
    return jobs


async def start_role(requests: RetryingRequests, name: str, uid: str, generation: int) -> Object:
    """Let the Job of a role that is not the first one run, unless the Job was ended since it was read. Not retried.

    :param generation: The generation that was read. A stop changes it.

    Raises:
        Invalid: the Job has changed.
    """
    seen = {"/metadata/uid": uid, "/metadata/generation": generation}
    return await requests.patch_job_if(name, seen, {"/spec/suspend": False})


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


class RetryingRequests:
    """Sends the requests of one operation on gangs in one namespace: a submission, an end, an upload or a cleanup.

    A request is not retried, unless its method says so, or a caller sends it with `retry`.

    :param until_answered: Retry without a limit, as a follower does; see `retry_until_answered`.
    """

    def __init__(self, client: Client, namespace: str, *, until_answered: bool = False) -> None:
        self.client = client
        self.namespace = namespace
        self.clock = client.clock
        self._until_answered = until_answered
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
        try:
            return await self.client.get(resource, name, self.namespace)
        except NotFound:
            return None

    async def list(self, resource: Resource, selector: str | None = None) -> Objects:
        """Return all objects of the namespace that match the label selector."""
        return await self.client.list(resource, self.namespace, label_selector=selector)

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

    async def create(self, resource: Resource, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object with one POST, which is not retried. In a dry run, nothing is stored."""
        return await self.client.create(resource, body, self.namespace, dry_run=dry_run)

    async def patch_job(self, ref: GangRef, body: Mapping[str, Any]) -> bool:
        """Merge-patch the Job of exactly this uid, with retries. Returns false if the Job is gone."""
        patch = partial(patch_uid, self.client, JOBS, ref.name, self.namespace, ref.uid, body)
        return await self.retry(patch, after_conflict=True)

    async def patch_job_if(self, name: str, expected: Mapping[str, Any], values: Mapping[str, Any]) -> Object:
        """Set values of a Job with one JSON patch, which is not retried.

        :param expected: The values that the Job must have, by JSON pointer.
        :param values: The values to set, by JSON pointer.

        Raises:
            Invalid: the Job does not have the expected values.
        """
        tests = [{"op": "test", "path": path, "value": value} for path, value in expected.items()]
        additions = [{"op": "add", "path": path, "value": value} for path, value in values.items()]
        return await self.client.patch(JOBS, name, self.namespace, [*tests, *additions], patch_type="json")

    async def delete_version(
        self, resource: Resource, metadata: Mapping[str, Any], propagation_policy: PropagationPolicy
    ) -> None:
        """Delete an object in the version that was read, with one request, which is not retried.

        :param metadata: The metadata that was read.

        Raises:
            Conflict: the object has changed.
            NotFound: the object does not exist.
        """
        await self.client.delete(
            resource,
            metadata["name"],
            self.namespace,
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            propagation_policy=propagation_policy,
        )

    async def read_gang(self, stored: Object) -> StoredGang:
        """Read the gang of a stored Job. If the gang has roles, its other Jobs are listed."""
        job = read_job(stored)
        if not job.record.roles:
            return job
        return read_gang(stored, await self.list(JOBS, gang_selector(job.ref.name)))

    async def retry(self, request: Callable[[], Awaitable[T]], *, after_conflict: bool = False) -> T:
        """Retry a request that is safe to repeat until the server answers, at most `TRIES_MAX` times.

        :param after_conflict: Retry also after a conflict: others changed the object at the same time.

        Raises:
            ClusterRefused: as `retry_until_answered` does, if the requests are sent until they are answered.
            ClusterError: the last error of the request.
        """
        if self._until_answered:
            return await retry_until_answered(request, clock=self.clock)
        backoff = self.backoff()
        for _ in range(TRIES_MAX - 1):
            try:
                return await request()
            except ClusterError as error:
                is_safe = error.transient or error.may_have_applied or (after_conflict and isinstance(error, Conflict))
                if not is_safe or not await self.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                    raise
        return await request()


async def take_claim(
    requests: RetryingRequests,
    stored: Object,
    claim: Claim,
    *,
    installation: str,
    limit: TimeLimit | None,
) -> Object:
    """Make `claim` responsible for the gang of a Job that was just read. Return the Job as the server stored it.

    The gang also gets the policies and the time limit of its new owner.

    Raises:
        RestartSubmission: the Job has changed, or it is unknown whether the claim was taken.
        ClusterError: the server refused the request.
    """
    # A process that resumes a task does not take claims, and would pay for the import.
    from airflow_provider_gangjobs.gang.render.placement import limit_on_adoption

    job, name = read_job(stored), stored["metadata"]["name"]
    is_claimed = job.holds_claim(claim.id)
    if is_claimed and not job.record.roles:
        return stored
    try:
        gang = await requests.read_gang(stored)
        if is_claimed:  # the process that has taken the claim may not have learned it, or may have stopped after it
            await _extend_time_limits(
                requests, gang, gang.view.spec.active_deadline_seconds if gang.claim.time_limit else None
            )
            return stored
        limit_s, source = limit_on_adoption(gang, limit)
        patch = claim_patch(stored, claim, installation=installation, time_limit=source)
        if limit_s != gang.view.spec.active_deadline_seconds and not gang.record.has_job_set:
            patch["spec"] = {"activeDeadlineSeconds": limit_s}
        claimed = await requests.client.patch(JOBS, name, requests.namespace, patch)
        if gang.record.roles:
            await _extend_time_limits(requests, gang, limit_s)
        return claimed
    except ClusterError as error:
        if isinstance(error, (Conflict, NotFound)) or error.transient or error.may_have_applied:
            raise RestartSubmission(f"Job {name} changed while it was adopted: {error}") from error
        raise


async def _extend_time_limits(requests: RetryingRequests, gang: StoredGang, limit_s: int | None) -> None:
    """Give the Jobs of a gang other than the main Job this time limit, if theirs is shorter. Safe to repeat.

    :param gang: The gang as it was before it was adopted.
    :param limit_s: The time limit in seconds; `None` for no time limit.
    """
    for one in jobs_to_end(gang):
        own_s = one.spec.active_deadline_seconds
        if one.metadata.uid != gang.ref.uid and own_s is not None and (limit_s is None or own_s < limit_s):
            await requests.patch_job(build_gang(one).ref, {"spec": {"activeDeadlineSeconds": limit_s}})


def claim_patch(job: Object, claim: Claim, *, installation: str = "", time_limit: str | None = None) -> Object:
    """Return the merge patch that gives the Job to `claim`, if the Job has not changed since it was read.

    Policies and `max_tries` that the claim does not have stay as they are.

    :param installation: Id of the Airflow installation of the new owner.
    :param time_limit: The source of the time limit; `None` to leave it as it is.
    """
    metadata, gang = job["metadata"], read_job(job)
    before = gang.claim
    taken = StoredClaim(
        id=claim.id,
        max_tries=before.max_tries if claim.max_tries is None else claim.max_tries,
        policies=claim.policies or before.policies,
        time_limit=before.time_limit if time_limit is None else time_limit,
    )
    annotations: Object = {ANNOTATION_CLAIM: to_text(taken)}
    if gang.is_delivered:  # the gang was handed over, and has an owner again
        annotations[ANNOTATION_DELIVERED] = None
    patch = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "annotations": annotations}
    return {"metadata": patch | ({"labels": {LABEL_INSTALLATION: installation}} if installation else {})}

"""The requests about the Jobs and pods of gangs: reads, stops, the ends of roles, and the rules that repeat requests.

A write whose answer was lost is never treated as a failed write. Safe to repeat are reads, deletions with a uid, and
patches that have the same result however often they are sent. The table of the package `submission` says which loop
repeats what. Nothing is cached here.

A submission gives up at its deadline, and a follower waits for an answer (`retry_until_answered`): it may wait for
days, and an API server that is down comes back, so the number of its retries is not limited. Only a refusal that has
lasted (missing permission, an untrusted certificate, a connection that cannot be used) ends them, because a person has
to correct the cause.

If Kueue manages a Job that was stopped, Kueue and the Job controller act on the same change of the Job: Kueue suspends
the Job again, because its Workload is inactive, and the Job controller lets the Job fail, because its deadline has
passed. The Job fails unless Kueue writes first. So `finish_stopped` reads the Job again, and repeats the change if the
Job is suspended. The rules are `gang.state.stop`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from airflow_provider_gangjobs.cluster.client import delete_uid, patch_uid, patch_unchanged, version_of
from airflow_provider_gangjobs.cluster.clock import Backoff, Clock
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, InvalidConnection, NotFound
from airflow_provider_gangjobs.cluster.http.transport import PatchType, PropagationPolicy, current_deadline
from airflow_provider_gangjobs.cluster.resources import JOB_SETS, JOBS, PODS, Resource
from airflow_provider_gangjobs.gang.identity import gang_selector, is_owned_by, roles_selectors
from airflow_provider_gangjobs.gang.state.gang_jobs import jobs_to_end, must_delete_job_set, read_gang, ttl_patch
from airflow_provider_gangjobs.gang.state.pods import pods_of
from airflow_provider_gangjobs.gang.state.stop import (
    STOPPED_DEADLINE_S,
    FinishStep,
    end_patch,
    finish_patch,
    next_finish_step,
    stop_patch,
)
from airflow_provider_gangjobs.gang.state.stopped import mark_patch
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.kube.views import Object, PodView, make_interner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stopped import Stopped
    from airflow_provider_gangjobs.kube.views import JobView


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
    if not read_job(stored).has_roles:
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
    names = [job["metadata"]["name"] for job in main_jobs if read_job(job).has_roles]
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


log = logging.getLogger(__name__)

PAUSES_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
"""The pause before each read of the Job, in seconds. A sweep continues with a Job that is suspended after the last."""
BRIEF_PAUSES_S: Final = (0.0, 0.2, 0.5)
"""The pauses where a process is about to be killed."""


async def finish_stopped(client: Client, ref: GangRef, *, clock: Clock, pauses_s: Sequence[float] = PAUSES_S) -> bool:
    """Make a suspended Job fail if the Job was stopped or its activeDeadlineSeconds is 0. Raises no `ClusterError`.

    Of a gang with roles, this is the main Job. Safe to repeat.

    :param pauses_s: The pause before each read of the Job, in seconds. No pause continues after the deadline of the
        requests, see `cluster.request_deadline`.
    :return: False if the Job may stay suspended.
    """
    problem = "its queue has suspended the Job again, or the Job controller has not answered yet"
    for pause_s in pauses_s:
        if clock.monotonic() + pause_s > current_deadline():
            break
        await clock.sleep(pause_s)
        try:
            job = await get_main_job(client, ref)
            if job is None or (step := next_finish_step(job)) is FinishStep.NOTHING:
                return True
            if step is FinishStep.WAIT:
                continue
            is_deactivated = job.is_queued_by_kueue and await _deactivate_workload(client, ref)
            await patch_uid(
                client, JOBS, ref.name, ref.namespace, ref.uid, finish_patch(job, is_deactivated=is_deactivated)
            )
            # Nothing suspends the Job again, or the Job waits for its queue. The main Job of a JobSet names no queue,
            # and Kueue suspends it again if Kueue is configured with `manageJobsWithoutQueueName`.
            if not is_deactivated and not job.has_job_set:
                return not job.is_queued_by_kueue
        except ClusterError as error:
            problem = str(error)
            if not (error.transient or error.may_have_applied or isinstance(error, Conflict)):
                break
    log.info("Gang %s is over, and its Job has not failed yet: %s", ref, problem)
    return False


async def delete_job_set(client: Client, ref: GangRef) -> None:
    """Delete the JobSet of a gang with roles, with its Jobs and pods. Safe to repeat.

    The JobSet and its Jobs stay until their pods are gone.

    Raises:
        ClusterError: it is unknown whether the JobSet is deleted.
    """
    with suppress(NotFound):
        metadata = (await client.get(JOB_SETS, ref.name, ref.namespace))["metadata"]
        if is_owned_by(metadata, ref.uid) and "deletionTimestamp" not in metadata:
            await client.delete(
                JOB_SETS,
                ref.name,
                ref.namespace,
                uid=metadata["uid"],
                propagation_policy=PropagationPolicy.FOREGROUND,
            )


async def _deactivate_workload(client: Client, ref: GangRef) -> bool:
    # Few tasks have a queue, and each process that resumes a task would pay for the import.
    from airflow_provider_gangjobs.cluster.kueue import deactivate_workload

    return await deactivate_workload(client, ref.namespace, ref.uid)


async def extend_time_limits(requests: RetryingRequests, gang: StoredGang, limit_s: int | None) -> None:
    """Give the Jobs of a gang other than the main Job this time limit, if theirs is shorter. Safe to repeat.

    :param gang: The gang as it was before it was adopted.
    :param limit_s: The time limit in seconds; `None` for no time limit.
    """
    for one in jobs_to_end(gang):
        own_s = one.spec.active_deadline_seconds
        if one.metadata.uid != gang.ref.uid and own_s is not None and (limit_s is None or own_s < limit_s):
            await requests.jobs(StoredGang(one).ref).patch({"spec": {"activeDeadlineSeconds": limit_s}})


async def start_role(requests: RetryingRequests, name: str, uid: str, generation: int) -> Object:
    """Let the Job of a role that is not the first one run, unless the Job was ended since it was read. Not retried.

    :param generation: The generation that was read. A stop changes it.

    Raises:
        Invalid: the Job has changed.
    """
    seen = {"/metadata/uid": uid, "/metadata/generation": generation}
    return await requests.patch_job_if(name, seen, {"/spec/suspend": False})


async def end_roles(requests: RetryingRequests, ref: GangRef) -> None:
    """End the Jobs of the other roles of a gang whose main Job is stopped. Their Jobs fail. Safe to repeat.

    Raises:
        ClusterError: it is unknown whether the Jobs have ended.
    """
    jobs = requests.jobs(ref)
    gang = await jobs.read()
    if gang is not None and gang.ref == ref:
        await jobs.end_jobs(gang)


async def end_roles_of_stopped_gang(requests: RetryingRequests, ref: GangRef) -> None:
    """End the Jobs of the other roles if the gang was stopped while the submission started them. Never raises."""
    with suppress(ClusterError):  # whoever follows the gang ends these Jobs, too
        stored = await requests.find(JOBS, ref.name)
        if stored is not None and read_job(stored).is_stopped:
            await end_roles(requests, ref)


async def finish_stops(requests: RetryingRequests, jobs: list[StoredGang]) -> None:
    """End the roles that still run of gangs that were stopped. Whoever stopped a gang may have died in between."""
    for job in jobs:
        if job.is_stopped and (jobs_to_end(job) or must_delete_job_set(job)):
            await end_roles(requests, job.ref)


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
    """Sends the requests of one operation on gangs in one namespace: a submission, an ending, an upload or a cleanup.

    A request is not retried, unless its method says so, or a caller sends it with `retry`.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.clock = client.clock
        self._found: dict[tuple[Resource, str], Object | None] = {}
        self._listed: dict[Resource, Objects] = {}

    def jobs(self, ref: GangRef) -> JobRequests:
        """Return the requests about the Jobs of one gang. They are retried, also after a conflict."""
        return JobRequests(self.client, ref, retry=partial(self.retry, after_conflict=True), clock=self.clock)

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

    async def patch_job(self, name: str, body: Mapping[str, Any]) -> Object:
        """Merge-patch a Job with one request, which is not retried."""
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
        return await self.client.patch(JOBS, name, self.namespace, [*tests, *additions], patch_type=PatchType.JSON)

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
        if not job.has_roles:
            return job
        return read_gang(stored, await self.list(JOBS, gang_selector(job.ref.name)))

    async def remove(self, resource: Resource, name: str, uid: str) -> bool:
        """Delete the object of exactly this uid, with retries. Returns false if the object was gone."""
        delete = partial(delete_uid, self.client, resource, name, self.namespace, uid)
        return await self.retry(delete, after_conflict=True)

    async def retry(self, request: Callable[[], Awaitable[T]], *, after_conflict: bool = False) -> T:
        """Retry a request that is safe to repeat until the server answers, at most `TRIES_MAX` times.

        :param after_conflict: Retry also after a conflict: others changed the object at the same time.
        """
        backoff = self.backoff()
        for _ in range(TRIES_MAX - 1):
            try:
                return await request()
            except ClusterError as error:
                is_safe = error.transient or error.may_have_applied or (after_conflict and isinstance(error, Conflict))
                if not is_safe or not await self.sleep_before_retry(backoff.next(at_least_s=error.retry_after_s)):
                    raise
        return await request()


class Retry(Protocol):
    """A rule for retries, such as `jobs.requests.retry_until_answered`."""

    async def __call__(self, request: Callable[[], Awaitable[T]], /) -> T:
        """Repeat a request that is safe to repeat. Return its answer, or raise its last error."""


class JobRequests:
    """The requests about the Jobs of one gang. A Job of the same name with another uid is never changed.

    Unless noted, every method raises what `retry` raises.
    """

    __slots__ = ("_clock", "client", "ref", "retry")

    def __init__(self, client: Client, ref: GangRef, *, retry: Retry, clock: Clock) -> None:
        self.client = client
        self.ref = ref
        self.retry = retry
        self._clock = clock

    async def read(self) -> StoredGang | None:
        """Return the gang of the Job that has the name now; `None` if there is no Job of this name."""
        return await self.retry(lambda: get_job(self.client, self.ref))

    async def patch(self, body: Mapping[str, Any]) -> bool:
        """Merge-patch the Job. Return false if the Job is gone, or if another Job has its name."""
        return await self.retry(partial(self._patch, self.ref, body))

    async def patch_unchanged(self, job: StoredGang, body: Mapping[str, Any]) -> bool:
        """Merge-patch the Job in exactly the version that was read. Return false if the Job has changed."""
        version = {**version_of(job.view.metadata), "uid": self.ref.uid}
        return await self.retry(lambda: patch_unchanged(self.client, JOBS, version, body))

    async def end_by_main(self, job: JobView, stopped: Stopped) -> bool:
        """Mark one Job of the gang, and end its pods. Return false if the Job is not in the version that was read."""
        body = {**mark_patch(stopped), "spec": {"activeDeadlineSeconds": STOPPED_DEADLINE_S}}
        return await self.retry(lambda: patch_unchanged(self.client, JOBS, version_of(job.metadata), body))

    async def stop(self, job: StoredGang | None, stopped: Stopped, *, claim_id: str | None = None) -> StoredGang | None:
        """Stop the gang of a Job that was just read, and return the Job as it was before.

        Returns `None` if the Job is gone, or if the task instance `claim_id` is not responsible for the gang.

        Of a gang with roles, this is the main Job: that of the first role, or the Job without pods that owns the
        JobSet. `end_jobs` ends the others. A Job that is suspended stays suspended until `finish_stopped` lets it fail.
        """
        while job is not None and job.ref == self.ref and (claim_id is None or job.holds_claim(claim_id)):
            job = job.main
            if await self.patch_unchanged(job, stop_patch(stopped, job)):
                return job
            job = await self.retry(lambda: get_main_job(self.client, self.ref))  # somebody has changed the Job
        return None

    async def finish_stopped(self, job: StoredGang | None) -> None:
        """Make the Job of a stopped gang fail if it is suspended. Raises no `ClusterError`.

        :param job: The Job as it was just read; `None` if it is gone.
        """
        if job is not None and next_finish_step(job) is FinishStep.END:
            await finish_stopped(self.client, self.ref, clock=self._clock)

    async def finish_ended_by_main(self, gang: StoredGang) -> None:
        """Go on with the end of a gang that is marked. Safe to repeat.

        :param gang: The gang as it was just read.
        """
        await self.finish_stopped(gang)  # a queue may have suspended the Job in the same moment
        if must_delete_job_set(gang):
            await self.retry(lambda: delete_job_set(self.client, self.ref))

    async def end_jobs(self, gang: StoredGang) -> None:
        """End the Jobs of a gang with roles that still run, after one of them has failed or the gang was stopped.

        Safe to repeat. The main Job of a stopped gang is left out: its stop ends it.

        :param gang: The gang as it was just read.
        """
        for one in jobs_to_end(gang):
            if one.metadata.uid != self.ref.uid or not gang.is_stopped:
                await self.retry(partial(self._patch, StoredGang(one).ref, end_patch()))
        if must_delete_job_set(gang):
            await self.retry(lambda: delete_job_set(self.client, self.ref))

    async def finish_main_job(self, gang: StoredGang) -> None:
        """Make the suspended main Job of a JobSet fail, after `end_jobs` has set its activeDeadlineSeconds to 0.

        Raises no `ClusterError`.

        :param gang: The gang as it was just read. Nothing is done if its roles are no JobSet.
        """
        if gang.has_job_set:
            await finish_stopped(self.client, self.ref, clock=self._clock)

    async def set_ttl(self, job: StoredGang | None) -> None:
        """Have Kubernetes delete the Jobs of a gang with roles after their time to live, which begins now.

        Raises no `ClusterError`: without a time to live the Jobs stay.
        """
        patch = ttl_patch(job) if job is not None and job.jobs else None
        if patch is None:
            return
        try:
            await self._patch(self.ref, patch)
        except ClusterError as exc:
            log.warning("gang %s: its Jobs have no time to live: %s", self.ref, exc)

    async def _patch(self, ref: GangRef, body: Mapping[str, Any]) -> bool:
        return await patch_uid(self.client, JOBS, ref.name, ref.namespace, ref.uid, body)

"""Reads, patches, halts and ends the Jobs of one gang.

The caller gives the rule for retries: a submission gives up at its deadline, and a follower waits for an answer.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow_provider_gangjobs.cluster.client_protocol import patch_uid, patch_unchanged, version_of
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.state.gang_jobs import jobs_to_end, must_delete_job_set, ttl_patch
from airflow_provider_gangjobs.gang.state.halt import FinishStep, end_patch, halt_patch, next_finish_step
from airflow_provider_gangjobs.gang.state.stored_gang import MainContainersEnd, StoredGang, end_by_main_patch
from airflow_provider_gangjobs.jobs.halted import delete_job_set, finish_halted
from airflow_provider_gangjobs.jobs.read import get_job

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from airflow_provider_gangjobs.cluster.client_protocol import ClientProtocol
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.kube.views import JobView

log = logging.getLogger(__name__)

T = TypeVar("T")


class Retry(Protocol):
    """A rule for retries, such as `tracking.retry_until_answered.retry_until_answered`."""

    async def __call__(self, request: Callable[[], Awaitable[T]], /) -> T:
        """Repeat a request that is safe to repeat. Return its answer, or raise its last error."""


class JobRequests:
    """The requests about the Jobs of one gang. A Job of the same name with another uid is never changed.

    Unless noted, every method raises what `retry` raises.
    """

    __slots__ = ("_clock", "client", "ref", "retry")

    def __init__(self, client: ClientProtocol, ref: GangRef, *, retry: Retry, clock: Clock) -> None:
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

    async def end_by_main(self, job: JobView, end: MainContainersEnd) -> bool:
        """Mark one Job of the gang, and end its pods. Return false if the Job is not in the version that was read."""
        body = end_by_main_patch(end)
        return await self.retry(lambda: patch_unchanged(self.client, JOBS, version_of(job.metadata), body))

    async def halt(self, job: StoredGang, reason: str) -> bool:
        """Halt the gang of a Job that was just read. Return false if the Job is gone.

        Of a gang with roles, this is the main Job: that of the first role, or the Job without pods that owns the
        JobSet. `end_jobs` ends the others. A Job that is suspended stays suspended until `finish_halted` makes it fail.
        """
        return await self.patch(halt_patch(reason, StoredGang(job.jobs[0]) if job.jobs else job))

    async def finish_halted(self, job: StoredGang | None) -> None:
        """Make the Job of a halted gang fail if it is suspended. Raises no `ClusterError`.

        :param job: The Job as it was just read; `None` if it is gone.
        """
        if job is not None and next_finish_step(job) is FinishStep.END:
            await finish_halted(self.client, self.ref, clock=self._clock)

    async def end_jobs(self, gang: StoredGang) -> None:
        """End the Jobs of a gang with roles that still run, after one of them has failed or the gang was halted.

        Safe to repeat. The main Job of a halted gang is left out: its halt ends it.

        :param gang: The gang as it was just read.
        """
        for one in jobs_to_end(gang):
            if one.metadata.uid != self.ref.uid or not gang.is_halted:
                await self.retry(partial(self._patch, StoredGang(one).ref, end_patch()))
        if must_delete_job_set(gang):
            await self.retry(lambda: delete_job_set(self.client, self.ref))

    async def finish_main_job(self, gang: StoredGang) -> None:
        """Make the suspended main Job of a JobSet fail, after `end_jobs` has set its activeDeadlineSeconds to 0.

        Raises no `ClusterError`.

        :param gang: The gang as it was just read. Nothing is done if its roles are no JobSet.
        """
        if gang.has_job_set:
            await finish_halted(self.client, self.ref, clock=self._clock)

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


__all__ = ["JobRequests", "Retry"]

"""The requests of a follower about the Job of its gang. Each request is repeated until it is answered."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.cluster.uid_patch import patch_uid
from airflow_provider_gangjobs.gang.state.halt import FinishStep, end_patch, halt_patch, next_finish_step
from airflow_provider_gangjobs.gang.state.job import Job
from airflow_provider_gangjobs.gang.state.roles import must_delete_job_set, parts_to_end, ttl_patch
from airflow_provider_gangjobs.halting import delete_job_set, finish_halted
from airflow_provider_gangjobs.tracking.cluster_requests import retry_until_answered
from airflow_provider_gangjobs.tracking.read.jobs import get_job

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.gang.identity import GangRef

log = logging.getLogger(__name__)

T = TypeVar("T")


class JobRequests:
    """Reads and patches the Job of one gang. Another Job of its name is left alone.

    Every method raises `ClusterRefused` if the server refuses its requests for long.
    """

    __slots__ = ("_clock", "client", "ref")

    def __init__(self, client: Client, ref: GangRef, clock: Clock) -> None:
        self.client = client
        self.ref = ref
        self._clock = clock

    async def answer(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until it is answered."""
        return await retry_until_answered(request, clock=self._clock)

    async def read(self) -> Job | None:
        """Return the Job as the server has it now, or `None` if there is no Job of this name."""
        return await self.answer(lambda: get_job(self.client, self.ref))

    async def patch(self, patch: dict[str, Any]) -> bool:
        """Merge-patch the Job. Return false if the Job is gone, or if another Job has its name."""
        return await self.answer(lambda: self._patch(patch))

    async def patch_unchanged(self, job: Job, patch: dict[str, Any]) -> bool:
        """Merge-patch the Job in exactly the version that was read. Return false if the Job has changed."""
        version = {"resourceVersion": job.view.metadata.resource_version}
        body = {**patch, "metadata": {**patch.get("metadata", {}), **version}}

        async def apply() -> bool:
            try:
                return await self._patch(body)
            except Conflict:
                return False

        return await self.answer(apply)

    async def halt(self, job: Job, reason: str) -> bool:
        """Halt the gang of a Job that was just read. Return false if the Job is gone.

        Of a gang with roles, this is the Job of the first role. `end_parts` ends the others. A Job that is suspended
        stays suspended until `finish_halted` lets it fail.
        """
        return await self.patch(halt_patch(reason, Job(job.parts[0]) if job.parts else job))

    async def finish_halted(self, job: Job | None) -> None:
        """Let the Job of a halted gang end as failed, if it is suspended.

        :param job: The Job as it was just read; `None` if it is gone.
        """
        if job is not None and next_finish_step(job) is FinishStep.END:
            await finish_halted(self.client, self.ref, clock=self._clock)

    async def end_parts(self, job: Job) -> None:
        """End the Jobs of a gang with roles that still run, after one of them has failed or the gang was halted."""
        for part in parts_to_end(job):
            if part.metadata.uid != self.ref.uid or not job.is_halted:
                ref = Job(part).ref
                await self.answer(partial(patch_uid, self.client, JOBS, ref.name, ref.namespace, ref.uid, end_patch()))
        if must_delete_job_set(job):
            await self.answer(lambda: delete_job_set(self.client, self.ref))

    async def set_ttl(self, job: Job | None) -> None:
        """Have Kubernetes delete the Jobs of a gang with roles after their time to live, which begins now."""
        patch = ttl_patch(job) if job is not None and job.parts else None
        if patch is None:
            return
        try:
            await self._patch(patch)
        except ClusterError as exc:
            log.warning("gang %s: its Jobs have no time to live: %s", self.ref, exc)

    async def _patch(self, patch: dict[str, Any]) -> bool:
        return await patch_uid(self.client, JOBS, self.ref.name, self.ref.namespace, self.ref.uid, patch)

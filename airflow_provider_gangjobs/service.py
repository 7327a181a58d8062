"""The gangs of one cluster, over one client: everything that Airflow's doors ask for, each in one call.

Nothing is decided here: the calls go to `submission`, `tracking` and `cluster`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.discovery import Capabilities, discover
from airflow_provider_gangjobs.cluster.errors import NotFound
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.selectors import task_selector
from airflow_provider_gangjobs.gang.spec import GangSpec, Logs, Reattach, Validate
from airflow_provider_gangjobs.gang.state.job import read_job
from airflow_provider_gangjobs.submission import ending, operations
from airflow_provider_gangjobs.submission import uploads as uploading
from airflow_provider_gangjobs.submission.capabilities import Abilities, abilities
from airflow_provider_gangjobs.submission.claim import answers_for, is_gone, mark_delivered, mark_delivered_by
from airflow_provider_gangjobs.submission.cleanup import HALF_SUBMITTED_FOR, Tidied, tidy
from airflow_provider_gangjobs.submission.deletion import PODS_GONE_WITHIN_S, forget
from airflow_provider_gangjobs.submission.ending import Killed
from airflow_provider_gangjobs.submission.jobs import JobState, state_of
from airflow_provider_gangjobs.submission.submit import Submission, submit
from airflow_provider_gangjobs.tracking.harvest.collect import CollectedOutcomes, collect_outcomes
from airflow_provider_gangjobs.tracking.read.logs import RankLog, read_logs
from airflow_provider_gangjobs.tracking.read.outcomes import read_outcomes
from airflow_provider_gangjobs.tracking.read.snapshot import GangSnapshot, read_snapshot
from airflow_provider_gangjobs.tracking.release import ReleaseReport, release_pods

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.submission.adopt import Lost
    from airflow_provider_gangjobs.submission.operations import SubmissionPage
    from airflow_provider_gangjobs.submission.record import SubmissionRecord
    from airflow_provider_gangjobs.submission.uploads import Upload

DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True)
class Gangs:
    """What can be done with the gangs of a cluster. Errors are `GangJobError` or `cluster.errors.ClusterError`."""

    client: Client

    @classmethod
    @asynccontextmanager
    async def of(cls, config: ClusterConfig) -> AsyncIterator[Gangs]:
        """Connect for the length of the block."""
        async with Client(config) as client:
            yield cls(client)

    @property
    def namespace(self) -> str:
        """Where gangs go that name no namespace."""
        return self.client.config.namespace or DEFAULT_NAMESPACE

    async def capabilities(self) -> Capabilities:
        """What the cluster serves. Remembered for some minutes."""
        return await discover(self.client)

    async def abilities(self) -> Abilities:
        """What can be done with gangs here, and how that is known. Remembered for some minutes."""
        return await abilities(self.client, namespace=self.namespace)

    async def submit(
        self,
        spec: GangSpec,
        *,
        key: TaskKey,
        claim: str,
        reattach: Reattach = Reattach.RUNNING_OR_SUCCEEDED,
        validate: Validate = Validate.CLIENT,
        lost: Lost | None = None,
        tell_failure: bool = False,
    ) -> Submission:
        """Create a task's gang, or adopt the one that is there. See `submission.submit`."""
        return await submit(
            self.client,
            spec,
            key=key,
            claim=claim,
            capabilities=await self.capabilities(),
            reattach=reattach,
            namespace=self.namespace,
            preflight=validate is Validate.SERVER,
            lost=lost,
            tell_failure=tell_failure,
        )

    async def submit_operation(
        self, spec: GangSpec, trigger_id: str, *, validate: Validate = Validate.CLIENT
    ) -> Submission:
        """Create the gang of this id, or return the one that is there. See `submission.operations`."""
        return await operations.submit_operation(
            self.client,
            spec,
            trigger_id=trigger_id,
            capabilities=await self.capabilities(),
            namespace=self.namespace,
            preflight=validate is Validate.SERVER,
        )

    async def submission(self, trigger_id: str, *, namespace: str | None = None) -> SubmissionRecord | None:
        """The submission of this id as it stands, by one request; None if there is none."""
        return await operations.find(self.client, trigger_id, namespace=namespace or self.namespace)

    async def submissions(
        self,
        *,
        namespace: str | None = None,
        selector: str | None = None,
        limit: int = operations.PAGE_SUBMISSIONS,
        continue_token: str | None = None,
    ) -> SubmissionPage:
        """A page of a namespace's submissions, of tasks and by chosen ids alike."""
        return await operations.page(
            self.client,
            namespace=namespace or self.namespace,
            selector=selector,
            limit=limit,
            continue_token=continue_token,
        )

    async def delete_submission(
        self,
        trigger_id: str,
        *,
        job: bool = False,
        namespace: str | None = None,
        timeout_s: float = PODS_GONE_WITHIN_S,
    ) -> tuple[GangRef, ...]:
        """Delete what belongs to a submission, after halting it if it goes on; the Job too if asked."""

        async def free(ref: GangRef) -> None:
            await release_pods(self.client, namespace=ref.namespace, gang=ref.name)

        return await forget(
            self.client, trigger_id, namespace=namespace or self.namespace, release=free, job=job, timeout_s=timeout_s
        )

    async def tidy(
        self,
        *,
        namespace: str | None = None,
        everywhere: bool = False,
        older_than: timedelta = HALF_SUBMITTED_FOR,
        dry_run: bool = False,
    ) -> Tidied:
        """Complete or remove gangs whose submission stopped half-way. See `submission.janitor`."""
        where = None if everywhere else namespace or self.namespace
        return await tidy(self.client, namespace=where, older_than=older_than, dry_run=dry_run)

    async def upload(self, files: Mapping[str, str | bytes], *, namespace: str | None = None) -> str:
        """Store files that many gangs share; returns their content id, for `GangSpec.uploads`."""
        return await uploading.upload(self.client, files, namespace=namespace or self.namespace)

    async def uploads(self, *, namespace: str | None = None) -> list[Upload]:
        """All uploads of a namespace."""
        return await uploading.uploads(self.client, namespace=namespace or self.namespace)

    async def delete_upload(self, content_id: str, *, namespace: str | None = None) -> bool:
        """Delete an upload, used or not. False if it was gone."""
        return await uploading.delete_upload(self.client, content_id, namespace=namespace or self.namespace)

    async def outcomes(self, ref: GangRef) -> list[Outcome]:
        """Every recorded outcome, by rank; also of a gang that has ended, while its Job exists."""
        return await read_outcomes(self.client, ref)

    async def collect_outcomes(self, event: GangEvent) -> CollectedOutcomes:
        """Return the outcomes of a gang that succeeded, also unrecorded ones. See `tracking.harvest.collect`."""
        return await collect_outcomes(self.client, event)

    async def snapshot(self, key: TaskKey, *, namespace: str | None = None, uid: str | None = None) -> GangSnapshot:
        """How a task's gangs stand, by a bounded look: at the one of this uid, or else at the last attempt."""
        return await read_snapshot(self.client, namespace or self.namespace, key.digest, uid)

    async def logs(self, ref: GangRef, policy: Logs, *, outcomes: Sequence[Outcome] = ()) -> list[RankLog]:
        """The tails of the ranks' logs that the policy asks for; each says why it is missing if it is."""
        return await read_logs(self.client, ref, policy, outcomes=outcomes)

    async def mark_delivered(self, ref: GangRef) -> bool:
        """Note that the outcome is Airflow's now: the next submission is a new attempt. False if the Job is gone."""
        return await mark_delivered(self.client, ref, at=datetime.now(UTC))

    async def halt(self, ref: GangRef, *, reason: str) -> bool:
        """End its pods and keep its Job to be read. False if the Job is gone."""
        return await ending.halt(self.client, ref, reason=reason)

    async def delete(self, ref: GangRef) -> bool:
        """Delete the Job of exactly this uid and all it owns. False if it was gone."""
        return await ending.delete(self.client, ref)

    async def deliver(self, ref: GangRef, claim: str, *, free_held: bool = False, delete: bool = False) -> bool:
        """Mark the gang as delivered if `claim` answers for it, then let its pods go and delete its Job, as asked.

        The mark and the deletion apply only while `claim` answers for the gang: a try that is late touches no gang that
        the next try has adopted. The pods of a gang whose Job is gone are let go, too. False if the gang is left alone.
        """
        marked = await mark_delivered_by(self.client, ref, claim, at=datetime.now(UTC))
        if marked is None and not await is_gone(self.client, ref):
            return False
        if free_held:
            await self.let_go(ref)
        return not delete or marked is None or await ending.delete_claimed(self.client, ref, claim, seen=marked)

    async def discard(self, ref: GangRef, claim: str, *, free_held: bool = False) -> bool:
        """Delete the gang, ended or not, if `claim` answers for it, and let its pods go. False if it is left alone."""
        gone = await ending.delete_claimed(self.client, ref, claim)
        if gone and free_held:
            await self.let_go(ref)
        return gone

    async def kill(self, ref: GangRef, claim: str) -> Killed:
        """Delete the gang if it is live and `claim` answers for it, and leave it alone otherwise.

        Its pods are let go, too: nobody follows it any more who would record how they end. A gang that has ended stays,
        with its pods: their outcomes are still to be recorded.
        """
        killed = await ending.kill(self.client, ref, claim)
        if killed is Killed.DELETED:
            await self.let_go(ref)
        return killed

    async def is_live(self, ref: GangRef) -> bool:
        """Whether exactly this Job is there and has not ended.

        Raises:
            ClusterError: it could not be found out.
        """
        try:
            job = read_job(await self.client.get(JOBS, ref.name, ref.namespace))
        except NotFound:
            return False
        return job.ref == ref and state_of(job) is JobState.LIVE

    async def live(self, key: TaskKey, claim: str, *, namespace: str | None) -> list[GangRef]:
        """The task's gangs that still run and that `claim` answers for."""
        found = await self.client.list(JOBS, namespace or self.namespace, label_selector=task_selector(key.digest))
        jobs = [read_job(stored) for stored in found]
        return [job.ref for job in jobs if state_of(job) is JobState.LIVE and answers_for(job, claim)]

    async def end_live(
        self, key: TaskKey, claim: str, *, namespace: str | None, delete: bool, reason: str
    ) -> list[GangRef]:
        """End the task's gangs that still run and that `claim` answers for: delete, or else halt them. Returns them.

        A gang that ends, or that another try adopts, while this goes on is left alone. What the pods of the others that
        still ran come to is not recorded.
        """
        found = await self.client.list(JOBS, namespace or self.namespace, label_selector=task_selector(key.digest))
        ended = []
        for stored in found:
            job = read_job(stored)
            is_ours = state_of(job) is JobState.LIVE and answers_for(job, claim)
            if is_ours and await self._end(stored, claim, delete, reason):
                await self.let_go(job.ref)
                ended.append(job.ref)
        return ended

    async def _end(self, stored: dict[str, Any], claim: str, delete: bool, reason: str) -> bool:
        job = read_job(stored)
        if delete:
            return await ending.kill(self.client, job.ref, claim, seen=stored) is Killed.DELETED
        return await ending.halt_claimed(self.client, job.ref, claim, reason=reason, queued=job.is_queued_by_kueue)

    async def let_go(self, ref: GangRef) -> None:
        """Free the pods of a gang that is over and that nobody follows, or they would be held for ever."""
        await release_pods(self.client, namespace=ref.namespace, gang=ref.name, job_uid=ref.uid)

    async def release_finalizers(self, *, namespace: str | None = None, gang: str | None = None) -> ReleaseReport:
        """Free the pods of one gang, of a namespace, or (with neither) of the cluster. See `tracking.release`."""
        return await release_pods(self.client, namespace=namespace, gang=gang)

"""The actions of a sweep. Each deletion applies only to the version of the Job for which the rules were judged."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.ending.delete_gang import delete_job_if
from airflow_provider_gangjobs.ending.release import drain_pods, release_pods
from airflow_provider_gangjobs.gang.outcome.outcomes import failures_first, format_table, outcome_of
from airflow_provider_gangjobs.gang.spec import OnFinish
from airflow_provider_gangjobs.gang.state.ownership import SweepAction, SweepDecision, SweepFacts, decide_sweep
from airflow_provider_gangjobs.gang.state.pods import has_ended
from airflow_provider_gangjobs.jobs.claim import is_gone, patch_claimed
from airflow_provider_gangjobs.jobs.requests import RetryingRequests, finish_halted
from airflow_provider_gangjobs.kube.names import annotation_pointer
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_DELIVERED, ANNOTATION_ON_FINISH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import PodView

log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 8
OUTCOMES_LOGGED_MAX: Final = 100
FOLLOW_TIMEOUT_S: Final = 300.0
VANISHED: Final = SweepDecision(
    SweepAction.RELEASE, "its Job is gone with its ledger, so nobody can record the outcomes of its pods any more"
)


@dataclass(frozen=True)
class SweptGang:
    """What a sweep has done with a gang, or would do."""

    ref: GangRef
    decision: SweepDecision
    installation: str = ""
    error: str = ""
    """Why it could not be done. The next sweep tries again."""
    phase: str = ""
    """The phase of a gang that is only looked at."""


@dataclass
class SweepActions:
    """The actions of one look. At most `AT_ONCE_MAX` run at once."""

    client: Client
    follow: Callable[[GangRef], Awaitable[object]]
    """Follows a gang that is over, which records the outcomes of its pods and releases them."""
    is_followed: Callable[[GangRef], bool]
    """Whether this process has begun to follow the gang since the decision."""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE_MAX), init=False)

    async def act(self, job: StoredGang, facts: SweepFacts, decision: SweepDecision) -> SweptGang | None:
        """Do what was decided. Returns None if the gang has changed meanwhile and was left alone."""
        return await self._attempt(job.ref, decision, job.installation, lambda: self._do(job, facts, decision))

    async def release_vanished(self, ref: GangRef, pods: Sequence[PodView]) -> SweptGang | None:
        """Release the pods of a Job that does not exist, and log their outcomes. Returns None if the Job exists."""
        return await self._attempt(ref, VANISHED, "", lambda: self._release_if_gone(ref, pods))

    async def _attempt(
        self, ref: GangRef, decision: SweepDecision, installation: str, action: Callable[[], Awaitable[bool]]
    ) -> SweptGang | None:
        try:
            async with self._slots:
                is_done = not self.is_followed(ref) and await action()
        except (ClusterError, TimeoutError) as error:
            return SweptGang(ref, decision, installation, str(error) or type(error).__name__)
        return SweptGang(ref, decision, installation) if is_done else None

    async def _do(self, job: StoredGang, facts: SweepFacts, decision: SweepDecision) -> bool:
        def is_still_so(stored: StoredGang) -> bool:
            return stored.claim == job.claim and decide_sweep(stored, facts).action is decision.action

        if decision.action is SweepAction.RELEASE:
            async with asyncio.timeout(FOLLOW_TIMEOUT_S):
                await self.follow(job.ref)
            return True
        if decision.action is SweepAction.MARK_DELIVERED:
            return await self._mark_delivered(job)
        if decision.action is SweepAction.FINISH:
            return await finish_halted(self.client, job.ref, clock=self.client.clock)
        requests = RetryingRequests(self.client, job.ref.namespace)
        if not (await delete_job_if(requests, job.ref, is_still_so)).deleted:
            return False
        await drain_pods(self.client, job.ref, roles=job.role_names)
        return True

    async def _mark_delivered(self, job: StoredGang) -> bool:
        """Mark the gang as delivered if its claim has not changed, and keep its Job.

        A user may have marked the task as successful, so it is not certain that anybody has the results.
        """
        values = {
            annotation_pointer(ANNOTATION_DELIVERED): self.client.server_clock.now().isoformat(timespec="seconds"),
            annotation_pointer(ANNOTATION_ON_FINISH): OnFinish.KEEP.value,
        }
        return await patch_claimed(self.client, job.ref, job.claim or "", values) is not None

    async def _release_if_gone(self, ref: GangRef, pods: Sequence[PodView]) -> bool:
        if not await is_gone(self.client, ref):
            return False
        # The ledger is deleted with the Job, so the log is the only place that is left for the outcomes.
        outcomes = failures_first((outcome_of(pod, ended=has_ended(pod)) for pod in pods), OUTCOMES_LOGGED_MAX)
        log.warning(
            "Gang %s: its Job is gone. Outcomes of its %d held pods:\n%s", ref, len(pods), format_table(outcomes)
        )
        await release_pods(self.client, namespace=ref.namespace, gang=ref.name, job_uid=ref.uid)
        return True


__all__ = ["SweepActions", "SweptGang"]

"""The use cases that end gangs: deliver, halt, kill and delete gangs, and release their pods.

A DAG file may import this module, so the module imports no client library. Each method imports what it calls.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.service.submissions import SubmissionService

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow_provider_gangjobs.ending.conditional_deletion import Removal
    from airflow_provider_gangjobs.ending.end import Kill, KillResult
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey


class EndingService(SubmissionService, frozen=True):
    """The ends of the gangs of one cluster, over one client. `GangService` adds submission and tracking.

    Every method may raise `exceptions.GangJobError` or `cluster.errors.ClusterError`.
    """

    async def mark_delivered(self, ref: GangRef) -> bool:
        """Mark the outcome as delivered, so that the next submission is a new attempt.

        Returns false if the Job is gone. A task uses `deliver`, which checks the claim.
        """
        from airflow_provider_gangjobs.jobs.claim import mark_delivered

        return await mark_delivered(self.client, ref, at=datetime.now(UTC))

    async def deliver(self, ref: GangRef, claim: str, *, release_held: bool = False, delete: bool = False) -> bool:
        """Mark the gang as delivered if `claim` is responsible for it.

        The mark and the deletion apply only while `claim` is responsible for the gang: a try that is late changes no
        gang that the next try has adopted. The pods of a gang whose Job is gone are released, too.

        :param release_held: Then release the gang's pods.
        :param delete: Then delete the Job.
        :return: False if the gang was left alone.
        """
        from airflow_provider_gangjobs.ending.end import delete_claimed
        from airflow_provider_gangjobs.jobs.claim import is_gone, mark_delivered_by

        marked = await mark_delivered_by(self.client, ref, claim, at=datetime.now(UTC))
        if marked is None and not await is_gone(self.client, ref):
            return False
        if release_held:
            await self.release_pods(ref)
        return not delete or marked is None or await delete_claimed(self.client, ref, claim, seen=marked)

    async def discard(self, ref: GangRef, claim: str, *, release_held: bool = False) -> bool:
        """Delete the gang, ended or not, if `claim` is responsible for it. Returns false if the gang was left alone.

        The pods of a gang that had not ended are released.

        :param release_held: Also release the pods of a gang that has ended.
        """
        from airflow_provider_gangjobs.ending.end import remove_claimed

        removal = await remove_claimed(self.client, ref, claim, foreground=release_held)
        if removal.kept is not None:
            return False
        await self._drain_removed(ref, removal, release_held=release_held)
        return True

    async def kill(self, ref: GangRef, claim: str) -> KillResult:
        """Delete the gang if it is live and `claim` is responsible for it. Otherwise leave the gang alone.

        The pods are released, since nobody follows the gang any more who would record their outcomes. A gang that has
        ended keeps its pods: their outcomes are still to be recorded.
        """
        killed = await self.begin_kill(ref, claim)
        await self.finish_kill(killed)
        return killed.result

    async def begin_kill(self, ref: GangRef, claim: str) -> Kill:
        """Delete the gang as `kill` does, without the release of its pods."""
        from airflow_provider_gangjobs.ending.end import Kill, remove_live, result_of

        removal = await remove_live(self.client, ref, claim)
        return Kill(ref, result_of(removal, claim), removal)

    async def finish_kill(self, killed: Kill) -> None:
        """Release the pods of the gang that `begin_kill` has deleted. Safe to repeat."""
        if killed.removal.kept is None:
            await self._drain_removed(killed.ref, killed.removal)

    async def end_live_gangs(
        self,
        key: TaskKey,
        claim: str,
        *,
        namespace: str | None = None,
        delete: bool,
        reason: str,
        on_ended: Callable[[GangRef], None] = lambda ref: None,
    ) -> list[GangRef]:
        """Delete or halt the task's live gangs that `claim` is responsible for. Returns these gangs.

        A gang that ends meanwhile, or that another try adopts meanwhile, is left alone. The outcomes of pods that still
        ran are not recorded.

        :param delete: Delete the gangs. Otherwise they are halted with `reason`, and their Jobs stay.
        :param on_ended: Called with each gang that is deleted or halted, before its pods are released.
        """
        from airflow_provider_gangjobs.ending.end import end_live_gangs
        from airflow_provider_gangjobs.ending.release import drain_pods

        ended = await end_live_gangs(
            self.client, key, claim, namespace=namespace or self.namespace, delete=delete, reason=reason
        )
        for gang in ended:
            on_ended(gang.ref)
        drains = (drain_pods(self.client, gang.ref, may_get_pods=gang.may_get_pods, roles=gang.roles) for gang in ended)
        await asyncio.gather(*drains)
        return [gang.ref for gang in ended]

    async def halt(self, ref: GangRef, *, reason: str) -> bool:
        """End the gang's pods and keep its Job with `reason`. Returns false if the Job is gone."""
        from airflow_provider_gangjobs.ending import end

        return await end.halt(self.client, ref, reason=reason)

    async def halt_live(self, ref: GangRef, claim: str, *, reason: str) -> bool:
        """Halt the gang as `halt` does, if it is live and `claim` is responsible for it. Otherwise return false."""
        from airflow_provider_gangjobs.ending import end

        return await end.halt_live(self.client, ref, claim, reason=reason)

    async def delete(self, ref: GangRef, *, deleted_by: str = "") -> bool:
        """Delete the Job of exactly this uid and everything that the Job owns. Returns false if the Job was gone.

        The pods of the gang are released, also if the Job was gone. Outcomes that are not recorded yet are lost.

        :param deleted_by: Who deletes the gang on purpose. A task that waits for the gang then fails without a retry,
            and its error has this text. By default, the task does not know, and its retries run the gang again.
        """
        from airflow_provider_gangjobs.ending.end import remove

        removal = await remove(self.client, ref, deleted_by=deleted_by)
        await self._drain_removed(ref, removal, release_held=True)
        return removal.deleted

    async def _drain_removed(self, ref: GangRef, removal: Removal, *, release_held: bool = False) -> None:
        """Release the pods of a gang whose Job was deleted, or was gone.

        :param release_held: Also release the pods of a gang that had ended.
        """
        from airflow_provider_gangjobs.ending.end import may_get_pods
        from airflow_provider_gangjobs.ending.release import drain_pods

        job = removal.job if removal.removed is not None else None
        if job is None or not (job.never_ran or (job.is_ended and not release_held)):
            roles = job.role_names if job is not None else ()
            await drain_pods(self.client, ref, may_get_pods=job is not None and may_get_pods(job), roles=roles)

    async def release_pods(self, ref: GangRef) -> None:
        """Remove the provider's finalizer from the pods of a gang that is over and that nobody follows."""
        from airflow_provider_gangjobs.ending.release import release_pods

        await release_pods(self.client, namespace=ref.namespace, gang=ref.name, job_uid=ref.uid)

    async def drain_pods(self, ref: GangRef, *, roles: Collection[str] = ()) -> bool:
        """Release the pods of a gang that was just deleted or halted, also those that are being created.

        :param roles: The names of the roles of the gang, if the gang has any.

        Returns false if pods may still be held.
        """
        from airflow_provider_gangjobs.ending.release import drain_pods

        return await drain_pods(self.client, ref, roles=roles)

    async def release_and_count_running(self, ref: GangRef) -> int:
        """Return how many pods of a gang that is over have not ended.

        If the Job is gone or is being deleted, the gang's pods are released.
        """
        from airflow_provider_gangjobs.ending.release import release_and_count_running

        return await release_and_count_running(self.client, ref)


__all__ = ["EndingService"]

"""The use cases of gangs in one cluster: submit and read here, and those of `endings` and `submissions`.

`GangService` has one coroutine for each use case, with its defaults. The Airflow hook derives its blocking methods from
these coroutines. The service selects the namespace and calls the packages `submission`, `tracking` and `cluster`, which
implement the use cases. It does not know Airflow.

A DAG file may import this module, so the module imports no client library. Each method imports what it calls.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.spec import GangSpec, Logs, Policies, Reattach, Validate
from airflow_provider_gangjobs.service.endings import EndingService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources
    from airflow_provider_gangjobs.ending.end import LiveGang
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.gang.spec import LogOptions
    from airflow_provider_gangjobs.submission.adopt_or_submit import LostAttempt
    from airflow_provider_gangjobs.submission.discovery.capabilities import Capabilities
    from airflow_provider_gangjobs.submission.record import Submission
    from airflow_provider_gangjobs.submission.steps.step import ConfirmTry
    from airflow_provider_gangjobs.tracking.harvest.collect import CollectedOutcomes
    from airflow_provider_gangjobs.tracking.logs.copy import CopiedLog
    from airflow_provider_gangjobs.tracking.logs.last_lines import RankLog
    from airflow_provider_gangjobs.tracking.logs.store import ObjectStorage
    from airflow_provider_gangjobs.tracking.snapshot import GangSnapshot

log = logging.getLogger(__name__)

SUBMISSION_DEADLINE_S: Final = 120.0
"""Twice the time that an API server may need to restart. Discovery and all steps of a submission share the deadline."""


class GangService(EndingService, frozen=True):
    """The gangs of one cluster, over one client.

    Every method may raise `exceptions.GangJobError` or `cluster.errors.ClusterError`.
    """

    @classmethod
    @asynccontextmanager
    async def connect(cls, config: ClusterConfig) -> AsyncIterator[GangService]:
        """Open a client for the duration of the block, for some requests."""
        from airflow_provider_gangjobs.cluster.client import Client
        from airflow_provider_gangjobs.cluster.http import for_few_requests

        async with Client(config, transport=for_few_requests) as client:
            yield cls(client)

    # -- the cluster -----------------------------------------------------------------------------------------

    async def version(self) -> Mapping[str, str]:
        """Return the server's `/version` document, such as `{"gitVersion": "v1.37.0"}`."""
        return await self.client.version()

    async def capabilities(self) -> Capabilities:
        """Return the release, the dialects, the fields that a dry run keeps, and the state of the feature gates.

        The result is cached for some minutes.
        """
        from airflow_provider_gangjobs.submission.discovery.capabilities import read_capabilities

        return await read_capabilities(self.client, namespace=self.namespace)

    # -- submission ------------------------------------------------------------------------------------------

    async def submit(
        self,
        spec: GangSpec,
        *,
        trigger_id: str | None = None,
        key: TaskKey | None = None,
        claim: str = "",
        reattach: Reattach | str = Reattach.RUNNING_OR_SUCCEEDED,
        validate: Validate | str = Validate.CLIENT,
        return_failed: bool = False,
        policies: Policies | None = None,
        is_retry: bool = True,
        wait_for_previous_s: float = SUBMISSION_DEADLINE_S,
        confirm: ConfirmTry | None = None,
        max_tries: int | None = None,
        deadline_s: float = SUBMISSION_DEADLINE_S,
    ) -> Submission:
        """Create the gang of a trigger id or of a task, or adopt the gang that exists.

        :param trigger_id: A trigger id that the caller chooses. The same id with the same parameters is the same
            gang, however often and from wherever it is submitted, until the submission is deleted or has failed.
        :param key: The task that the gang belongs to, instead of a trigger id.
        :param claim: The id of the task instance that is responsible for the gang from now on. Only with `key`.
        :param reattach: Which existing gang of the task to adopt. Only with `key`.
        :param validate: With `server`, the API server validates the Job in a dry run before anything is created.
        :param return_failed: Return the last attempt, once, if it has failed and no try has read how, instead of
            submitting the next attempt. Only with `key`.
        :param policies: What happens to the gang after its task has ended. Only with `key`, and only if `key` is a task
            of Airflow: a sweeper asks Airflow for the state of the task.
        :param is_retry: The task may have had gangs whose Jobs were deleted by somebody else. Their pods are looked
            for, too, with one request. Only with `key`.
        :param wait_for_previous_s: For how many seconds to wait for the pods of an earlier attempt, at most until the
            deadline. No attempt is created while they run.
        :param confirm: As in `submission.submit.submit`. Only with `key`.
        :param max_tries: As in `submission.submit.submit`. Only with `key`.
        :param deadline_s: For how many seconds from now requests are retried, in total.

        Raises:
            InvalidGangSpec, GangUnsupported, SubmissionConflict, SubmissionFailed: no new gang is left running.
            PreviousAttemptRunning: pods of an earlier attempt still run. Nothing was created.
            ValueError: not exactly one of `trigger_id` and `key` is given.
        """
        from airflow_provider_gangjobs.submission.previous_attempts import PreviousGangs

        dry_run = Validate(validate) is Validate.SERVER
        if (trigger_id is None) == (key is None):
            raise ValueError("Give either trigger_id or key")
        previous = PreviousGangs(self.release_pods, wait_for_previous_s, is_retry=is_retry and key is not None)
        with self._deadline(deadline_s):
            discovered = await self._discover(spec)
            if trigger_id is not None:
                from airflow_provider_gangjobs.submission.operations import submit_operation

                return await submit_operation(
                    self.client,
                    spec,
                    trigger_id=trigger_id,
                    discovered=discovered,
                    namespace=self.namespace,
                    dry_run=dry_run,
                    previous=previous,
                    clock=self.client.clock,
                )
            from airflow_provider_gangjobs.submission.submit import submit

            assert key is not None
            return await submit(
                self.client,
                spec,
                key=key,
                claim=claim,
                discovered=discovered,
                reattach=Reattach(reattach),
                namespace=self.namespace,
                dry_run=dry_run,
                return_failed=return_failed,
                policies=policies,
                previous=previous,
                confirm=confirm,
                max_tries=max_tries,
                clock=self.client.clock,
            )

    async def submit_next_attempt(
        self,
        spec: GangSpec,
        *,
        key: TaskKey,
        claim: str,
        lost: LostAttempt,
        policies: Policies | None = None,
        confirm: ConfirmTry | None = None,
        max_tries: int | None = None,
        deadline_s: float = SUBMISSION_DEADLINE_S,
    ) -> Submission:
        """Submit the attempt that follows a lost one, within the same try of the task.

        Raises:
            SubmissionFailed: another try of the task has adopted the lost attempt, or the server refused a step.
            InvalidGangSpec, GangUnsupported, SubmissionConflict: as `submit`.
        """
        from airflow_provider_gangjobs.submission.submit import submit

        with self._deadline(deadline_s):
            return await submit(
                self.client,
                spec,
                key=key,
                claim=claim,
                discovered=await self._discover(spec),
                namespace=self.namespace,
                lost=lost,
                policies=policies,
                confirm=confirm,
                max_tries=max_tries,
                clock=self.client.clock,
            )

    async def submit_after(
        self,
        spec: GangSpec,
        event: GangEvent,
        *,
        key: TaskKey,
        claim: str,
        max_disruptions: int,
        policies: Policies | None = None,
        confirm: ConfirmTry | None = None,
        max_tries: int | None = None,
        delete_failed: bool = False,
        release_held: bool = False,
    ) -> Submission:
        """Submit the attempt that follows a failed one within the same try of the task.

        The failed attempt is deleted last, because its Job shows how many attempts in a row were lost. An error of this
        deletion is logged and does not fail the submission.

        :param event: The event of the failed attempt.
        :param max_disruptions: How many attempts in a row may be lost and replaced without a retry of the task.
        :param delete_failed: Delete the failed gang when the next attempt is submitted.
        :param release_held: With `delete_failed`, also release the failed gang's pods.

        Raises:
            SubmissionFailed, InvalidGangSpec, GangUnsupported, SubmissionConflict: as `submit_next_attempt`.
        """
        from airflow_provider_gangjobs.cluster.errors import ClusterError
        from airflow_provider_gangjobs.submission.resubmission import lost_attempt

        lost = lost_attempt(event, max_disruptions=max_disruptions)
        submission = await self.submit_next_attempt(
            spec, key=key, claim=claim, lost=lost, policies=policies, confirm=confirm, max_tries=max_tries
        )
        if delete_failed:
            try:
                await self.discard(event.ref, claim, release_held=release_held)
            except ClusterError as error:
                log.warning("Gang %s could not be deleted: %s", event.ref, error)
        return submission

    def _deadline(self, seconds: float) -> AbstractContextManager[None]:
        from airflow_provider_gangjobs.cluster.http.transport import request_deadline

        return request_deadline(self.client.clock.monotonic() + seconds)

    async def _discover(self, spec: GangSpec) -> DiscoveredResources:
        from airflow_provider_gangjobs.submission.discovery.schedulers import discover_for

        return await discover_for(self.client, spec, namespace=spec.namespace or self.namespace)

    # -- tracking --------------------------------------------------------------------------------------------

    async def outcomes(self, ref: GangRef) -> list[Outcome]:
        """Return every recorded outcome, by rank. The outcomes are available while the Job exists."""
        from airflow_provider_gangjobs.tracking.harvest.collect import read_outcomes

        return await read_outcomes(self.client, ref)

    async def collect_outcomes(self, event: GangEvent) -> CollectedOutcomes:
        """Return the outcomes of a gang that succeeded, including those that only the gang's pods show."""
        from airflow_provider_gangjobs.tracking.harvest.collect import collect_outcomes

        return await collect_outcomes(self.client, event)

    async def logs(
        self, ref: GangRef, policy: Logs | str = Logs.RANK0_AND_FAILED, *, outcomes: Sequence[Outcome] = ()
    ) -> list[RankLog]:
        """Return the last lines of the ranks' logs, as far as the nodes still have them.

        :param policy: Which ranks: `rank0+failed`, `all` or `none`.
        :param outcomes: The recorded outcomes, which show the failed ranks.
        """
        from airflow_provider_gangjobs.tracking.logs.last_lines import read_logs

        return await read_logs(self.client, ref, Logs(policy), outcomes=outcomes)

    async def copy_logs(
        self,
        ref: GangRef,
        options: LogOptions,
        write: Callable[[Sequence[str]], None],
        *,
        mask: Callable[[str], str] = str,
        outcomes: Sequence[Outcome] = (),
        positions: Mapping[str, str] | None = None,
        addresses: Mapping[str, str] | None = None,
        whole: Collection[str] = (),
    ) -> list[CopiedLog]:
        """Pass the whole logs of the selected ranks to `write`, in order and in parts, up to a limit.

        :param write: Called with lines.
        :param mask: Returns a text with its secrets replaced. It is called before texts are cut.
        :param outcomes: The recorded outcomes, which show the failed ranks.
        :param positions: How far logs were streamed, from `GangEvent.streamed`.
        :param addresses: Where whole logs are stored, by pod and container.
        :param whole: The logs that were streamed to their end, from `GangEvent.whole_logs`.
        """
        from airflow_provider_gangjobs.tracking.logs.copy import copy_logs

        return await copy_logs(
            self.client,
            ref,
            options,
            write,
            mask=mask,
            outcomes=outcomes,
            positions=positions,
            addresses=addresses,
            whole=whole,
        )

    async def store_logs(
        self,
        ref: GangRef,
        storage: ObjectStorage,
        containers: Sequence[str],
        write: Callable[[Sequence[str]], None],
        *,
        outcomes: Sequence[Outcome] = (),
    ) -> dict[str, str]:
        """Write the whole logs of all ranks to a storage. Return their addresses by pod and container.

        :param containers: Containers besides the main container of each rank; `all` for every container.
        :param write: Called with lines that say where each log is, or why it was not written.
        :param outcomes: The recorded outcomes, which show the ranks whose pods do not exist any more.
        """
        from airflow_provider_gangjobs.tracking.logs.store import store_logs

        return await store_logs(self.client, ref, storage, containers, write, outcomes)

    async def snapshot(self, key: TaskKey, *, namespace: str | None = None, uid: str | None = None) -> GangSnapshot:
        """Read the state of a task's gangs in a bounded number of requests.

        :param uid: The uid of the Job whose pods are read. By default the Job of the last attempt.
        """
        from airflow_provider_gangjobs.tracking.snapshot import read_snapshot

        return await read_snapshot(self.client, namespace or self.namespace, key, uid)

    async def is_live(self, ref: GangRef) -> bool:
        """Return whether the Job of exactly this uid exists and has not ended."""
        from airflow_provider_gangjobs.ending.end import is_live

        return await is_live(self.client, ref)

    async def live_attempts(self, key: TaskKey, claim: str, *, namespace: str | None = None) -> list[LiveGang]:
        """Return the task's live gangs that `claim` is responsible for, with the numbers of their attempts."""
        from airflow_provider_gangjobs.ending.end import live_attempts

        return await live_attempts(self.client, key, claim, namespace=namespace or self.namespace)


__all__ = ["GangService"]

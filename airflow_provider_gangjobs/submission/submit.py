"""Submit: a task has one live gang, however often and from wherever the gang is submitted.

The order of the steps (`_steps_of`) works on every version of Kubernetes and with any feature gates, and every object
has an owner:

1. List the task's Jobs: adopt one, or submit the next attempt.
2. POST the Job, suspended, and check that the stored Job has the pods' link to their group.
3. POST Service and ConfigMap, Workload, PodGroup, owned by the Job.
4. PATCH the Job so that it runs, or give it to its queue, which decides when it runs.

A gang with roles has one more Job for each role after the first one. These Jobs are created after the first Job, also
suspended, and are started before it. So the first Job is suspended as long as any step is left. In a queue, the Jobs of
all roles are those of a JobSet, and `step` has the order of the steps.

A crash after any step leaves at most one suspended Job. The next call completes this Job, and the deletion of the Job
deletes everything that it owns.

Two attempts that run at once would write to the same place, so an attempt waits for the pods of earlier ones. A pod
that is being deleted runs until its program has ended, at most for its grace period, which may be hours where a program
saves a checkpoint. The Job of a gang that was deleted while it was live stays until its pods are gone
(`ending.delete`), so the list of the task's Jobs shows whether there is anything to wait for. If there is nothing, no
request is sent.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.ending.delete import delete
from airflow_provider_gangjobs.ending.release import count_running
from airflow_provider_gangjobs.ending.stop import end_jobs, stop
from airflow_provider_gangjobs.exceptions import GangJobError, PreviousAttemptRunning, SubmissionFailed
from airflow_provider_gangjobs.gang.checkpoints import digest_in
from airflow_provider_gangjobs.gang.identity import (
    Attempt,
    TaskKey,
    build_attempt,
    digest_of,
    main_job_name_max,
    task_selector,
)
from airflow_provider_gangjobs.gang.queues import Queue
from airflow_provider_gangjobs.gang.record import FOREIGN_REMEDY
from airflow_provider_gangjobs.gang.render.files import KEY_BYTES
from airflow_provider_gangjobs.gang.render.job_manifest import render_files, render_service
from airflow_provider_gangjobs.gang.render.placement import (
    ONE_POD,
    Placement,
    PlacementDecision,
    Shape,
    shape_of,
    time_limit,
    with_queue_of_connection,
)
from airflow_provider_gangjobs.gang.render.pod_template import task_env_of
from airflow_provider_gangjobs.gang.render.user_manifest import (
    changes_of,
    manifest_of,
    requested_name,
    requested_namespace,
    with_parsed_manifest,
)
from airflow_provider_gangjobs.gang.schedulers import Dialect, YuniKorn, find_scheduler
from airflow_provider_gangjobs.gang.spec import roles_of
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, end_of, is_live
from airflow_provider_gangjobs.gang.state.pods import attempt_of, gang_ref_of, has_ended, is_held, owner_uid
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_error
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.jobs.requests import RestartSubmission, RetryingRequests, get_job, take_claim
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, JOBS, NAMESPACES, PODS, SERVICES
from airflow_provider_gangjobs.kube.views import PodView, view
from airflow_provider_gangjobs.kube.well_known import TASK_LABELS
from airflow_provider_gangjobs.submission.capabilities import require_claims, require_topology
from airflow_provider_gangjobs.submission.placement import (
    CHECK_GANG_LINK,
    CHECK_QUEUE,
    CHECK_UNNAMED_QUEUE,
    DRY_RUN,
    WAIT_FOR_WORKLOAD,
    depends_on_queue,
    group_steps,
    read_topology_guarantee,
    select_placement,
)
from airflow_provider_gangjobs.submission.step import (
    CHECK_JOB_SETS,
    CREATE_JOB_SET,
    FIND_JOBS,
    REQUIRE_UPLOADS,
    CreateJob,
    CreateOwned,
    GiveJobSetToQueue,
    Progress,
    StartJob,
    StartRole,
    conflict,
    create_role,
    permission_advice,
    run_step,
)
from airflow_provider_gangjobs.submission.submission import (
    Adopt,
    Foreign,
    Refuse,
    Submission,
    SubmitNew,
    TakenOver,
    UnconfirmedTry,
    decide,
    differing_fields,
    gang_of_later_try,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.served_resources import DiscoveredResources
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.schedulers import GangScheduler
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.kube.views import Object
    from airflow_provider_gangjobs.submission.step import Step
    from airflow_provider_gangjobs.submission.submission import SubmissionRequest


log = logging.getLogger(__name__)

PAUSE_CAP_S: Final = 5.0


def may_still_run(job: StoredGang) -> bool:
    """Return whether pods of a gang may run although the gang is not live any more. Pure.

    The Job controller reports an end only when all pods have ended (`podReplacementPolicy: Failed`).
    """
    return not job.is_ended and (job.is_being_deleted or (job.is_stopped and job.has_pods_left))


def _gangs_of(pods: Iterable[PodView]) -> list[GangRef]:
    return list(dict.fromkeys(ref for pod in pods if (ref := gang_ref_of(pod)) is not None))


def _still_running(running: Sequence[PodView]) -> PreviousAttemptRunning:
    first = running[0]
    gang = next(iter(_gangs_of(running)), None)
    return PreviousAttemptRunning(
        ref=str(gang) if gang else first.metadata.namespace,
        uid=gang.uid if gang else "",
        attempt=attempt_of(first),
        pods=len(running),
        nodes=tuple(sorted({pod.spec.node_name for pod in running if pod.spec.node_name})),
    )


TAKEN_OVER: Final = "Another try of the task is responsible for the gang"
TAKEN_OVER_ADVICE: Final = "No action is needed: Airflow has begun another try of the task, which continues"
UNKNOWN_TRY: Final = (
    "A try of the task whose id is later is responsible for the gang, and Airflow does not say which try runs"
)
UNKNOWN_TRY_ADVICE: Final = "Check that the worker reaches Airflow's API server. The next try adopts the gang"
CHOOSE_ATTEMPT: Final = "choose an attempt"
ADOPTED_WITH_OTHER_PARAMETERS: Final = (
    "Gang %s was submitted with other parameters (%s). The task continues with this gang, because Airflow shows no "
    "clear of the task since. To replace the gang, clear the task"
)
REPLACED_WITH_OTHER_PARAMETERS: Final = (
    "Gang %s was submitted with other parameters (%s). The gang is deleted, and a new attempt with the present "
    "parameters follows when its pods have ended"
)
ROUNDS_MAX: Final = 8
"""How often the list of Jobs is read before the submission fails because the Jobs change too fast."""


async def submit(
    client: Client,
    spec: GangSpec,
    request: SubmissionRequest,
    *,
    discovered: DiscoveredResources,
    namespace: str = "default",
) -> Submission:
    """Create the gang that is asked for, or adopt the gang that exists.

    Safe to repeat, to interrupt, and to run concurrently.

    :param namespace: The namespace of the gang if the spec names none.

    Raises:
        UnconfirmedTry: `request.confirm` raised it. What was created is suspended, and the next call continues.
        InvalidGangSpec: the spec is invalid. No request was sent, or the server refused the Job.
        GangUnsupported: a gang is required, and the cluster does not support it. No gang is left.
        SubmissionConflict: the gang exists and was created from other parameters, and it is not known which are wanted;
            or the Job of the new attempt exists and belongs to another submission.
        SubmissionFailed: the server refused a step (no gang is left running), or could not be reached, or another try
            of the task has adopted the lost attempt.
        PreviousAttemptRunning: pods of an earlier attempt still run. No object of a new attempt was created.
        JobDeleted: someone deleted the Job during the submission.
    """
    require_valid(spec)
    # The spec is always copied, because cached properties of the copy are valid for this submission only.
    spec = with_parsed_manifest(spec)
    requests = RetryingRequests(client, requested_namespace(spec) or namespace)
    shape = with_queue_of_connection(
        shape_of(spec, manifest_of(spec)), spec, discovered.queue_name, discovered.queue_priority
    )
    run = _SubmissionRun(requests, spec, shape, request, discovered)
    min_attempt, reason, backoff = 0, "", requests.backoff()
    for _ in range(ROUNDS_MAX):
        try:
            return await run.round(min_attempt)
        except RestartSubmission as again:
            min_attempt, reason = max(min_attempt, again.min_attempt), str(again)
            log.info("Restarting the submission: %s", reason)
        if not await requests.sleep_before_retry(backoff.next()):
            break
    raise SubmissionFailed(run.where, "choose a Job", reason)


@contextmanager
def _step(where: str, name: str) -> Iterator[None]:
    """Name the step whose request fails.

    Raises:
        SubmissionFailed: a request failed.
    """
    try:
        yield
    except ClusterError as error:
        raise SubmissionFailed(where, name, str(error), error.transient, permission_advice(error)) from error


def _taken_over(job: StoredGang) -> SubmissionFailed:
    return SubmissionFailed(str(job.ref), CHOOSE_ATTEMPT, TAKEN_OVER, advice=TAKEN_OVER_ADVICE)


def _steps_of(progress: Progress) -> Sequence[Step]:
    """Return all steps in order. A step that has nothing to do is skipped."""
    service = CreateOwned(SERVICES, lambda p: render_service(p.spec, p.attempt, p.ref.uid))
    key = secrets.token_hex(KEY_BYTES)
    files = CreateOwned(CONFIGMAPS, lambda p: render_files(p.spec, p.attempt, p.ref.uid, supervisor_key=key))
    check: tuple[Step, ...]
    create: tuple[Step, ...]
    prepare: tuple[Step, ...]
    if progress.has_job_set:
        check, create, prepare = (CHECK_JOB_SETS,), (CREATE_JOB_SET,), (FIND_JOBS, GiveJobSetToQueue())
    else:
        roles = roles_of(progress.spec)[1:]
        group = group_steps(progress.scheduler) if progress.scheduler else ()
        check, create = (), (CHECK_GANG_LINK, *map(create_role, roles))
        prepare = (*group, WAIT_FOR_WORKLOAD, *(StartRole(role.name) for role in roles))
    return (
        CHECK_QUEUE,
        *check,
        CHECK_UNNAMED_QUEUE,
        REQUIRE_UPLOADS,
        DRY_RUN,
        CreateJob(),
        *create,
        service,
        files,
        *prepare,
        StartJob(Queue(progress.shape.kueue_queue)),
    )


class _SubmissionRun(Struct, frozen=True):
    """One submission. Its fields stay the same when the submission is restarted."""

    requests: RetryingRequests
    spec: GangSpec
    shape: Shape
    request: SubmissionRequest
    discovered: DiscoveredResources

    @property
    def where(self) -> str:
        return f"{self.requests.namespace}/{requested_name(self.spec) or self.request.key.slug}"

    async def round(self, min_attempt: int) -> Submission:
        """List the Jobs of the task, and do what the rule decides."""
        claim = self.request.claim
        with _step(self.where, "find the task's Jobs"):
            listed = await self.requests.list(JOBS, task_selector(self.request.key.digest))
            jobs = [await self.requests.read_gang(job) for job in listed]
        stored = {job["metadata"]["uid"]: job for job in listed}
        if (later := gang_of_later_try(jobs, claim.id)) is not None:
            await self._require_current_try(later)
        action = decide(
            self.request.rule,
            jobs,
            claim=claim.id,
            spec_hash=self.spec.hash,
            min_attempt=min_attempt,
            max_tries=claim.max_tries,
        )
        match action:
            case Refuse(job):
                raise conflict(self.spec, job.record.submission_id, job)
            case TakenOver(job):
                raise _taken_over(job)
            case Foreign(job):
                raise SubmissionFailed(
                    str(job.ref), CHOOSE_ATTEMPT, job.problem, transient=False, advice=FOREIGN_REMEDY
                )
            case Adopt():
                return await self._adopt(action, stored)
            case SubmitNew():
                return await self._begin_attempt(action, jobs, stored)

    async def _adopt(self, action: Adopt, stored: Mapping[str, Object]) -> Submission:
        """Claim the gang, delete what it supersedes, and complete the gang if its submission stopped half-way."""
        job = action.job
        await self._confirm_change_of(job)
        with _step(self.where, "adopt the Job"):
            claimed = await take_claim(
                self.requests,
                stored[job.ref.uid],
                self.request.claim,
                installation=self.request.key.installation,
                limit=time_limit(self.spec, manifest_of(self.spec)),
            )
        self._warn_of_other_parameters(job, ADOPTED_WITH_OTHER_PARAMETERS)
        progress = self._progress_of_adopted_job(claimed)
        is_unfinished = is_live(job) and not progress.stored.is_submission_complete
        for old in action.superseded:
            await self._remove_superseded(old, stored[old.ref.uid])
        if is_unfinished:
            with _step(self.where, "complete the submission"):
                await self._complete(progress)
        return self._submission(progress, job)

    async def _begin_attempt(
        self, action: SubmitNew, jobs: list[StoredGang], stored: Mapping[str, Object]
    ) -> Submission:
        """Delete what the new attempt supersedes, wait for its pods, and submit the attempt."""
        with _step(self.where, "read the namespace of the checkpoints"):
            digest = await self._checkpoint_digest(jobs, stored)
        with _step(self.where, "read the Topology of the queue"):
            progress = await self._progress_of_new_attempt(action.number, digest)
        for old in action.superseded:
            await self._remove_superseded(old, stored[old.ref.uid])
            self._warn_of_other_parameters(old, REPLACED_WITH_OTHER_PARAMETERS)
        with _step(self.where, "wait for the pods of earlier attempts"):
            await self._wait_for_previous(jobs, action)
        with _step(self.where, "complete the submission"):
            await self._complete(progress)
        return self._submission(progress, None)

    async def _require_current_try(self, later: StoredGang) -> None:
        """Ask Airflow which try runs, because the id of the try that is responsible for this Job is later.

        Raises:
            SubmissionFailed: the try that submits does not run, or that is unknown.
        """
        if self.request.confirm is None:
            raise _taken_over(later)
        try:
            await self.request.confirm(always=True)
        except UnconfirmedTry as unconfirmed:
            if unconfirmed.has_ended:
                raise _taken_over(later) from None
            advice = UNKNOWN_TRY_ADVICE
            raise SubmissionFailed(str(later.ref), CHOOSE_ATTEMPT, UNKNOWN_TRY, advice=advice) from None
        log.warning(
            "The try of the task that was responsible for gang %s has a later id than this try, and Airflow says that "
            "this try runs. A clock of Airflow was wrong when one of these tries began. This try continues",
            later.ref,
        )

    async def _confirm_change_of(self, job: StoredGang) -> None:
        """Confirm the try before it adopts or deletes a gang that another try may be responsible for.

        Raises:
            UnconfirmedTry: the task may not want the gang any more.
        """
        if self.request.confirm is not None and not job.holds_claim(self.request.claim.id):
            await self.request.confirm()

    def _warn_of_other_parameters(self, job: StoredGang, text: str) -> None:
        if job.record.spec_hash != self.spec.hash:
            names = ", ".join(differing_fields(self.spec, job)) or "their names are not known"
            log.warning(text, job.ref, names)

    async def _wait_for_previous(self, jobs: list[StoredGang], action: SubmitNew) -> None:
        """Wait until no pod of an earlier attempt runs.

        Pods of gangs that are being deleted, or whose Jobs are gone, are released meanwhile: nobody else may do that.

        :param jobs: All Jobs of the task, as they were listed.

        Raises:
            RestartSubmission: the method has waited, and the Jobs may have changed.
            PreviousAttemptRunning: pods still run after `previous.wait_s` seconds, or at the deadline of the requests.
            ClusterError: the pods could not be listed or released.
        """
        requests, previous = self.requests, self.request.previous
        for job in jobs:
            if job.is_stopped:
                await end_jobs(requests, job)  # whoever stopped the gang may have died in between
        waited_for = [job for job in jobs if job in action.superseded or may_still_run(job)]
        if previous is None or not (waited_for or previous.is_retry):
            return
        backoff, give_up_at = requests.backoff(), requests.clock.monotonic() + previous.wait_s
        has_waited = False
        while running := await self._release_and_list_running(jobs, waited_for):
            error = _still_running(running)
            pause_s = min(backoff.next(), PAUSE_CAP_S)
            if requests.clock.monotonic() + pause_s > give_up_at or not await requests.sleep_before_retry(pause_s):
                raise error
            if not has_waited:
                log.info("%s", error)
            has_waited = True
            if await self._has_other_jobs(jobs):
                break
        if has_waited:
            raise RestartSubmission("The pods of the previous attempt have ended", min_attempt=action.number)

    async def _release_and_list_running(
        self, jobs: Sequence[StoredGang], waited_for: Sequence[StoredGang]
    ) -> list[PodView]:
        kept = {job.ref.uid for job in jobs} - {job.ref.uid for job in waited_for}
        listed = await self.requests.list(PODS, task_selector(self.request.key.digest))
        pods = [pod for pod in (view(PodView, each) for each in listed) if owner_uid(pod) not in kept]
        for ref in _gangs_of(filter(is_held, pods)):
            # The Job is read again, because another submitter may have started the gang since the Jobs were listed.
            await count_running(self.requests.client, ref)
        return [pod for pod in pods if not has_ended(pod)]

    async def _has_other_jobs(self, jobs: Sequence[StoredGang]) -> bool:
        """Return whether another submitter has created an attempt meanwhile. Its pods are no reason to wait."""
        known = {job.ref.uid for job in jobs}
        listed = await self.requests.list(JOBS, task_selector(self.request.key.digest))
        return any(job["metadata"]["uid"] not in known for job in listed)

    async def _remove_superseded(self, old: StoredGang, seen: Object) -> None:
        """Delete a superseded gang. Restart if the gang was claimed, was started, or has ended in the meantime."""
        await self._confirm_change_of(old)

        def is_superseded(job: StoredGang) -> bool:
            was_started = old.never_ran and not job.never_ran
            return is_live(job) and job.claim.id == old.claim.id and not was_started

        with _step(self.where, "delete an earlier attempt"):
            removal = await delete(self.requests, old.ref, only_if=is_superseded, seen=seen)
        if removal.kept is not None and not removal.kept.is_being_deleted:
            raise RestartSubmission(f"Job {old.ref.name} changed before it was deleted")

    async def _checkpoint_digest(self, jobs: Sequence[StoredGang], stored: Mapping[str, Object]) -> str:
        """Return the digest that names the folder of checkpoints of a new attempt; empty without checkpoints.

        A task has the same one in all its attempts in one namespace, also when it is cleared. The UID of the namespace
        stands for the cluster. An id has a random one, which its attempts keep until it is deleted or has expired.
        """
        key = self.request.key
        if self.spec.checkpoints is None:
            return ""
        if isinstance(key, TaskKey):
            namespace = await self.requests.client.get(NAMESPACES, self.requests.namespace)
            return digest_of(key.digest, namespace["metadata"]["uid"])
        kept = (stored[job.ref.uid] for job in jobs if not (job.is_dropped or job.is_being_deleted))
        return next(filter(None, map(digest_in, kept)), "") or digest_of(key.digest, secrets.token_hex(16))

    async def _progress_of_new_attempt(self, number: int, checkpoint_digest: str) -> Progress:
        queue = None
        if depends_on_queue(self.spec, self.shape, self.discovered):
            queue = await read_topology_guarantee(self.requests, str(self.shape.kueue_queue))
        decision, scheduler = select_placement(self.spec, self.shape, self.discovered, where=self.where, queue=queue)
        if self.shape.group_topology and isinstance(scheduler, Dialect):
            with _step(self.where, "find out whether the cluster places gangs by topology"):
                client, namespace = self.requests.client, self.requests.namespace
                await self.requests.retry(partial(require_topology, client, scheduler, namespace))
        if self.shape.group_claims and isinstance(scheduler, Dialect):
            with _step(self.where, "find out whether the cluster lets gangs share claims"):
                client, namespace = self.requests.client, self.requests.namespace
                await self.requests.retry(partial(require_claims, client, scheduler, namespace))
        if isinstance(scheduler, YuniKorn):
            scheduler = YuniKorn(nonce=secrets.token_hex(8))
        attempt = build_attempt(
            self.request.key,
            self.request.claim,
            namespace=self.requests.namespace,
            number=number,
            name=requested_name(self.spec),
            name_max=main_job_name_max(roles_of(self.spec), has_job_set=self.shape.kueue_queue is not None),
        )
        attempt = replace(attempt, disruptions=self.request.disruptions, checkpoint_digest=checkpoint_digest)
        progress = self._progress(attempt, decision, scheduler, {})
        if decision.placement is Placement.BASIC and decision.detail != ONE_POD:
            progress.fall_back(decision.detail)
        return progress

    def _progress_of_adopted_job(self, job: Object) -> Progress:
        """Continue with the placement that the Job was created with, even if the cluster supports more now."""
        adopted = read_job(job)
        decision = PlacementDecision.parse(adopted.placement)
        labels = {name: value for name, value in job["metadata"]["labels"].items() if name in TASK_LABELS}
        env = task_env_of(job["spec"]["template"])
        attempt = Attempt(
            namespace=self.requests.namespace,
            name=adopted.ref.name,
            number=adopted.attempt,
            key=self.request.key,
            submission_id=adopted.record.submission_id,
            claim=replace(self.request.claim, labels=labels, env=env),
            checkpoint_digest=digest_in(job),
        )
        scheduler = find_scheduler(decision.detail) if decision.placement is Placement.GANG else None
        return self._progress(attempt, decision, scheduler, job)

    def _progress(
        self, attempt: Attempt, decision: PlacementDecision, scheduler: GangScheduler | None, job: Object
    ) -> Progress:
        return Progress(
            self.requests,
            self.spec,
            self.shape,
            attempt,
            decision,
            scheduler,
            job=job,
            confirm=self.request.confirm,
            adopted=bool(job),
            dry_run=self.request.dry_run,
        )

    async def _complete(self, progress: Progress) -> None:
        """Run the steps that are left. If a step fails and the submission can be completed later, the Job stays.

        If the submission can never be completed, the Job is deleted, or stopped with the error.
        """
        try:
            for step in _steps_of(progress):
                await run_step(step, progress)
        except (RestartSubmission, GangJobError) as error:
            cannot_complete = isinstance(error, RestartSubmission) or not error.retryable
            if cannot_complete and progress.job and progress.stored.is_suspended:
                with suppress(ClusterError):  # the cause matters more, and a sweep or a cleanup removes the Job
                    is_own = self._is_own_suspended
                    if self.request.keeps_failed and isinstance(error, GangJobError):
                        await stop(self.requests, progress.ref, stopped_by_error(error), only_if=is_own)
                    else:
                        await delete(self.requests, progress.ref, only_if=is_own)
            elif any(kind == JOBS.kind for kind, _ in progress.owned):
                with suppress(ClusterError):  # whoever follows the gang ends these Jobs, too
                    gang = await get_job(self.requests.client, progress.ref)
                    if gang is not None and gang.ref == progress.ref and gang.is_stopped:  # while its roles started
                        await end_jobs(self.requests, gang)
            raise

    def _is_own_suspended(self, job: StoredGang) -> bool:
        return job.is_suspended and job.holds_claim(self.request.claim.id)

    def _submission(self, progress: Progress, adopted: StoredGang | None) -> Submission:
        job = adopted if adopted is not None and adopted.jobs and adopted.is_ended else progress.stored
        state = end_of(job)
        is_other = adopted is not None and adopted.record.spec_hash != self.spec.hash
        return Submission(
            ref=progress.ref,
            attempt=progress.attempt.number,
            workers=adopted.workers if adopted is not None and is_other else self.shape.size,
            submission_id=progress.attempt.submission_id,
            decision=str(progress.decision),
            adopted=progress.adopted,
            state=state,
            is_suspended=state is SubmissionState.IN_PROGRESS and (job.is_suspended or job.record.has_job_set),
            disruptions=job.record.disruptions,
            notes=(*progress.notes, *(() if progress.adopted else map(str, changes_of(self.spec, progress.job)))),
            queue=job.queue or job.record.queue,
            queue_defaults=() if progress.adopted else self.shape.connection_defaults,
            restarts_max=job.record.restarts or 0,
            has_other_parameters=is_other,
            names_secrets=job.view.metadata.annotations.secrets is not None,
        )

"""Follow one gang until it runs or has ended, and return exactly one event.

1. Shared informers show the gang. The follower sleeps until an object of the gang changes or a deadline is due.
2. Each change of phase is reported once. Pods are harvested as they end, by a task of their own.
3. Before a verdict or a deadline is acted on, the API server is asked again, because a watch may lag.
4. Then the harvest is finished, and the event is made.

All state is in the cluster, so another follower can replace one that dies, and returns the same event. Errors of the
API server are retried and not raised.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import RESOLUTION_S
from airflow_provider_gangjobs.cluster.informer import InformerClosedError, informers
from airflow_provider_gangjobs.ending.stop import end_jobs, finish_stop, stop
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.outcome.end_reason import reason_of_end
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, build_event, history_of
from airflow_provider_gangjobs.gang.record import FOREIGN_REMEDY
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines, allowed_s, deadline_exceeded, next_deadline
from airflow_provider_gangjobs.gang.state.phase import (
    FINAL_PHASES,
    PHASE_OF_STATUS,
    Phase,
    Status,
    Verdict,
    deadline_of,
    is_live,
    judge,
    judge_stopped,
)
from airflow_provider_gangjobs.gang.state.pods import SIDECAR_GRACE
from airflow_provider_gangjobs.gang.state.reason import IN_QUEUE, Reason, because, reason_of_stop, stopped_by_deadline
from airflow_provider_gangjobs.gang.state.stopped import Stopped, Stopper
from airflow_provider_gangjobs.gang.state.stored_gang import is_ended_by_main, is_kept_from_failing
from airflow_provider_gangjobs.gang.state.waiting import (
    describe_stops,
    given_up,
    has_queue_decision,
    queued_uid,
    waits_for_kueue,
)
from airflow_provider_gangjobs.jobs.requests import (
    ClusterRefused,
    RetryingRequests,
    gather_or_cancel,
    get_job,
    list_pods,
)
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.tracking.gang_watch import (
    GangObserver,
    GangWatch,
    group_resource,
    observe_listed,
    podgroups_served,
)
from airflow_provider_gangjobs.tracking.harvest.collect import SeenEnd
from airflow_provider_gangjobs.tracking.harvest.final_harvest import FinalHarvest, HarvestTask
from airflow_provider_gangjobs.tracking.job_steps import Sidecars, keep_assembly_baseline, set_ttl
from airflow_provider_gangjobs.tracking.phase_reporter import PhaseReporter
from airflow_provider_gangjobs.tracking.wait_evidence import WaitEvidence, gang_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.gang_state import GangState
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.tracking.gang_watch import ObservedPods
    from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester, LogReader


FollowUntil = Literal["running", "ended"]

SYNC_WITHIN_S: Final = 30.0
"""When an informer has not synced for this long, the follower sends the same request to learn why."""
STALE_S: Final = 600.0
"""When a synced informer has received nothing for this long, the follower sends the request of the watch itself. This
is also the longest sleep."""
RETRY_SOON_S: Final = 1.0
"""The sleep when the server has a newer state than the watch."""
PAUSE_PER_POD_S: Final = 200e-6
"""The pause before an evaluation, for each pod, so that several changes of a pod are processed once. An evaluation
costs 7 us for each changed pod."""
PAUSE_MAX_S: Final = 2.0
PODS_LATER_S: Final = 0.2
"""How long the follower waits for pods that a complete Job has counted, before it asks the API server."""
COLLECT_S: Final = 0.1
"""The interval at which the follower processes changes of pods, and checks whether the Job has ended, during the
pause."""
RESULTS_GONE: Final = (
    "The Job was deleted after its end, and the recorded outcomes of its ranks with it. A task that wants results "
    "fails. Set a longer ttl_after_finished."
)

ENDED_BY_MAIN: Final = (
    f"Other containers still ran {SIDECAR_GRACE.total_seconds():.0f} s after the end of the main containers, so the "
    "provider has ended the Job, which shows Failed. Let these containers end with the main container, or make them "
    "init containers with restartPolicy: Always."
)


class FollowOptions(Struct, frozen=True, kw_only=True):
    """How a gang is followed, and what the caller is told meanwhile."""

    until: FollowUntil = "ended"
    deadlines: Deadlines = Deadlines()
    report: Callable[[GangState], None] = lambda state: None
    """Called at each change of the phase or of the cause of waiting."""
    logs: LogReader | None = None
    """Reads logs of pods that are being deleted, before the pods are released."""
    on_end: Callable[[SeenEnd], None] = lambda seen: None
    """Called before `follow` returns the event of a gang that has ended by itself."""
    now: Callable[[], datetime] | None = None
    """Returns the time by which deadlines are judged. By default this is the API server's time, because the API server
    writes the times that deadlines count from."""


_DEFAULT: Final = FollowOptions()


async def follow(cluster: Client | ClusterConfig, ref: GangRef, options: FollowOptions = _DEFAULT) -> GangEvent:
    """Follow a gang until all its ranks run, or until it has ended, and return the event.

    The follower also returns when the gang does not exist any more, or when a deadline has passed; then it stops the
    gang. If the gang has ended, the outcomes of all its pods are recorded and no pod is held, or the notes of the event
    say which are not. Safe to cancel at any time, to run again, and to run twice at once.
    """
    async with nullcontext(cluster) if isinstance(cluster, Client) else informers().client(cluster) as client:
        reporter = PhaseReporter(options.report)
        while True:
            watch = GangWatch(client, ref)
            try:
                watch.subscribe_to_groups(client, await podgroups_served(client))
                return await _Follower(client, ref, watch, reporter, options).run()
            except InformerClosedError:
                continue
            except ClusterRefused as exc:
                remedy = "Check the connection and the permissions of its service account, then clear the task."
                return _unknown(ref, reporter, type(exc.error).__name__, str(exc), remedy)
            finally:
                watch.close()


def _unknown(ref: GangRef, reporter: PhaseReporter, reason: str, message: str, remedy: str) -> GangEvent:
    """Return the event for a gang whose state cannot be known."""
    return build_event(
        ref,
        Status.ERROR,
        reporter.last_alive,
        category=Category.UNKNOWN,
        reason=reason,
        message=message,
        remedy=remedy,
    )


class _Sleep(NamedTuple):
    """How long to wait for a change at most, and then how long to collect further changes for one evaluation."""

    max_s: float
    collect_s: float


class _Follower:
    def __init__(
        self, client: Client, ref: GangRef, watch: GangWatch, reporter: PhaseReporter, options: FollowOptions
    ) -> None:
        self.client = client
        self.ref = ref
        self.watch = watch
        self.reporter = reporter
        self.options = options
        self.deadlines = options.deadlines
        self.now = options.now or client.server_clock.now
        self.clock = client.clock
        self.requests = RetryingRequests(client, ref.namespace, until_answered=True)
        self.harvest = HarvestTask(client, ref, watch.wake, options.logs)
        self.sidecars = Sidecars(self.requests, ref, self.harvest, self.now)
        self.observer = GangObserver(ref, watch, self.harvest.enqueue)
        self.evidence = WaitEvidence(client, ref, watch)
        self.waits_for_nodes = False
        self.began: dict[Phase, datetime] = {}
        """When each phase began, also if the objects that showed it are gone."""
        self._pods_due_at: float | None = None

    @property
    def harvester(self) -> Harvester:
        return self.harvest.harvester

    async def run(self) -> GangEvent:
        """Evaluate the state of the gang, act and sleep until there is an event."""
        try:
            await self._sync()
            self.watch.subscribe_to_groups(self.client, group_resource(self.watch.job))
            while True:
                self.harvest.check()
                found = await self._evaluate()
                if isinstance(found, GangEvent):
                    return found
                await self.watch.changed(found.max_s)
                if found.collect_s:
                    await self._collect_changes(found.collect_s)
                if any(informer.staleness_s >= STALE_S and informer.problem for informer in self.watch.informers):
                    await self._check_access()
        finally:
            await self.harvest.stop()

    async def _sync(self) -> None:
        """Wait until the informers are synced, so that an object that they do not show does not exist."""
        monotonic = self.clock.monotonic
        for informer in self.watch.informers:
            check_at = monotonic() + SYNC_WITHIN_S
            while not informer.is_synced:
                await self.watch.changed(max(check_at - monotonic(), 0.0))
                if monotonic() >= check_at:
                    await self._check_access()
                    check_at = monotonic() + SYNC_WITHIN_S

    async def _check_access(self) -> None:
        """Send the requests of the watches for this gang only, to tell a server that is down from one that refuses.

        Raises:
            ClusterRefused: The server refuses the requests.
        """
        await self.requests.retry(
            lambda: self.client.list(JOBS, self.ref.namespace, label_selector=gang_selector(self.ref.name))
        )
        await self.requests.retry(lambda: list_pods(self.client, self.ref))

    async def _evaluate(self) -> GangEvent | _Sleep:
        """Act on the state of the gang once. Return the event if the follower is done, or how long to sleep."""
        job = self.watch.job
        if job is not None and job.problem and job.ref == self.ref:
            return _unknown(self.ref, self.reporter, "RecordUnreadable", job.problem, FOREIGN_REMEDY)
        if job is not None and self.options.logs is not None:
            self.options.logs.observe_job(job)
        if job is not None and (waits_for_kueue(job) or self._needs_workload(job)):
            await self.watch.subscribe_to_queue(self.client, queued_uid(job))
        workload = self.watch.queue_workload
        pods = await self.observer.refresh()
        state = await self.observer.observe(pods.index, job, self.watch.podgroup, self.evidence.with_events())
        self.evidence.keep(state)
        self.waits_for_nodes = state.waits_for_nodes
        self._keep_times(state)
        queue = job.queue if job is not None and state.reason.cause in IN_QUEUE else None
        self.watch.subscribe_to_position(self.client, queue, queued_uid(job) if job is not None else self.ref.uid)
        stopped = deadline_of(job)
        is_stopped = job is not None and job.ends_by_stop
        if state.verdict is not None and not is_stopped:
            return await self._confirm(pods, *self._verdict_before_deletion(job, state.verdict))
        report_in_s = self.reporter.report(
            state, self.now(), has_events=self.evidence.has_events or has_queue_decision(workload)
        )
        if job is not None and job.jobs and (is_stopped or job.failure_target_condition is not None):
            await end_jobs(self.requests, job)
        if is_stopped:
            return await self._stopped(stopped)
        stopped_by_queue = given_up(workload, self.evidence.assembly_line)
        if job is not None and job.is_suspended and stopped_by_queue is not None:
            await stop(self.requests, self.ref, stopped_by_queue, only_if=is_live, seen=job)
            return _RETRY_SOON
        if self.options.until == "running" and state.phase is Phase.RUNNING:
            return self._event(
                Status.RUNNING,
                state,
                because("Told", category=Category.RUNNING, text=state.line, code="Running"),
            )
        if job is not None and self._needs_workload(job):
            await keep_assembly_baseline(self.requests, job, workload)
        if deadline_exceeded(state, self.deadlines, self.now()) is not None:
            return await self._time_out()
        ends_in_s = await self.sidecars.advance(job, pods.index)
        return await self._next_sleep(state, report_in_s, ends_in_s)

    def _keep_times(self, state: GangState) -> None:
        if state.phase is Phase.QUEUED:  # the times of a run that the queue has stopped do not count
            self.began.clear()
        self.began |= state.began

    def _needs_workload(self, job: StoredGang) -> bool:
        """Return whether Kueue's Workload counts while the gang may run: for `assemble_timeout`."""
        return job.queue is not None and self.deadlines.assemble_s is not None

    async def _next_sleep(self, state: GangState, *others_s: float | None) -> _Sleep:
        """Return how long to sleep: until a deadline is due, or something has to be reported, done or read."""
        age_s = (self.now() - state.since).total_seconds() if state.since else 0.0
        events_in_s = await self.evidence.read_due(state, age_s)
        if events_in_s == 0.0:
            return _Sleep(0.0, 0.0)
        deadline_in_s = self._until_evaluation_s(next_deadline(state, self.deadlines))
        sleep_s = min(each for each in (STALE_S, deadline_in_s, events_in_s, *others_s) if each is not None)
        collect_s = min(state.counts.created * PAUSE_PER_POD_S, PAUSE_MAX_S)
        return _Sleep(max(sleep_s, 0.0), collect_s)

    def _until_evaluation_s(self, due: datetime | None) -> float | None:
        """Return how long to sleep because of a deadline, in seconds.

        The estimate of the server's time is late by up to `RESOLUTION_S`, and each response may correct it. A follower
        that slept until the deadline by the present estimate would keep the present error. So the follower evaluates
        the gang also shortly before the deadline.
        """
        if due is None:
            return None
        left_s = (due - self.now()).total_seconds()
        return left_s - RESOLUTION_S if left_s > RESOLUTION_S else left_s

    async def _collect_changes(self, for_s: float) -> None:
        """Collect changes of pods, and harvest the pods that end. The end of the Job ends the wait."""
        until = self.clock.monotonic() + for_s
        while (left_s := until - self.clock.monotonic()) > 0 and judge(self.watch.job, self.ref) is None:
            await self.clock.sleep(min(left_s, COLLECT_S))
            await self.observer.process_changes()

    # -- the end ---------------------------------------------------------------------------------------------

    def _verdict_before_deletion(self, job: StoredGang | None, verdict: Verdict) -> tuple[StoredGang | None, Verdict]:
        """Prefer the verdict of a Job that ended and was then deleted: a time to live may delete it at once."""
        deleted = self.watch.gone_job
        earlier = judge(deleted, self.ref) if deleted is not None else None
        if earlier is not None and earlier.job_is_there and not verdict.job_is_there:
            return deleted, earlier
        return job, verdict

    async def _confirm(self, pods: ObservedPods, observed: StoredGang | None, probable: Verdict) -> GangEvent | _Sleep:
        """Ask the server whether the verdict that the watch shows is true, and harvest meanwhile.

        A Job that is complete stays complete, so nothing is asked if the watch shows all pods that it ever had.

        A Job that ended and does not exist any more ended with that verdict: its pods may be all that kept it, and they
        are being released.
        """
        final = FinalHarvest(self.harvest, self.observer, self.now)
        are_all = None
        if self.watch.gone_job is None:
            are_all = pods.are_all(observed, self.harvester.recorded, self.ref)
        if are_all:
            await final.prepare(observed, pods)
            return await self._end(probable, observed, final)
        if are_all is False and (left_s := self._pods_due_in_s()) > 0:
            return _Sleep(left_s, 0.0)
        meanwhile = final.prepare(observed, pods) if probable.job_is_there else final.load_ledger()
        job, _ = await gather_or_cancel(self._read_job(), meanwhile)
        verdict = judge(job, self.ref, last_seen=observed or self.watch.gone_job)
        if verdict is None:
            return _RETRY_SOON
        if not verdict.job_is_there:
            self.harvester.drop_ledger()
            if probable.job_is_there:
                verdict, job = probable, observed
        return await self._end(verdict, job, final)

    def _pods_due_in_s(self) -> float:
        """Return how long to wait for the watch of pods, which shows them a moment later than that of Jobs."""
        if self._pods_due_at is None:
            self._pods_due_at = self.clock.monotonic() + PODS_LATER_S
        return self._pods_due_at - self.clock.monotonic()

    async def _end(self, verdict: Verdict, job: StoredGang | None, final: FinalHarvest) -> GangEvent:
        phase = PHASE_OF_STATUS[verdict.status] if verdict.job_is_there else self.reporter.last_alive
        pods = await self.observer.refresh()
        seen = await self.observer.observe(pods.index, job, None)
        if seen.phase is Phase.FINISHING:
            self.reporter.report(seen, self.now())
        result = await final.run(job, pods)
        if verdict.status is Status.FAILED and job is not None:
            await end_jobs(self.requests, job)
            if job.record.has_job_set:  # its main Job is suspended
                await finish_stop(self.client, self.ref)
        if verdict.job_is_there:
            await set_ttl(self.requests, job)
        state = await self.observer.observe(await self.observer.indexed(), job, None)
        counts = replace(state.counts, held=result.held)  # the pods that were listed as held have been released
        ended = reason_of_end(verdict, self.harvester.outcomes, self.harvester.failed_ranks)
        state = replace(state, phase=PHASE_OF_STATUS[verdict.status], counts=counts, reason=ended)
        self.reporter.report(state, self.now())
        pods_seen = list(self.watch.pods_by_uid.values())
        self.options.on_end(SeenEnd(self.harvester.stored_outcomes, pods_seen, self.harvester.is_first_recorder))
        return self._event(
            verdict.status,
            replace(state, phase=phase),
            ended,
            completed_indexes=verdict.completed_indexes,
            other_uid=verdict.other_uid,
            **_version_of_success(verdict, job),
            notes=(*result.notes, *self._notes_on_end(verdict, job)),
        )

    def _notes_on_end(self, verdict: Verdict, job: StoredGang | None) -> Iterator[str]:
        if verdict.status is Status.SUCCEEDED and self.watch.gone_job is not None:
            yield RESULTS_GONE
        if job is not None and is_ended_by_main(job):
            yield ENDED_BY_MAIN

    # -- deadlines -------------------------------------------------------------------------------------------

    async def _time_out(self) -> GangEvent | _Sleep:
        """Stop the gang if its deadline has passed also by what the server says now, because a watch may lag."""
        await self.evidence.read_refusal()
        if self.waits_for_nodes:
            await self.evidence.read_capacity()
        job, pods, events = await gather_or_cancel(
            self._read_job(),
            self.requests.retry(lambda: list_pods(self.client, self.ref, self.watch.pods_by_uid)),
            gang_events(self.client, self.ref, self.watch.pods_by_uid.values()),
        )
        state = await observe_listed(job, pods, self.watch.podgroup, self.ref, self.evidence.with_events(*events))
        exceeded = deadline_exceeded(state, self.deadlines, self.now())
        if state.verdict is not None or exceeded is None:
            return self._retry_by(next_deadline(state, self.deadlines))
        assert job is not None, "a gang without a Job has a verdict"
        if exceeded.phase is Phase.ASSEMBLING:
            stopped = self._failed_assembly(state)
        else:
            stopped = stopped_by_deadline(exceeded.phase, state.reason, state.line)
        if not await stop(self.requests, self.ref, stopped, only_if=is_live, seen=job):
            return _RETRY_SOON
        return await self._stopped(stopped, state)

    def _failed_assembly(self, state: GangState) -> Stopped:
        """Return why the gang has not assembled in time. If it waits in its queue again, the last run says why."""
        reason, line = state.reason, state.line
        if state.phase is not Phase.ASSEMBLING and self.evidence.assembly_reason is not None:
            reason, line = self.evidence.assembly_reason, self.evidence.assembly_line
        details = line, describe_stops(self.watch.queue_workload)
        return stopped_by_deadline(Phase.ASSEMBLING, reason, ". ".join(filter(None, details)))

    def _retry_by(self, due: datetime | None) -> _Sleep:
        """Return the usual sleep, or less if the deadline passes earlier: a response may have set the time back."""
        left_s = RETRY_SOON_S if due is None else (due - self.now()).total_seconds()
        return _Sleep(min(max(left_s, 0.0), RETRY_SOON_S), 0.0)

    async def _stopped(self, stopped: Stopped | None, before: GangState | None = None) -> GangEvent:
        """Finish the harvest of a gang that was stopped, unless the gang ended by itself at the last moment.

        :param stopped: The deadline that has passed; `None` if something else stopped the gang, such as a user.
        :param before: The state at which the gang was stopped, if this follower stopped it.
        """
        final = FinalHarvest(self.harvest, self.observer, self.now)
        await final.load_ledger()
        result = await final.run()
        job = await self._read_job()
        if job is not None and is_kept_from_failing(job):
            await finish_stop(self.client, self.ref)
        verdict = judge_stopped(job, self.ref, last_seen=self.watch.job or self.watch.gone_job)
        if verdict is not None:
            if not (verdict.job_is_there or verdict.deletion_has_only_begun):
                self.harvester.drop_ledger()
            return await self._end(verdict, job, final)
        await set_ttl(self.requests, job)
        state = before or await self.observer.observe(await self.observer.indexed(), job, self.watch.podgroup)
        counts = replace(state.counts, held=result.held)
        if stopped is None:
            why = (job.stopped if job else None) or Stopped(Stopper.UNKNOWN)
            return self._event(
                Status.FAILED,
                replace(state, phase=Phase.FAILED, counts=counts),
                reason_of_stop(why),
                notes=result.notes,
            )
        phase = Phase(stopped.phase)
        return self._event(
            Status.TIMEOUT,
            replace(state, phase=phase, counts=counts),
            reason_of_stop(stopped),
            seconds=allowed_s(phase, self.deadlines),
            image=stopped.data.get("image", ""),
            notes=result.notes,
        )

    # -- requests and events ---------------------------------------------------------------------------------

    async def _read_job(self) -> StoredGang | None:
        return await self.requests.retry(lambda: get_job(self.client, self.ref))

    def _event(self, status: Status, state: GangState, why: Reason, **more: Any) -> GangEvent:
        job = next((one for one in (self.watch.job, self.watch.gone_job) if one and one.ref == self.ref), None)
        began = self.began | dict(state.began)
        ended = next((began[phase] for phase in FINAL_PHASES if phase in began), self.now())
        return build_event(
            self.ref,
            status,
            state.phase,
            **history_of(job, began, ended=None if status is Status.RUNNING else ended),
            attempt=job.attempt if job else None,
            category=why.category,
            reason=why.code,
            message=why.summary,
            remedy=why.remedy,
            since=state.since,
            counts=state.counts,
            outcomes=self.harvester.outcomes,
            **more,
        )


def _version_of_success(verdict: Verdict, job: StoredGang | None) -> dict[str, str]:
    """Return the fields of the event by which a task deletes the gang. The Jobs of roles are judged again before."""
    if verdict.status is not Status.SUCCEEDED or job is None or job.jobs or not job.is_ended:
        return {}
    return {"claim": job.claim.id, "job_version": job.view.metadata.resource_version}


_RETRY_SOON: Final = _Sleep(RETRY_SOON_S, 0.0)

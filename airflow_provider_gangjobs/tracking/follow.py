"""Follow one gang until it runs or has ended, and say so in exactly one event.

1. Shared informers show the gang; the follower sleeps until something of it changes or a deadline is due.
2. Each change of phase is reported once. Pods are harvested beside it as they end.
3. A verdict, or a deadline, is believed only after the server was asked again: a watch may lag behind.
4. Then the harvest is settled, and the event is made.

Nothing is kept that the cluster does not tell again: a follower that dies is replaced by another one,
which comes to the same event. Faults of the API are waited out; nothing of them is raised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Timing
from airflow_provider_gangjobs.cluster.errors import NotFound
from airflow_provider_gangjobs.cluster.informer import InformerClosedError, informers
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.outcome.diagnosis import Diagnosis, diagnose_end, diagnose_timeout
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status, gang_event
from airflow_provider_gangjobs.gang.selectors import gang_selector
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines, allowed_s, deadline_exceeded, next_deadline
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.gang.state.phase import PHASE_OF_VERDICT, Phase
from airflow_provider_gangjobs.gang.state.verdict import Ended, Verdict, judge
from airflow_provider_gangjobs.gang.state.waiting import Cause, image_named
from airflow_provider_gangjobs.tracking.cluster_requests import ClusterRefused, gather_or_cancel, retry_until_answered
from airflow_provider_gangjobs.tracking.gang_observer import GangObserver, observe_listed
from airflow_provider_gangjobs.tracking.gang_watch import GangWatch
from airflow_provider_gangjobs.tracking.halt import Halted, halt, halted_by_deadline, is_of_halt
from airflow_provider_gangjobs.tracking.harvest.final_harvest import FinalHarvest, FinalHarvestResult
from airflow_provider_gangjobs.tracking.harvest.harvest_task import HarvestTask
from airflow_provider_gangjobs.tracking.phase_reporter import PhaseReporter
from airflow_provider_gangjobs.tracking.read.job_events import job_events
from airflow_provider_gangjobs.tracking.read.pods import list_pods

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.kube.views import EventView
    from airflow_provider_gangjobs.tracking.gang_observer import ObservedPods
    from airflow_provider_gangjobs.tracking.harvest.harvester import Harvester

T = TypeVar("T")
Until = Literal["running", "ended"]

SYNC_PATIENCE_S: Final = 30.0
"""An informer that has shown nothing for this long is asked after, by the request that it cannot do."""
STALE_S: Final = 600.0
"""So is one that has heard nothing for this long, though it was in order."""
LOOK_AGAIN_S: Final = 1.0
"""When the server knows more than the watch has shown."""
PAUSE_PER_POD_S: Final = 200e-6
"""Between two looks, so that several changes of a pod are one. A look costs 7 us for each pod that has changed."""
PAUSE_MAX_S: Final = 2.0
GATHER_S: Final = 0.1
"""While changes are gathered: how soon a pod that has ended is harvested, and the Job's end is seen."""
RESULTS_GONE: Final = (
    "The Job was deleted after its end, and the recorded outcomes of its ranks with it. A task that wants results "
    "fails. Set a longer ttl_after_finished."
)
EVIDENCE_AFTER_S: Final = 20.0
"""Pods that are missing for this long have been refused, or the Job controller is busy."""


async def follow(
    cluster: Client | ClusterConfig,
    ref: GangRef,
    *,
    deadlines: Deadlines = Deadlines(),  # noqa: B008 - a frozen value
    until: Until = "ended",
    report: Callable[[Observation], None],
    now: Callable[[], datetime] | None = None,
    timing: Timing | None = None,
) -> GangEvent:
    """Follow a gang until all its ranks run, or until it has ended, and tell how it stands then.

    Ends earlier when the gang is gone or a deadline has passed; then the gang is halted. On return
    the outcomes of all its pods are recorded and none is held, or the event's notes say what is not.
    Safe to cancel at any time, to run again, and to run twice at once.
    `report` is called in passing, at each change of phase or of what is waited for.
    `now` is the time by which deadlines are judged: the API server's if not given, since it writes the times that
    they count from.
    """
    timing = timing or Timing()
    reporter = PhaseReporter(report)
    shared = None if isinstance(cluster, Client) else informers()
    client = cluster if isinstance(cluster, Client) else informers().take_client(cluster)
    clock = now or client.server_clock.now
    try:
        while True:
            watch = GangWatch(client, ref)
            try:
                await watch.find_podgroups(client)
                return await _Follower(client, ref, watch, deadlines, until, reporter, clock, timing).run()
            except InformerClosedError:
                continue
            except ClusterRefused as exc:
                return gang_event(
                    ref,
                    Status.ERROR,
                    reporter.last_alive,
                    reason=type(exc.error).__name__,
                    message=str(exc),
                    remedy="Check the connection and the permissions of its service account, then clear the task.",
                )
            finally:
                watch.close()
    finally:
        if shared is not None:
            await shared.give_back_client(client.config.key)


class _Rest(NamedTuple):
    """How long to sleep at most, and then how long to let changes become one look."""

    for_s: float
    gather_s: float


class _Follower:
    def __init__(
        self,
        client: Client,
        ref: GangRef,
        watch: GangWatch,
        deadlines: Deadlines,
        until: Until,
        reporter: PhaseReporter,
        now: Callable[[], datetime],
        timing: Timing,
    ) -> None:
        self.client = client
        self.ref = ref
        self.watch = watch
        self.deadlines = deadlines
        self.until = until
        self.reporter = reporter
        self.now = now
        self.timing = timing
        self.harvest = HarvestTask(client, ref, timing, watch.wake)
        self.observer = GangObserver(ref, watch, self.harvest.enqueue)
        self.events: tuple[EventView, ...] = ()
        self.asked_for_events = False

    @property
    def harvester(self) -> Harvester:
        return self.harvest.harvester

    async def run(self) -> GangEvent:
        """Look, act, sleep; until there is something to tell for good."""
        try:
            await self._synced()
            while True:
                self.harvest.check()
                found = await self._look()
                if isinstance(found, GangEvent):
                    return found
                await self.watch.changed(found.for_s)
                if found.gather_s:
                    await self._gather(found.gather_s)
                if any(informer.staleness_s >= STALE_S and informer.problem for informer in self.watch.informers):
                    await self._may_see()
        finally:
            await self.harvest.stop()

    async def _synced(self) -> None:
        """Wait until what is not seen is known not to exist."""
        monotonic = self.timing.monotonic
        for informer in self.watch.informers:
            ask_at = monotonic() + SYNC_PATIENCE_S
            while not informer.is_synced:
                await self.watch.changed(max(ask_at - monotonic(), 0.0))
                if monotonic() >= ask_at:
                    await self._may_see()
                    ask_at = monotonic() + SYNC_PATIENCE_S

    async def _may_see(self) -> None:
        """Ask what the watches ask, for this gang only. Tells a server that is away from one that refuses."""
        await self._answer(
            lambda: self.client.list(JOBS, self.ref.namespace, label_selector=gang_selector(self.ref.name))
        )
        await self._answer(lambda: list_pods(self.client, self.ref))

    async def _look(self) -> GangEvent | _Rest:
        """One look at the gang: the event that ends the following, if it is time for it, or how long to sleep."""
        job = self.watch.job
        pods = await self.observer.refresh()
        observation = await self.observer.observe(pods.index, job, self.watch.podgroup, events=self.events)
        halted = halted_by_deadline(job)
        if observation.verdict is not None and not (halted and is_of_halt(observation.verdict)):
            return await self._confirm(pods, *self._last_words(job, observation.verdict))
        tell_in_s = self.reporter.report(observation, self.now(), has_events=bool(self.events))
        if halted is not None or (job is not None and job.ends_by_halt):
            return await self._halted(halted)
        if self.until == "running" and observation.phase is Phase.RUNNING:
            return self._event(Status.RUNNING, observation, Diagnosis("Running", observation.line))
        if deadline_exceeded(observation, self.deadlines, self.now()) is not None:
            return await self._time_out()
        return await self._rest(observation, tell_in_s)

    async def _rest(self, observation: Observation, tell_in_s: float | None) -> _Rest:
        """Until something changes, a deadline is due, or something should be told or looked after."""
        due = next_deadline(observation, self.deadlines)
        rest_s = STALE_S if due is None else (due - self.now()).total_seconds()
        if tell_in_s is not None:
            rest_s = min(rest_s, tell_in_s)
        if observation.wait.cause is Cause.PODS_MISSING and not self.asked_for_events:
            evidence_in_s = EVIDENCE_AFTER_S - self._age_s(observation)
            if evidence_in_s <= 0:
                self.asked_for_events = True
                self.events = await job_events(self.client, self.ref)
                return _AT_ONCE
            rest_s = min(rest_s, evidence_in_s)
        gather_s = min(observation.counts.created * PAUSE_PER_POD_S, PAUSE_MAX_S)
        return _Rest(min(max(rest_s, 0.0), STALE_S), gather_s)

    async def _gather(self, for_s: float) -> None:
        """Let the changes of many pods become one look. Pods are harvested meanwhile, and a verdict ends it."""
        until = self.timing.monotonic() + for_s
        while (left_s := until - self.timing.monotonic()) > 0 and judge(self.watch.job, self.ref) is None:
            await self.timing.sleep(min(left_s, GATHER_S))
            await self.observer.process_changes()

    def _age_s(self, observation: Observation) -> float:
        return (self.now() - observation.since).total_seconds() if observation.since else 0.0

    # -- the end ---------------------------------------------------------------------------------------------

    def _last_words(self, job: Job | None, verdict: Verdict) -> tuple[Job | None, Verdict]:
        """A Job that was seen to end, and then to go, has ended: a time to live may let it go in the same moment."""
        last = self.watch.gone_job
        said = judge(last, self.ref) if last is not None else None
        ended = said is not None and said.job_is_there and not verdict.job_is_there
        return (last, said) if ended and said is not None else (job, verdict)

    async def _confirm(self, pods: ObservedPods, seen: Job | None, likely: Verdict) -> GangEvent | _Rest:
        """Ask the server whether the verdict that the watch shows is true; bring the harvest to its end meanwhile.

        A Job that was seen to end, and is gone now, has ended so: pods that are let go may be all that kept it.
        """
        final = self._final_harvest()
        meanwhile = final.prepare(seen, pods) if likely.job_is_there else final.load_ledger()
        job, _ = await gather_or_cancel(self._job(), meanwhile)
        verdict = judge(job, self.ref)
        if verdict is None:
            return _AGAIN
        if not verdict.job_is_there:
            self.harvester.drop_ledger()
            if likely.job_is_there:
                verdict, job = likely, seen
        return await self._end(verdict, job, final)

    async def _end(self, verdict: Verdict, job: Job | None, final: FinalHarvest) -> GangEvent:
        phase = PHASE_OF_VERDICT[verdict.ended] if verdict.job_is_there else self.reporter.last_alive
        pods = await self.observer.refresh()
        seen = await self.observer.observe(pods.index, job, None)
        if seen.phase is Phase.FINISHING:
            self.reporter.report(seen, self.now())
        result = await final.run(job, pods)
        observation = await self.observer.observe(await self.observer.indexed(), job, None)
        observation = _at_the_end(observation, verdict, result)
        self.reporter.report(observation, self.now())
        return self._event(
            Status(verdict.ended.value),
            replace(observation, phase=phase),
            diagnose_end(verdict, self.harvester.outcomes),
            completed_indexes=verdict.completed_indexes,
            other_uid=verdict.other_uid,
            notes=(*result.notes, *self._lost_with(verdict)),
        )

    def _lost_with(self, verdict: Verdict) -> tuple[str, ...]:
        return (RESULTS_GONE,) if verdict.ended is Ended.SUCCEEDED and self.watch.gone_job is not None else ()

    def _final_harvest(self) -> FinalHarvest:
        return FinalHarvest(self.client, self.ref, self.harvest, self.watch, self.observer, self.timing, self.now)

    # -- deadlines -------------------------------------------------------------------------------------------

    async def _time_out(self) -> GangEvent | _Rest:
        """Halt the gang, if the server agrees that its time is over: a watch that lags must not end a gang."""
        job, pods, events = await gather_or_cancel(
            self._job(),
            self._answer(lambda: list_pods(self.client, self.ref, self.watch.pods_by_uid)),
            job_events(self.client, self.ref),
        )
        observation = await observe_listed(job, pods, self.watch.podgroup, self.ref, events=events)
        exceeded = deadline_exceeded(observation, self.deadlines, self.now())
        if observation.verdict is not None or exceeded is None:
            return _AGAIN
        halted = Halted(exceeded.phase, observation.wait.cause, observation.line)
        queued = job is not None and job.is_queued_by_kueue
        if not await self._answer(lambda: halt(self.client, self.ref, halted, queued=queued)):
            return _AGAIN
        return await self._halted(halted, observation)

    async def _halted(self, halted: Halted | None, before: Observation | None = None) -> GangEvent:
        """The gang is suspended for good: wait for its pods, unless it ended by itself at the last moment.

        `halted` is the deadline that has passed; `None` if something else halted the gang, such as a user.
        `before` is how it stood when it was halted, if that was seen.
        """
        final = self._final_harvest()
        await final.load_ledger()
        result = await final.run()
        job = await self._job()
        verdict = judge(job, self.ref)
        if verdict is not None and not is_of_halt(verdict):
            if not verdict.job_is_there:
                self.harvester.drop_ledger()
            return await self._end(verdict, job, final)
        observation = before or await self.observer.observe(await self.observer.indexed(), job, self.watch.podgroup)
        counts = replace(observation.counts, held=result.held)
        if halted is None:
            reason, message = job.halt_cause if job else ("", "")
            return self._event(
                Status.FAILED,
                replace(observation, phase=Phase.FAILED, counts=counts),
                Diagnosis(reason, f"The gang was halted: {message}"),
                notes=result.notes,
            )
        return self._event(
            Status.TIMEOUT,
            replace(observation, phase=halted.phase, counts=counts),
            diagnose_timeout(halted.phase, halted.cause, halted.why),
            seconds=allowed_s(halted.phase, self.deadlines),
            image=image_named(halted.why) if halted.cause is Cause.IMAGE else "",
            notes=result.notes,
        )

    # -- asking and telling ----------------------------------------------------------------------------------

    async def _answer(self, request: Callable[[], Awaitable[T]]) -> T:
        return await retry_until_answered(request, timing=self.timing)

    async def _job(self) -> Job | None:
        """The Job as the server has it now; `None` if it has none of this name."""
        try:
            found = await self._answer(lambda: self.client.get(JOBS, self.ref.name, self.ref.namespace))
        except NotFound:
            return None
        return read_job(found)

    def _event(self, status: Status, observation: Observation, why: Diagnosis, **more: Any) -> GangEvent:
        job = self.watch.job
        return gang_event(
            self.ref,
            status,
            observation.phase,
            attempt=job.attempt if job else None,
            reason=why.code,
            message=why.summary,
            remedy=why.remedy,
            since=observation.since,
            counts=observation.counts,
            outcomes=self.harvester.outcomes,
            **more,
        )


_AT_ONCE: Final = _Rest(0.0, 0.0)
_AGAIN: Final = _Rest(LOOK_AGAIN_S, 0.0)


def _at_the_end(observation: Observation, verdict: Verdict, result: FinalHarvestResult) -> Observation:
    """The last observation: pods that were listed as held have been released since."""
    counts = replace(observation.counts, held=result.held)
    return replace(observation, phase=PHASE_OF_VERDICT[verdict.ended], counts=counts)

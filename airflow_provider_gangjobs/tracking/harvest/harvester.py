"""Harvester: records how each pod of a gang ended, then releases the pod, by a schedule.

The order is fixed: record, then release. After a crash both are done again. The ledger is keyed by pod uid and a
released pod stays released, so doing them twice changes nothing.

1. Pods are enqueued as the watch shows them. Pods that have ended and are not recorded are due.
2. A batch of due pods is recorded in the ledger, pods that are being deleted first. If that fails, all stay due.
3. The finalizer is removed from recorded pods, when the schedule says so. A pod that is being deleted is kept some
   seconds longer while its log is read (`LogReader`), because its log cannot be read afterwards.

`run` does this step by step until it is cancelled. Whoever needs the backlog to be empty calls `drain`, which does the
same steps without pauses. One step is done at a time.
A harvester knows the pods that it is given, and nothing of Airflow.

The schedule is pure: it reads no clock and keeps three points in time. Each release is one more write to the API
server, beside six for each pod, and nobody waits for it unless the pod is being deleted. So releases come last. While
pods end, a harvester releases a few pods at a time and adapts to the response time of the API server. When no pod has
ended for a moment, or when a drain is requested, it releases the rest at full speed. Pods that are being deleted come
first in the queue, and last if one of them could not be released. A pod is in the queue once at most.

The lines about a harvest are written when it fails and when it works again, and none for a single pod or retry. The
trigger writes these lines, so they are in the log of the gang's task, where a user looks for
the reason why a pod does not go away.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain, islice
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol

from airflow_provider_gangjobs.cluster.clock import Backoff, TimeSlice
from airflow_provider_gangjobs.cluster.errors import ClusterError, Forbidden, TooManyRequests
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.ending.release import release
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.gang.outcome.outcomes import FailedRanks, Outcome, failures_first, outcome_of
from airflow_provider_gangjobs.gang.state.pods import has_ended, is_held, keeps_running
from airflow_provider_gangjobs.kube.text import log_fields
from airflow_provider_gangjobs.tracking.harvest.ledger import is_namespace_ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.text import Field
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.harvest.ledger import Ledger


QUIET_AFTER_S: Final = 3.0
"""When no pod has ended for this many seconds, a harvester releases pods at full speed. By then the Job controller has
counted the pods, and its own writes are done."""
RECORD_INTERVAL_PER_POD_S: Final = 2e-3
RECORD_INTERVAL_MAX_S: Final = 2.0
"""Between two writes to the ledger. The API server merges a whole ConfigMap to add an entry, so adding costs more the
more entries there are, and the outcomes of a large gang are written in fewer and larger parts."""
SLOW_RELEASE_PODS: Final = 2
"""Pods that are released at once while other pods end."""
SLOW_RELEASE_PAUSE_FACTOR: Final = 60.0
"""The pause after a slow release, as a multiple of the response time: about six releases a second of a server that
answers in 5 ms, and less than one a second of a busy server that takes 50 ms. With a factor of 3 a gang of 5,000 pods
completed in 1.3 times its time, with this factor 2,500 pods complete in 1.02 times (benchmarks/harvest.py)."""
SLOW_RELEASE_PAUSE_MIN_S: Final = 0.005
RELEASABLE_MAX: Final = 10_000
"""Pods that are recorded and still held, some 10 MB. More pods are released at full speed."""


class Action(Enum):
    """What a harvester does next."""

    WAIT = auto()
    RECORD = auto()
    RELEASE_TERMINATING = auto()
    RELEASE_SLOWLY = auto()
    RELEASE_ALL = auto()


class Backlog(NamedTuple):
    """Numbers of pods that wait for a harvester."""

    unrecorded: int = 0
    terminating: int = 0
    """Recorded pods with a deletion timestamp. Somebody waits for each of them to go."""
    releasable: int = 0
    """The other recorded pods. Nobody waits for their release."""


@dataclass
class HarvestSchedule:
    """The schedule of one harvester. All times are seconds of its monotonic clock."""

    _quiet_at: float = 0.0
    _record_at: float = 0.0
    _slow_release_at: float = 0.0
    others_first: bool = False
    """Pods that are being deleted could not be released, so everything else that is due comes before the next try."""

    def note_result(self, action: Action, *, failed: bool) -> None:
        """Let everything else come first after a failure to release pods that are being deleted, and only then."""
        if failed or action is Action.RELEASE_TERMINATING:
            self.others_first = failed and action is Action.RELEASE_TERMINATING

    def note_ended_pods(self, now: float) -> None:
        """Set the time from which pods are released at full speed. Pods have ended: others probably end soon."""
        self._quiet_at = now + QUIET_AFTER_S

    def note_record(self, now: float, pods: int) -> None:
        """Set the time of the next write to the ledger.

        :param pods: The number of outcomes that this harvester has recorded.
        """
        self._record_at = now + min(pods * RECORD_INTERVAL_PER_POD_S, RECORD_INTERVAL_MAX_S)

    def note_slow_release(self, now: float, took_s: float) -> None:
        """Set the time of the next slow release.

        :param took_s: How many seconds the last one took.
        """
        self._slow_release_at = now + max(SLOW_RELEASE_PAUSE_FACTOR * took_s, SLOW_RELEASE_PAUSE_MIN_S)

    def next_action(self, now: float, backlog: Backlog, *, is_draining: bool = False) -> tuple[Action, float | None]:
        """Return the next action, and for `WAIT` how many seconds to wait at most (`None`: until pods are enqueued).

        :param is_draining: Somebody waits for the backlog to be empty, so there are no pauses.
        """
        self.others_first = self.others_first and backlog.terminating > 0
        if backlog.terminating and not self.others_first:
            return Action.RELEASE_TERMINATING, 0.0
        if backlog.unrecorded and (is_draining or now >= self._record_at):
            return Action.RECORD, 0.0
        if backlog.releasable and self._may_release_all(now, backlog, is_draining=is_draining):
            return Action.RELEASE_ALL, 0.0
        if backlog.releasable and now >= self._slow_release_at:
            return Action.RELEASE_SLOWLY, 0.0
        if backlog.terminating:
            return Action.RELEASE_TERMINATING, 0.0
        times = [self._record_at] * bool(backlog.unrecorded)
        times += [self._quiet_at, self._slow_release_at] * bool(backlog.releasable)
        return Action.WAIT, min(times) - now if times else None

    def continues_to_release(self, now: float, backlog: Backlog, *, is_draining: bool = False) -> bool:
        """Whether a running `RELEASE_ALL` goes on with the next pod.

        A drain does not cut the release short for every pod that ends meanwhile, so the ledger is still written in
        large parts.
        """
        is_urgent = backlog.terminating and not self.others_first
        if is_urgent or (backlog.unrecorded and now >= self._record_at):
            return False
        return self._may_release_all(now, backlog, is_draining=is_draining)

    def _may_release_all(self, now: float, backlog: Backlog, *, is_draining: bool) -> bool:
        return is_draining or now >= self._quiet_at or backlog.releasable > RELEASABLE_MAX


class _UnrecordedPod(NamedTuple):
    """A pod whose outcome has to be recorded. There may be tens of thousands of them at once."""

    pod: PodView
    has_ended: bool = True
    """False if the pod was abandoned. Its outcome is recorded as `unknown`."""
    exists: bool = True
    stays_held: bool = False
    """The pod still runs, and is released when it has ended."""


class _HarvestQueue:
    """Pods by uid, in the order in which they were enqueued."""

    def __init__(self) -> None:
        self._unrecorded_terminating: dict[str, _UnrecordedPod] = {}
        self._unrecorded: dict[str, _UnrecordedPod] = {}
        self.terminating: dict[str, PodView] = {}
        """Recorded pods that are being deleted."""
        self.releasable: dict[str, PodView] = {}
        """The other recorded pods."""
        self.log_is_read: dict[str, PodView] = {}
        """Recorded pods that are kept while their logs are being read."""
        self.enqueued = 0
        """Number of pods that were added to be recorded, ever."""

    def backlog(self) -> Backlog:
        """Return how many pods are to be recorded, and to be released."""
        unrecorded = len(self._unrecorded_terminating) + len(self._unrecorded)
        return Backlog(unrecorded, len(self.terminating), len(self.releasable))

    def __len__(self) -> int:
        return sum(self.backlog()) + len(self.log_is_read)

    def add_unrecorded(self, due: _UnrecordedPod) -> None:
        """Have a pod recorded; a pod that is in the queue already is replaced."""
        uid, deleted_at = due.pod.metadata.uid, due.pod.metadata.deletion_timestamp
        self.enqueued += self.unrecorded(uid) is None
        self.remove(uid)
        (self._unrecorded if deleted_at is None else self._unrecorded_terminating)[uid] = due

    def add_recorded(self, pod: PodView) -> None:
        """Have a recorded pod released."""
        uid = pod.metadata.uid
        self.remove(uid)
        (self.releasable if pod.metadata.deletion_timestamp is None else self.terminating)[uid] = pod

    def remove(self, uid: str) -> None:
        """Take a pod out of the queue. Safe to repeat."""
        self._unrecorded_terminating.pop(uid, None)
        self._unrecorded.pop(uid, None)
        for pods in (self.terminating, self.releasable, self.log_is_read):
            pods.pop(uid, None)

    def unrecorded(self, uid: str) -> _UnrecordedPod | None:
        """Return the pod if its outcome is still to be recorded."""
        return self._unrecorded_terminating.get(uid) or self._unrecorded.get(uid)

    def next_unrecorded(self, at_most: int) -> list[_UnrecordedPod]:
        """Return the first pods to record. They stay in the queue."""
        return list(islice(chain(self._unrecorded_terminating.values(), self._unrecorded.values()), at_most))


@dataclass
class HarvestTotals:
    """Counters of all harvesters of a loop, also of those that have stopped. The counters never decrease."""

    recorded: int = 0
    """Outcomes written to the ledger."""
    released: int = 0
    """Pods from which the finalizer was removed."""
    failures: int = 0
    """Batches that met an error."""
    views: int = 0
    """Views of pods that were looked at. A pod has a view for each of its changes."""
    active: set[Harvester] = field(default_factory=set)

    @property
    def backlog(self) -> int:
        """Pods that wait to be recorded or released."""
        return sum(harvester.backlog for harvester in self.active)


def harvest_totals() -> HarvestTotals:
    """Return the totals of the running loop."""
    return loop_local(HarvestTotals)


log = logging.getLogger(__name__)

SLOWED_DOWN: Final = (INFO, "The API server is busy, the harvest is slowed down")
NOT_STORED: Final = (WARNING, "Outcomes of pods cannot be stored, so the pods are held until they are")
NOT_RELEASED: Final = (WARNING, "Pods cannot be released, the harvest retries")
RECOVERED: Final = (INFO, "The harvest works again")


class HarvestLog:
    """Logs the harvest of one gang."""

    def __init__(self, gang: str | None) -> None:
        self._gang = gang
        self._problem: tuple[tuple[int, str], str] | None = None
        self._since = 0.0
        self._attempts = 0

    def failed(self, error: Exception, now: float, *, is_storing: bool, backlog: int) -> None:
        """Log a failed attempt, unless the one before failed for the same reason."""
        message = NOT_STORED if is_storing else NOT_RELEASED
        if isinstance(error, TooManyRequests):
            message = SLOWED_DOWN
        if self._problem is None:
            self._since, self._attempts = now, 0
        self._attempts += 1
        if self._problem != (message, type(error).__name__):
            self._problem = message, type(error).__name__
            self._write(message, pods=backlog, cause=f"{type(error).__name__}: {error}")

    def succeeded(self, now: float, *, backlog: int) -> None:
        """Log the end of a problem, if there was one."""
        if self._problem is not None:
            self._problem = None
            self._write(RECOVERED, after_s=now - self._since, tries=self._attempts, pods=backlog)

    def _write(self, message: tuple[int, str], **fields: Field) -> None:
        level, what = message
        log_fields(log, level, what, gang=self._gang, **fields)


BATCH_PODS_MAX: Final = 500
"""As many as the Job controller counts in one sync (KEP-2307), so neither side piles up work for the other."""
PAUSE_BASE_S: Final = 0.5
PAUSE_CAP_S: Final = 30.0
DRAIN_FAILURES_MAX: Final = 3
"""After so many failures a drain returns the error: the caller looks at the pods again, of which some may be
gone."""
OUTCOMES_KEPT_MAX: Final = 64
"""Outcomes kept in memory for the event, which shows twenty of them."""


class LogReader(Protocol):
    """Reads logs of pods: while they run, or when they are being deleted."""

    def observe_job(self, job: StoredGang) -> None:
        """Take note of the gang's Job as it is now."""

    def observe(self, pods: Sequence[PodView]) -> None:
        """Take note of pods that have changed."""

    def notify_when_read(self, pod: PodView, notify: Callable[[str], None]) -> bool:
        """Return whether the log of the pod is being read. If so, `notify` is called with the uid of the pod when the
        log is read, or after some seconds."""


class Harvester:
    """Harvests one gang. Any number of processes may harvest the same gang.

    `ledger=None` is for a gang whose Job is gone: outcomes are kept for the event only (see `outcomes`).
    """

    def __init__(self, client: Client, ledger: Ledger | None, logs: LogReader | None = None) -> None:
        self._client = client
        self._ledger = ledger
        self._logs = logs
        self._queue = _HarvestQueue()
        self.released: set[str] = set()
        """Pods that this harvester released. The watch may show them as held for a moment longer."""
        self.failed_ranks = FailedRanks()
        """All ranks that failed, also if `outcomes` has only some of them."""
        self._outcomes: dict[str, Outcome] = {}
        self._clock = client.clock
        self._schedule = HarvestSchedule()
        self._backoff = Backoff(client.clock, base_s=PAUSE_BASE_S, cap_s=PAUSE_CAP_S)
        self._seen = 0
        """How many pods were enqueued when a step looked last."""
        self._work = asyncio.Event()
        """Pods were enqueued since a step looked last."""
        self._one_step = asyncio.Lock()
        self._drains = 0
        """How many drains run. They do the steps of `run` meanwhile, so that a failure is counted and has its pause."""
        self._log = HarvestLog(str(ledger.ref) if ledger else None)
        self._recorded_pods = 0
        self._totals = harvest_totals()

    @property
    def outcomes(self) -> list[Outcome]:
        """At most `OUTCOMES_KEPT_MAX` of the outcomes that are known so far, failures first."""
        return failures_first(self._outcomes.values(), OUTCOMES_KEPT_MAX)

    @property
    def stored_outcomes(self) -> list[Outcome]:
        """The same of the outcomes that the ledger has."""
        recorded = () if self._ledger is None else self._ledger.recorded
        return [outcome for outcome in self.outcomes if outcome.uid in recorded]

    @property
    def is_first_recorder(self) -> bool:
        """Whether no other process had recorded an outcome of the gang before this harvester did."""
        return self._ledger is not None and self._ledger.is_first_recorder

    @property
    def backlog(self) -> int:
        """Pods that wait to be recorded or released."""
        return len(self._queue)

    @property
    def recorded(self) -> AbstractSet[str]:
        """UIDs of the pods whose outcome is recorded, or known if there is no ledger."""
        return self._outcomes.keys() if self._ledger is None else self._ledger.recorded

    def holds(self, pod: PodView) -> bool:
        """Whether the finalizer holds the pod, as far as is known."""
        return is_held(pod) and pod.metadata.uid not in self.released

    # -- what is enqueued --------------------------------------------------------------------------------------

    def enqueue(self, pods: Iterable[PodView]) -> None:
        """Enqueue pods that have ended; other pods are ignored."""
        recorded = self.recorded
        for pod in pods:
            self._totals.views += 1
            if not has_ended(pod):
                continue
            if pod.metadata.uid in recorded:
                self._enqueue_release(pod)
            else:
                self._enqueue_record(_UnrecordedPod(pod))

    def enqueue_deleted(self, pods: Iterable[PodView]) -> None:
        """Enqueue pods that do not exist any more, by their last views. Their outcomes count, whoever released them."""
        for pod in pods:
            if pod.metadata.uid in self.recorded:
                self._queue.remove(pod.metadata.uid)
            else:
                self._enqueue_record(_UnrecordedPod(pod, exists=False))

    def enqueue_decided(self, pods: Iterable[PodView]) -> None:
        """Enqueue pods that still run, and whose main container has ended, to be recorded. They stay held."""
        for pod in pods:
            if pod.metadata.uid not in self.recorded:
                self._enqueue_record(_UnrecordedPod(pod, stays_held=True))

    def abandon(self, pods: Iterable[PodView]) -> None:
        """Record held pods that have not ended as `unknown` and release them, because nobody will follow them."""
        for pod in filter(self.holds, pods):
            if pod.metadata.uid in self.recorded:
                self._enqueue_release(pod)
            else:
                self._enqueue_record(_UnrecordedPod(pod, has_ended=has_ended(pod) or bool(keeps_running(pod))))

    def _enqueue_record(self, due: _UnrecordedPod) -> None:
        self._queue.add_unrecorded(due)
        self._work.set()

    def _enqueue_release(self, pod: PodView) -> None:
        """Enqueue the release of a recorded pod, unless our finalizer does not hold it."""
        self._queue.remove(pod.metadata.uid)
        if not self.holds(pod):
            return
        is_terminating = pod.metadata.deletion_timestamp is not None
        if is_terminating and self._logs is not None and self._logs.notify_when_read(pod, self._log_was_read):
            self._queue.log_is_read[pod.metadata.uid] = pod
            return
        self._queue.add_recorded(pod)
        self._work.set()

    def _log_was_read(self, uid: str) -> None:
        if (pod := self._queue.log_is_read.get(uid)) is not None:
            self._queue.add_recorded(pod)
        self._work.set()

    def drop_ledger(self) -> None:
        """Keep outcomes for the event only: the Job is gone, and the ledger that it owns with it."""
        self._ledger = None

    async def load_ledger(self) -> None:
        """Read what earlier harvesters recorded, unless that was done before.

        Raises:
            ClusterError: The ledger could not be read.
        """
        if self._ledger is not None:
            await self._ledger.load(self._keep)

    # -- the driver --------------------------------------------------------------------------------------------

    async def drain(self) -> Exception | None:
        """Record and release all pods that are enqueued, without the schedule's pauses.

        Returns:
            `None` if nothing is left, or the last error after `DRAIN_FAILURES_MAX` failures.
        """
        self._backoff.reset()
        self._drains += 1
        try:
            failures = 0
            while self.backlog:
                if (error := await self._run_step(is_draining=True)) is not None:
                    failures += 1
                    if failures >= DRAIN_FAILURES_MAX:
                        return error
                    await self._pause(error)
            return None
        finally:
            self._drains -= 1
            self._work.set()

    async def run(self) -> NoReturn:
        """Harvest what is enqueued until cancelled. Errors of the cluster are retried, and logged when they begin."""
        while True:
            if (error := await self._run_step(is_draining=False)) is not None:
                await self._pause(error)

    async def _pause(self, error: Exception) -> None:
        at_least_s = error.retry_after_s if isinstance(error, ClusterError) else None
        await self._clock.sleep(self._backoff.next(at_least_s=at_least_s))

    async def _run_step(self, *, is_draining: bool) -> Exception | None:
        """Do what the schedule asks for and return the first error, or wait until there is something to do."""
        async with self._one_step:
            self._work.clear()  # notifications that come after this line concern the state that is looked at next
            if is_draining and not self.backlog:  # the step before has done the rest
                return None
            now = self._clock.monotonic()
            if self._queue.enqueued != self._seen:
                self._seen = self._queue.enqueued
                self._schedule.note_ended_pods(now)
            action, wait_s = self._schedule.next_action(now, self._queue.backlog(), is_draining=is_draining)
            if self._drains and not is_draining:
                action, wait_s = Action.WAIT, None
            if action is not Action.WAIT:
                return await self._act(action, is_draining=is_draining)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._work.wait()
        return None

    async def _act(self, action: Action, *, is_draining: bool) -> Exception | None:
        began = self._clock.monotonic()
        error = await self._perform(action, is_draining=is_draining)
        now = self._clock.monotonic()
        if action is Action.RECORD:
            self._schedule.note_record(now, self._recorded_pods)
        elif action is Action.RELEASE_SLOWLY:
            self._schedule.note_slow_release(now, now - began)
        self._schedule.note_result(action, failed=error is not None)
        if error is None:
            if not self._schedule.others_first:
                self._backoff.reset()
                self._log.succeeded(now, backlog=self.backlog)
        else:
            self._totals.failures += 1
            self._log.failed(error, now, is_storing=action is Action.RECORD, backlog=self.backlog)
        return error

    async def _perform(self, action: Action, *, is_draining: bool) -> Exception | None:
        """Do what the schedule asks for, and return the first error. What fails stays in the queue."""

        def must_stop() -> bool:
            now, backlog = self._clock.monotonic(), self._queue.backlog()
            return not self._schedule.continues_to_release(now, backlog, is_draining=is_draining)

        match action:
            case Action.RECORD:
                return await self._record_batch()
            case Action.RELEASE_TERMINATING:
                return await self._release(self._queue.terminating, BATCH_PODS_MAX)
            case Action.RELEASE_SLOWLY:
                return await self._release(self._queue.releasable, SLOW_RELEASE_PODS)
            case _:
                return await self._release(self._queue.releasable, RELEASABLE_MAX, until=must_stop)

    # -- recording and releasing -------------------------------------------------------------------------------

    async def _record_batch(self) -> Exception | None:
        batch = self._queue.next_unrecorded(BATCH_PODS_MAX)
        try:
            if self._ledger is not None and any(not due.exists for due in batch):
                # Whoever released a pod that is gone had a later view of it, and has recorded that.
                await self._ledger.refresh(self._keep)
            await self._record(batch)
        except (ClusterError, LedgerUnavailable) as exc:
            return exc
        for due in batch:
            # The pod may have been enqueued again meanwhile.
            last = self._queue.unrecorded(due.pod.metadata.uid) or due
            if last.exists and not last.stays_held:
                self._enqueue_release(last.pod)
            else:
                self._queue.remove(last.pod.metadata.uid)
        return None

    async def _release(
        self, pods: dict[str, PodView], at_most: int, *, until: Callable[[], bool] = lambda: False
    ) -> Exception | None:
        """Release the first recorded pods and return the first error. Pods that fail go to the end of the queue."""
        errors: list[ClusterError] = []

        def done(pod: PodView, error: ClusterError | None) -> None:
            if error is not None:
                errors.append(error)
                if (last := pods.pop(pod.metadata.uid, None)) is not None:
                    pods[pod.metadata.uid] = last
                return
            self.released.add(pod.metadata.uid)
            self._totals.released += 1
            self._queue.remove(pod.metadata.uid)

        await release(self._client, list(islice(pods.values(), at_most)), done, is_stopped=until)
        return errors[0] if errors else None

    async def _record(self, batch: Sequence[_UnrecordedPod]) -> None:
        new = self._unrecorded(await _outcomes_of(batch))
        try:
            if self._ledger is not None:
                await self._ledger.record(new, self._keep, self._stored)
        except Forbidden as exc:
            if not is_namespace_ending(exc):
                raise
            self.drop_ledger()
        if self._ledger is None:
            self._stored(self._unrecorded(new))

    def _unrecorded(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        recorded = self.recorded
        return [outcome for outcome in outcomes if outcome.uid not in recorded]

    def _stored(self, outcomes: Sequence[Outcome]) -> None:
        self._keep(outcomes)
        self._recorded_pods += len(outcomes)
        self._totals.recorded += len(outcomes)

    def _keep(self, outcomes: Iterable[Outcome]) -> None:
        """Keep outcomes for the event. If there are many, and the ledger has them, only `outcomes` are kept."""
        for outcome in outcomes:
            self._outcomes.setdefault(outcome.uid, outcome)
            self.failed_ranks.add(outcome)
        if self._ledger is not None and len(self._outcomes) > 2 * OUTCOMES_KEPT_MAX:
            self._outcomes = {outcome.uid: outcome for outcome in self.outcomes}


async def _outcomes_of(batch: Sequence[_UnrecordedPod]) -> list[Outcome]:
    time_slice, outcomes = loop_local(TimeSlice), []
    for due in batch:
        outcomes.append(outcome_of(due.pod, ended=due.has_ended))
        await time_slice.yield_if_due()
    return outcomes

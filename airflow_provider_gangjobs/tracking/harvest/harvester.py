"""Harvest: write down how each pod ended, then let the pod go.

The order is fixed: record, then release. After a crash both are done again; the ledger is keyed by
pod uid and a released pod stays released, so doing them twice changes nothing.

1. Pods are offered as they are seen. Those that have ended and are not recorded are due.
2. A batch of them is recorded in the ledger, those being deleted first. If that fails all of it stays due.
3. Our finalizer is patched away from those that are recorded, when their time has come (see tempo).

Knows the pods it is given and nothing of Airflow.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from airflow_provider_gangjobs.cluster.clock import Backoff, Slices
from airflow_provider_gangjobs.cluster.errors import ClusterError, Forbidden
from airflow_provider_gangjobs.cluster.loop_local import of_running_loop
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, most_telling, outcome_of
from airflow_provider_gangjobs.gang.state.pods import has_ended, is_held
from airflow_provider_gangjobs.tracking.harvest.finalizer import release_all
from airflow_provider_gangjobs.tracking.harvest.log_messages import HarvestLog
from airflow_provider_gangjobs.tracking.harvest.schedule import HELD_MAX, TRICKLE_PODS, HarvestSchedule, Step
from airflow_provider_gangjobs.tracking.harvest.statistics import HarvestStatistics
from airflow_provider_gangjobs.tracking.ledger import is_namespace_ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.clock import Timing
    from airflow_provider_gangjobs.kube.views import PodView
    from airflow_provider_gangjobs.tracking.ledger import Ledger

BATCH_PODS_MAX: Final = 500
"""As many as the Job controller counts in one sync (KEP-2307), so neither side piles up work for the other."""
PAUSE_BASE_S: Final = 0.5
PAUSE_CAP_S: Final = 30.0
TOLD_MAX: Final = 64
"""Outcomes kept in memory for the event, which shows twenty of them."""


@dataclass(frozen=True)
class Harvest:
    """What one batch came to."""

    recorded: int = 0
    released: int = 0
    error: Exception | None = None
    """The first failure. What it concerns is still due."""


class _Due(NamedTuple):
    """A pod to be recorded. Tens of thousands may be at once."""

    pod: PodView
    ended: bool = True
    """False: given up on; it is recorded as `unknown`."""
    exists: bool = True

    @property
    def is_awaited(self) -> bool:
        """Somebody deleted it and waits for it to go."""
        return self.pod.metadata.deletion_timestamp is not None


class Harvester:
    """Harvests one gang. Any number may work on the same gang, in any process.

    `ledger=None` is for a gang whose Job is gone: outcomes are only told (see `told`).
    """

    def __init__(self, client: Client, ledger: Ledger | None) -> None:
        self._client = client
        self._ledger = ledger
        # A pod is in one of these at most, by uid: to be recorded, those first that are deleted by somebody who waits
        # for them to go; recorded and to be released, and again those first.
        self._due_first: dict[str, _Due] = {}
        self._due: dict[str, _Due] = {}
        self._awaited: dict[str, PodView] = {}
        self._held: dict[str, PodView] = {}
        self._released: set[str] = set()
        """Released by us; the informer may show them as held for a moment longer."""
        self._told: dict[str, Outcome] = {}
        self._offered = asyncio.Event()
        self._one_batch = asyncio.Lock()
        """Two batches at once would be the same pods twice."""
        self._telling = HarvestLog(str(ledger.ref) if ledger else None)
        self._ended_pods = 0
        self._recorded_pods = 0
        self._released_pods = 0
        self._failures = 0

    def statistics(self) -> HarvestStatistics:
        return HarvestStatistics(self.backlog, self._recorded_pods, self._released_pods, self._failures)

    @property
    def told(self) -> list[Outcome]:
        """The most telling outcomes seen so far, at most `TOLD_MAX`."""
        return most_telling(self._told.values(), TOLD_MAX)

    @property
    def backlog(self) -> int:
        """Pods that wait to be recorded or released."""
        return self._unrecorded + len(self._awaited) + len(self._held)

    @property
    def _unrecorded(self) -> int:
        return len(self._due_first) + len(self._due)

    def offer(self, pods: Iterable[PodView]) -> None:
        """Take note of pods as they are seen now; those that are not due are ignored."""
        known = self.known
        for pod in pods:
            if not has_ended(pod):
                continue
            if pod.metadata.uid in known:
                self._keep(pod)
            else:
                self._put(_Due(pod))

    def offer_gone(self, pods: Iterable[PodView]) -> None:
        """Take note of pods that are no more, by their last view: whoever let them go, they count."""
        for pod in pods:
            if pod.metadata.uid in self.known:
                self._forget(pod.metadata.uid)
            else:
                self._put(_Due(pod, exists=False))

    def give_up(self, pods: Iterable[PodView]) -> None:
        """Record pods that have not ended as `unknown` and release them: nobody will look after them any more."""
        for pod in filter(self.holds, pods):
            if pod.metadata.uid in self.known:
                self._keep(pod)
            else:
                self._put(_Due(pod, ended=has_ended(pod)))

    def _put(self, due: _Due) -> None:
        """Have a pod recorded."""
        uid = due.pod.metadata.uid
        self._ended_pods += uid not in self._due and uid not in self._due_first
        self._forget(uid)
        (self._due_first if due.is_awaited else self._due)[uid] = due
        self._offered.set()

    def _keep(self, pod: PodView) -> None:
        """Have a recorded pod released, unless nothing of ours holds it."""
        uid = pod.metadata.uid
        self._forget(uid)
        if self.holds(pod):
            (self._held if pod.metadata.deletion_timestamp is None else self._awaited)[uid] = pod
            self._offered.set()

    def _forget(self, uid: str) -> None:
        for pods in (self._due_first, self._due, self._awaited, self._held):
            pods.pop(uid, None)

    def holds(self, pod: PodView) -> bool:
        """Our finalizer holds it, as far as is known."""
        return is_held(pod) and pod.metadata.uid not in self._released

    @property
    def known(self) -> AbstractSet[str]:
        """UIDs of the pods whose outcome is recorded, or told if there is nothing to record in."""
        return self._told.keys() if self._ledger is None else self._ledger.recorded

    def forget_ledger(self) -> None:
        """The Job is gone, and what it owns with it: from now on outcomes are only told."""
        self._ledger = None

    async def remember(self) -> None:
        """Learn what earlier harvesters recorded.

        Raises:
            ClusterError: the ledger could not be read.
        """
        if self._ledger is not None:
            await self._ledger.load(self._tell)

    async def run(self, *, timing: Timing) -> NoReturn:
        """Harvest what is offered, for ever. A cluster's faults are waited out, and logged when they begin."""
        tempo, backoff = HarvestSchedule(), Backoff(timing, base_s=PAUSE_BASE_S, cap_s=PAUSE_CAP_S)
        ended_pods = 0
        while True:
            now = timing.monotonic()
            if ended_pods != self._ended_pods:
                ended_pods = self._ended_pods
                tempo.pods_ended(now)
            step, wait_s = self._next_step(tempo, now)
            if step is Step.WAIT:
                await self._offered_within(wait_s)
                continue
            error = await self._do(step, until=lambda: self._next_step(tempo, timing.monotonic())[0] is not Step.DRAIN)
            if step is Step.RECORD:
                tempo.recorded(timing.monotonic(), self._recorded_pods)
            elif step is Step.TRICKLE:
                tempo.trickled(timing.monotonic(), timing.monotonic() - now)
            self._telling.backlog_is(self.backlog)
            if error is None:
                backoff.reset()
                self._telling.goes_on(timing.monotonic(), backlog=self.backlog)
                continue
            storing = step is Step.RECORD
            self._telling.hindered(error, timing.monotonic(), storing=storing, backlog=self.backlog)
            await timing.sleep(backoff.next(at_least_s=retry_after_s(error)))

    async def _offered_within(self, time_s: float | None) -> None:
        """Wait for more to harvest, but not for longer than this."""
        try:
            async with asyncio.timeout(time_s):
                await self._offered.wait()
        except TimeoutError:
            return
        self._offered.clear()

    def _next_step(self, tempo: HarvestSchedule, now: float) -> tuple[Step, float | None]:
        return tempo.next(now, due=self._unrecorded, awaited=len(self._awaited), held=len(self._held))

    async def _do(self, step: Step, *, until: Callable[[], bool]) -> Exception | None:
        """:param until: The rest of the held pods can wait again."""
        async with self._one_batch:
            match step:
                case Step.RECORD:
                    return (await self._record_batch())[1]
                case Step.RELEASE_AWAITED:
                    return (await self._release(self._awaited, BATCH_PODS_MAX))[1]
                case Step.TRICKLE:
                    return (await self._release(self._held, TRICKLE_PODS))[1]
                case _:
                    return (await self._release(self._held, HELD_MAX, until=until))[1]

    async def harvest(self, *, sparing: bool = False) -> Harvest:
        """Record one batch, and release what is recorded. What fails stays in the backlog; other faults than the
        cluster's are raised.

        :param sparing: Release only what somebody waits for; the rest is recorded, and stays in the backlog.
        """
        async with self._one_batch:
            recorded, error = await self._record_batch()
            if error is not None:
                return Harvest(error=error)
            awaited, error = await self._release(self._awaited, BATCH_PODS_MAX)
            held = 0
            if not sparing or len(self._held) > HELD_MAX:
                held, other = await self._release(self._held, HELD_MAX)
                error = error or other
            return Harvest(recorded, awaited + held, error)

    async def _record_batch(self) -> tuple[int, Exception | None]:
        """Record some of what is due: how many were new, or what hindered."""
        batch = list(islice(chain(self._due_first.values(), self._due.values()), BATCH_PODS_MAX))
        if not batch:
            return 0, None
        try:
            if any(not due.exists for due in batch):
                await self._learn()
            recorded = await self._record(batch)
        except (ClusterError, LedgerUnavailable) as exc:
            self._failures += 1
            return 0, exc
        for due in batch:
            # It may have been offered again meanwhile.
            uid = due.pod.metadata.uid
            last = self._due_first.get(uid) or self._due.get(uid) or due
            if last.exists:
                self._keep(last.pod)
            else:
                self._forget(uid)
        return recorded, None

    async def _release(
        self, pods: dict[str, PodView], at_most: int, *, until: Callable[[], bool] = lambda: False
    ) -> tuple[int, Exception | None]:
        """Release some of these, which are recorded: how many, and what hindered first. What fails stays in `pods`."""
        errors: list[ClusterError] = []
        before = len(self._released)

        def tell(pod: PodView, error: ClusterError | None) -> None:
            if error is not None:
                errors.append(error)
                return
            self._released.add(pod.metadata.uid)
            self._released_pods += 1
            self._forget(pod.metadata.uid)

        await release_all(self._client, list(islice(pods.values(), at_most)), tell, until=until)
        self._failures += bool(errors)
        return len(self._released) - before, errors[0] if errors else None

    async def _learn(self) -> None:
        """Read what others recorded: whoever let a vanished pod go had seen more of it than its last view here."""
        if self._ledger is not None:
            await self._ledger.refresh(self._tell)

    async def _record(self, batch: Sequence[_Due]) -> int:
        """Store the outcomes of these; how many of them were new."""
        before = self._recorded_pods
        new = self._new(await _outcomes_of(batch))
        try:
            if self._ledger is not None:
                self._stored(await self._ledger.begin(new))
            await self.remember()
            new = self._new(new)
            if self._ledger is not None:
                await self._ledger.record(new)
        except Forbidden as exc:
            if not is_namespace_ending(exc):
                raise
            self.forget_ledger()
            new = self._new(new)
        self._stored(new)
        return self._recorded_pods - before

    def _new(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        known = self.known
        return [outcome for outcome in outcomes if outcome.uid not in known]

    def _stored(self, outcomes: Sequence[Outcome]) -> None:
        self._tell(outcomes)
        self._recorded_pods += len(outcomes)

    def _tell(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._told.setdefault(outcome.uid, outcome)
        if self._ledger is not None and len(self._told) > 2 * TOLD_MAX:
            self._told = {outcome.uid: outcome for outcome in self.told}


async def _outcomes_of(batch: Sequence[_Due]) -> list[Outcome]:
    """How these ended; others may run in between."""
    slices, outcomes = of_running_loop(Slices), []
    for due in batch:
        outcomes.append(outcome_of(due.pod, ended=due.ended))
        await slices.breathe()
    return outcomes


def retry_after_s(error: Exception) -> float | None:
    """How long the server asked to be left alone."""
    return error.retry_after_s if isinstance(error, ClusterError) else None

"""Harvest: write down how each pod ended, then let the pod go.

The order is fixed: record, then release. After a crash both are done again; the ledger is keyed by
pod uid and a released pod stays released, so doing them twice changes nothing.

1. Pods are offered as they are seen. Those that have ended and are held or not recorded are kept.
2. A batch of them is recorded in the ledger, those being deleted first. If that fails nothing of it is released.
3. Our finalizer is patched away from each, with its uid as a precondition. A pod that is gone is released.

Knows the pods it is given and nothing of Airflow.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow_provider_gangjobs.cluster.client import Answer, Patch
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Forbidden, Invalid, NotFound
from airflow_provider_gangjobs.cluster.pacing import Backoff
from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.gang.labels import FINALIZER_HARVEST
from airflow_provider_gangjobs.gang.outcomes import Outcome, most_telling, outcome_of
from airflow_provider_gangjobs.gang.pods import has_ended, is_held
from airflow_provider_gangjobs.tracking.ledger import is_namespace_ending

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.pacing import Timing
    from airflow_provider_gangjobs.objects.views import PodView
    from airflow_provider_gangjobs.tracking.ledger import Ledger

log = logging.getLogger(__name__)

BATCH_PODS_MAX: Final = 500
"""As many as the Job controller counts in one sync (KEP-2307), so neither side piles up work for the other."""
PATCHES_IN_FLIGHT_MAX: Final = 32
RELEASE_AFTER_S: Final = 0.5
"""Releases wait until no pod has ended for this long, because each is a write that an API server busy with a
thousand ending pods would do instead of theirs. A pod that is being deleted is released at once."""
RECORD_PAUSE_PER_POD_S: Final = 2e-3
RECORD_PAUSE_MAX_S: Final = 2.0
"""Between two records. To add to a ConfigMap costs the API server more the more is in it (it merges the whole), so a
large gang's outcomes are written in larger and fewer parts."""
HELD_MAX: Final = 10_000
"""Pods that are recorded and still held, some 20 MB. Above it they are released however busy the server is."""
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


@dataclass(frozen=True)
class HarvestStatistics:
    """What a harvester has done so far."""

    backlog: int
    """Pods that wait to be recorded or released."""
    recorded: int
    released: int
    failures: int
    """Batches that met an error."""


@dataclass(frozen=True)
class _Due:
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
        self._backlog: dict[str, _Due] = {}
        self._released: set[str] = set()
        """Released by us; the informer may show them as held for a moment longer."""
        self._told: dict[str, Outcome] = {}
        self._offered = asyncio.Event()
        self._one_batch = asyncio.Lock()
        """Two batches at once would be the same pods twice."""
        self._recorded_pods = 0
        self._released_pods = 0
        self._failures = 0

    def statistics(self) -> HarvestStatistics:
        return HarvestStatistics(len(self._backlog), self._recorded_pods, self._released_pods, self._failures)

    @property
    def told(self) -> list[Outcome]:
        """The most telling outcomes seen so far, at most `TOLD_MAX`."""
        return most_telling(self._told.values(), TOLD_MAX)

    def offer(self, pods: Iterable[PodView]) -> None:
        """Take note of pods as they are seen now; those that are not due are ignored."""
        for pod in pods:
            if has_ended(pod) and (self.holds(pod) or not self._is_recorded(pod)):
                self._put(_Due(pod))

    def offer_gone(self, pods: Iterable[PodView]) -> None:
        """Take note of pods that are no more, by their last view: whoever let them go, they count."""
        for pod in pods:
            if self._is_recorded(pod):
                self._backlog.pop(pod.metadata.uid, None)
            else:
                self._put(_Due(pod, exists=False))

    def give_up(self, pods: Iterable[PodView]) -> None:
        """Record pods that have not ended as `unknown` and release them: nobody will look after them any more."""
        for pod in filter(self.holds, pods):
            self._put(_Due(pod, ended=has_ended(pod)))

    def _put(self, due: _Due) -> None:
        self._backlog[due.pod.metadata.uid] = due
        self._offered.set()

    def holds(self, pod: PodView) -> bool:
        """Our finalizer holds it, as far as is known."""
        return is_held(pod) and pod.metadata.uid not in self._released

    @property
    def known(self) -> AbstractSet[str]:
        """UIDs of the pods whose outcome is stored, or told where nothing can be stored."""
        return self._told.keys() if self._ledger is None else self._ledger.recorded

    def _is_recorded(self, pod: PodView) -> bool:
        return pod.metadata.uid in self.known

    def forget_ledger(self) -> None:
        """The Job is gone, and what it owns with it: from now on outcomes are only told."""
        self._ledger = None

    async def remember(self) -> None:
        """Learn what earlier harvesters recorded.

        Raises:
            ClusterError: the ledger could not be read.
        """
        if self._ledger is not None:
            self._tell(await self._ledger.load())

    @property
    def backlog(self) -> int:
        """Pods that wait to be recorded or released."""
        return len(self._backlog)

    async def run(self, *, timing: Timing) -> NoReturn:
        """Harvest what is offered, for ever. A cluster's faults are waited out, and logged when they begin."""
        backoff = Backoff(timing, base_s=PAUSE_BASE_S, cap_s=PAUSE_CAP_S)
        failing = ""
        while True:
            sparing = await self._offered_within(RELEASE_AFTER_S if self._backlog else None)
            error = (await self.harvest(sparing=sparing)).error
            if error is None:
                backoff.reset()
                failing = ""
                await timing.sleep(min(self._recorded_pods * RECORD_PAUSE_PER_POD_S, RECORD_PAUSE_MAX_S))
                continue
            if failing != type(error).__name__:
                failing = type(error).__name__
                log.warning("harvest waits, %d pods are held until their outcome is stored: %s", self.backlog, error)
            await timing.sleep(backoff.next(at_least_s=retry_after_s(error)))
            self._offered.set()

    async def _offered_within(self, time_s: float | None) -> bool:
        """Wait for more to harvest; False if nothing came in time."""
        try:
            async with asyncio.timeout(time_s):
                await self._offered.wait()
        except TimeoutError:
            return False
        self._offered.clear()
        return True

    async def harvest(self, *, sparing: bool = False) -> Harvest:
        """Record and release one batch. What fails stays in the backlog; other faults than the cluster's are raised.

        :param sparing: Release only what somebody waits for; the rest is recorded, and stays in the backlog.
        """
        async with self._one_batch:
            sparing = sparing and self.backlog <= HELD_MAX
            due_now = [due for due in self._backlog.values() if not sparing or self._is_urgent(due)]
            if len(due_now) > BATCH_PODS_MAX:
                self._offered.set()
            batch = sorted(due_now, key=lambda due: not due.is_awaited)[:BATCH_PODS_MAX]
            try:
                if any(not due.exists for due in batch):
                    await self._learn()
                recorded = await self._record([outcome_of(due.pod, ended=due.ended) for due in batch])
            except (ClusterError, LedgerUnavailable) as exc:
                self._failures += 1
                return Harvest(error=exc)
            for due in batch:
                if not due.exists:
                    self._backlog.pop(due.pod.metadata.uid, None)
            free = [due.pod for due in batch if due.exists and (due.is_awaited or not sparing)]
            errors = await self._release_all(free)
            self._failures += bool(errors)
            return Harvest(recorded, len(free) - len(errors), errors[0] if errors else None)

    def _is_urgent(self, due: _Due) -> bool:
        return due.is_awaited or not due.exists or not self._is_recorded(due.pod)

    async def _learn(self) -> None:
        """Read what others recorded: whoever let a vanished pod go had seen more of it than its last view here."""
        if self._ledger is not None:
            self._tell(await self._ledger.refresh())

    async def _record(self, outcomes: Sequence[Outcome]) -> int:
        """Store the outcomes; how many of them were new."""
        await self.remember()
        new = [outcome for outcome in outcomes if self._ledger is None or outcome.uid not in self._ledger.recorded]
        if self._ledger is not None:
            try:
                await self._ledger.record(new)
            except Forbidden as exc:
                if not is_namespace_ending(exc):
                    raise
                self.forget_ledger()
        self._tell(new)
        self._recorded_pods += len(new)
        return len(new)

    def _tell(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._told.setdefault(outcome.uid, outcome)
        if self._ledger is not None and len(self._told) > 2 * TOLD_MAX:
            self._told = {outcome.uid: outcome for outcome in self.told}

    async def _release_all(self, pods: Sequence[PodView]) -> list[ClusterError]:
        """Release each, many at once; one that fails does not stop the others. Returns the failures."""
        rest = iter(pods)
        errors: list[ClusterError] = []
        async with asyncio.TaskGroup() as group:
            for number in range(min(PATCHES_IN_FLIGHT_MAX, len(pods))):
                group.create_task(self._release_from(rest, errors), name=f"release-{number}")
        return errors

    async def _release_from(self, pods: Iterator[PodView], errors: list[ClusterError]) -> None:
        for pod in pods:
            try:
                await release_pod(self._client, pod)
            except ClusterError as exc:
                errors.append(exc)
            else:
                self._released.add(pod.metadata.uid)
                self._backlog.pop(pod.metadata.uid, None)
                self._released_pods += is_held(pod)


def retry_after_s(error: Exception) -> float | None:
    """How long the server asked to be left alone."""
    return error.retry_after_s if isinstance(error, ClusterError) else None


async def release_pod(client: Client, pod: PodView) -> None:
    """On return our finalizer is gone from this pod, or the pod is. Safe to repeat.

    Raises:
        ClusterError: it may still be held.
    """
    if not is_held(pod):
        return
    meta = pod.metadata
    try:
        patch = release_patch(meta.uid)
        await client.patch(PODS, meta.name, meta.namespace, patch, kind=Patch.STRATEGIC, answer=Answer.METADATA)
    except NotFound:
        return
    except (Conflict, Invalid):
        # Either another pod has this name now, or the server gave up on concurrent writers.
        if await _is_there(client, pod):
            raise


def release_patch(uid: str) -> dict[str, Any]:
    """A strategic merge patch that removes our finalizer from the pod of this uid and touches nothing else."""
    return {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER_HARVEST]}}


async def _is_there(client: Client, pod: PodView) -> bool:
    try:
        there = await client.get(PODS, pod.metadata.name, pod.metadata.namespace)
    except NotFound:
        return False
    return bool(there["metadata"]["uid"] == pod.metadata.uid)

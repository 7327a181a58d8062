"""Sweep: one look at all gangs of a namespace, and what follows from it. The rules are `gang.state.ownership`.

A `Sweep` remembers between its looks since when nobody has followed a gang, and since when Airflow says that the task
of a gang has ended. After a restart of the process it counts anew, which only delays what it does.

Whatever a sweep deletes, it deletes in exactly the version of the Job that it has judged. A try that adopts the gang
meanwhile changes the claim, and the sweep leaves the gang alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import starmap
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_gangjobs.cluster.clock import Clock, TimeSlice
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.labels import LABEL_GANG
from airflow_provider_gangjobs.gang.state.job import Job, read_job
from airflow_provider_gangjobs.gang.state.ownership import (
    GRACE,
    SweepAction,
    SweepDecision,
    SweepFacts,
    TaskEnd,
    confirm_end,
    decide_sweep,
    decide_vanished,
)
from airflow_provider_gangjobs.gang.state.pods import is_held, owner_uid
from airflow_provider_gangjobs.kube.views import JobView, PodView
from airflow_provider_gangjobs.submission.ending import delete_if

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.service import GangService

log = logging.getLogger(__name__)

QUESTIONS_PER_LOOK: Final = 20
"""About how many gangs Airflow is asked at each look. Each question is a request to Airflow's API."""
ASK_AGAIN_AFTER_S: Final = 600.0
"""How long an answer holds that a task has not ended."""
RELEASES_AT_ONCE: Final = 8
RELEASE_TIMEOUT_S: Final = 300.0
"""A release that takes longer is tried again after the next grace."""


class NamespaceView(Protocol):
    """The gangs of a namespace, as informers or a list show them."""

    @property
    def is_complete(self) -> bool:
        """Whether the view has all Jobs, so that a Job that is missing does not exist."""

    def gangs(self) -> Collection[str]:
        """Return the names of the gangs of which the view has Jobs or pods."""

    def jobs(self, gang: str) -> Iterable[JobView]:
        """Return the Jobs of this name."""

    def pods(self, gang: str) -> Iterable[PodView]:
        """Return the pods of the gang of this name."""


@dataclass(frozen=True)
class ListedView:
    """The gangs of a namespace, as one list showed them. The pods were listed first: a pod is made after its Job."""

    by_gang: Mapping[str, tuple[list[JobView], list[PodView]]]
    is_complete: bool = True

    @classmethod
    async def read(cls, client: Client, namespace: str) -> ListedView:
        """List the Jobs and the held pods of a namespace.

        Raises:
            ClusterError: they could not be listed.
        """
        by_gang: dict[str, tuple[list[JobView], list[PodView]]] = {}
        async with aclosing(client.list_views(PodView, PODS, namespace, label_selector=LABEL_GANG)) as pod_pages:
            async for pods in pod_pages:
                for pod in filter(is_held, pods):
                    by_gang.setdefault(pod.metadata.labels.gang or "", ([], []))[1].append(pod)
        async with aclosing(client.list_views(JobView, JOBS, namespace, label_selector=LABEL_GANG)) as job_pages:
            async for jobs in job_pages:
                for job in jobs:
                    by_gang.setdefault(job.metadata.labels.gang or "", ([], []))[0].append(job)
        return cls(by_gang)

    def gangs(self) -> Collection[str]:
        """Return the names of the gangs of which there are Jobs or held pods."""
        return self.by_gang.keys()

    def jobs(self, gang: str) -> Iterable[JobView]:
        """Return the Jobs of this name."""
        return self.by_gang[gang][0]

    def pods(self, gang: str) -> Iterable[PodView]:
        """Return the held pods of the gang of this name."""
        return self.by_gang[gang][1]


@dataclass(frozen=True)
class SweptGang:
    """What a look has done with a gang, or would do."""

    ref: GangRef
    decision: SweepDecision
    error: str = ""
    """Why it could not be done. The next look tries again."""


@dataclass
class _Memory:
    """What a sweep remembers about a gang that nobody follows."""

    unowned_since_s: float
    claim: str | None = None
    ended_since_s: float | None = None
    asked_at_s: float | None = None


@dataclass
class Sweep:
    """The looks of one process at the gangs of one installation in one namespace."""

    installation: str
    """Id of the installation. Without an id, only pods whose Job is gone are released."""
    is_followed: Callable[[GangRef], bool]
    """Whether somebody is known to follow the gang."""
    has_ended: Callable[[TaskKey], Awaitable[bool | None]]
    """Asks Airflow whether a task has ended and no try continues with its gang. `None` if that is not known."""
    release: Callable[[GangRef], Awaitable[object]]
    """Records the outcomes of a gang that is over, and releases its pods."""
    others: Callable[[], Awaitable[Callable[[GangRef], bool] | None]] | None = None
    """Reads which gangs other processes follow; the result is `None` if that cannot be read."""
    clock: Clock = field(default_factory=Clock)
    grace: timedelta = GRACE
    _memory: dict[GangRef, _Memory] = field(default_factory=dict, init=False)
    _has_more: bool = field(default=False, init=False)

    async def look(self, gangs: GangService, view: NamespaceView) -> list[SweptGang]:
        """Look at all gangs once. Returns what was done, with the errors of requests that failed."""
        unowned, vanished = await self._find_unowned(view)
        decided = [(job, facts, decide_sweep(job, facts)) for job, facts in unowned]
        if vanished or any(decision.action is not SweepAction.LEAVE for *_, decision in decided):
            follows = await self._read_others()
            decided = [each for each in decided if not follows(each[0].ref)]
            vanished = [ref for ref in vanished if not follows(ref)]
        questions = [(job, facts) for job, facts, decision in decided if decision.action is SweepAction.ASK]
        decided += [(job, facts, decide_sweep(job, facts)) for job, facts in await self._ask(questions)]
        slots = asyncio.Semaphore(RELEASES_AT_ONCE)
        acts = [
            self._act(gangs, job, facts, decision, slots)
            for job, facts, decision in decided
            if decision.action not in {SweepAction.LEAVE, SweepAction.ASK}
        ]
        acts += [self._release_vanished(gangs, ref, slots) for ref in vanished]
        return [swept for swept in await asyncio.gather(*acts) if swept is not None]

    @property
    def has_more(self) -> bool:
        """Whether the last look found live gangs of the installation, or held pods, that nobody follows."""
        return self._has_more

    # -- what nobody follows ---------------------------------------------------------------------------------

    async def _find_unowned(self, view: NamespaceView) -> tuple[list[tuple[Job, SweepFacts]], list[GangRef]]:
        """Return the Jobs of gangs that nobody follows, and the vanished Jobs whose pods may be released."""
        time_slice = TimeSlice()
        unowned: list[tuple[Job, SweepFacts]] = []
        vanished: list[GangRef] = []
        seen: set[GangRef] = set()
        for gang in view.gangs():
            await time_slice.yield_if_due()
            jobs = [read_job(job) for job in view.jobs(gang)]
            if any(map(self.is_followed, (job.ref for job in jobs))):
                continue
            held = _held_by_owner(view.pods(gang))
            for job in jobs:
                seen.add(job.ref)
                memory = self._remember(job.ref, job.claim)
                unowned.append((job, self._facts(memory, len(held.pop(job.ref.uid, ())))))
            if view.is_complete and held:
                for ref, pods in self._vanished(gang, held).items():
                    seen.add(ref)
                    if self._is_abandoned(ref, pods):
                        vanished.append(ref)
        self._memory = {ref: memory for ref, memory in self._memory.items() if ref in seen}
        self._has_more = len(seen) > len(unowned) or any(starmap(self._may_act, unowned))
        return unowned, vanished

    def _may_act(self, job: Job, facts: SweepFacts) -> bool:
        is_over = job.is_ended or job.is_halted or job.is_being_deleted
        return job.installation == self.installation != "" and (facts.held_pods > 0 or not is_over)

    def _remember(self, ref: GangRef, claim: str | None) -> _Memory:
        memory = self._memory.setdefault(ref, _Memory(self.clock.monotonic(), claim))
        if memory.claim != claim:  # another try answers for the gang, so what was known about the task is void
            memory = self._memory[ref] = _Memory(self.clock.monotonic(), claim)
        return memory

    def _facts(self, memory: _Memory, held_pods: int) -> SweepFacts:
        return SweepFacts(
            installation=self.installation,
            unowned_for=timedelta(seconds=self.clock.monotonic() - memory.unowned_since_s),
            held_pods=held_pods,
            grace=self.grace,
        )

    def _vanished(self, gang: str, held: Mapping[str, list[PodView]]) -> dict[GangRef, list[PodView]]:
        refs = {uid: GangRef(pods[0].metadata.namespace, gang, uid) for uid, pods in held.items()}
        return {refs[uid]: pods for uid, pods in held.items() if not self.is_followed(refs[uid])}

    def _is_abandoned(self, ref: GangRef, pods: Iterable[PodView]) -> bool:
        memory = self._remember(ref, None)
        unowned_for = timedelta(seconds=self.clock.monotonic() - memory.unowned_since_s)
        return all(
            decide_vanished(
                pod_installation=pod.metadata.labels.installation or "",
                installation=self.installation,
                unowned_for=unowned_for,
                grace=self.grace,
            )
            for pod in pods
        )

    async def _read_others(self) -> Callable[[GangRef], bool]:
        """Return a function that says whether another process follows a gang. The grace of such a gang begins anew."""
        follows = await self.others() if self.others is not None else None
        now_s = self.clock.monotonic()

        def is_followed(ref: GangRef) -> bool:
            if follows is None or not follows(ref):
                return False
            self._memory[ref] = replace(self._memory[ref], unowned_since_s=now_s)
            return True

        return is_followed

    # -- questions to Airflow --------------------------------------------------------------------------------

    async def _ask(self, questions: Iterable[tuple[Job, SweepFacts]]) -> list[tuple[Job, SweepFacts]]:
        """Ask Airflow about some of these gangs, first about those that it may have ended, then by the last answer."""
        now_s = self.clock.monotonic()
        due = []
        for job, facts in questions:
            memory = self._memory[job.ref]
            is_new = memory.asked_at_s is None or memory.ended_since_s is not None
            if is_new or now_s - (memory.asked_at_s or 0.0) >= ASK_AGAIN_AFTER_S:
                due.append((memory.ended_since_s is None, memory.asked_at_s or 0.0, job, facts))
        due.sort(key=lambda each: each[:2])
        answers = []
        for *_, job, facts in due[:QUESTIONS_PER_LOOK]:
            answers.append((job, replace(facts, task=await self._task_end(job))))
            if answers[-1][1].task is TaskEnd.UNKNOWN:
                break  # Airflow cannot be asked now
        return answers

    async def _task_end(self, job: Job) -> TaskEnd:
        key, memory = job.task_key, self._memory[job.ref]
        assert key is not None, "only the gangs of tasks are asked about"
        has_ended = await self.has_ended(key)
        memory.asked_at_s = now_s = self.clock.monotonic()
        known, memory.ended_since_s = confirm_end(memory.ended_since_s, has_ended=has_ended, now_s=now_s)
        return known

    # -- actions ---------------------------------------------------------------------------------------------

    async def _act(
        self, gangs: GangService, job: Job, facts: SweepFacts, decision: SweepDecision, slots: asyncio.Semaphore
    ) -> SweptGang | None:
        """Do what was decided. Returns None if the gang has changed meanwhile and was left alone."""

        def is_still_so(stored: Job) -> bool:
            return stored.claim == job.claim and decide_sweep(stored, facts).action is decision.action

        ref = job.ref
        try:
            async with slots:
                if decision.action is SweepAction.RELEASE:
                    await self._release(ref)
                elif self.is_followed(ref) or not await delete_if(gangs.client, ref, is_still_so, clock=self.clock):
                    return None
                else:
                    await gangs.release_pods(ref)
        except (ClusterError, TimeoutError) as error:
            return SweptGang(ref, decision, str(error) or type(error).__name__)
        return SweptGang(ref, decision)

    async def _release(self, ref: GangRef) -> None:
        """Release the pods of a gang that is over. A release that fails is repeated after the next grace."""
        self._memory[ref].unowned_since_s = self.clock.monotonic()
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            await self.release(ref)

    async def _release_vanished(self, gangs: GangService, ref: GangRef, slots: asyncio.Semaphore) -> SweptGang | None:
        decision = SweepDecision(SweepAction.RELEASE, "its Job is gone, and nobody can record the outcomes any more")
        try:
            async with slots:
                if self.is_followed(ref) or not await is_gone(gangs, ref):
                    return None
                await gangs.release_pods(ref)
        except ClusterError as error:
            return SweptGang(ref, decision, str(error))
        return SweptGang(ref, decision)


async def is_gone(gangs: GangService, ref: GangRef) -> bool:
    """Return whether the API server has no Job of this uid.

    Raises:
        ClusterError: this is unknown.
    """
    try:
        stored = await gangs.client.get(JOBS, ref.name, ref.namespace)
    except NotFound:
        return True
    return bool(stored["metadata"]["uid"] != ref.uid)


def _held_by_owner(pods: Iterable[PodView]) -> dict[str, list[PodView]]:
    """Return the held pods by the uid of their Job. A pod that does not say which Job made it is left out."""
    held: dict[str, list[PodView]] = {}
    for pod in pods:
        if is_held(pod) and (owner := owner_uid(pod)) is not None:
            held.setdefault(owner, []).append(pod)
    return held


def log_swept(swept: Iterable[SweptGang]) -> Counter[SweepAction]:
    """Log what a look has done, and return how many gangs by action."""
    done: Counter[SweepAction] = Counter()
    for each in swept:
        if each.error:
            log.warning("Sweep of gang %s: %s failed: %s", each.ref, each.decision.action, each.error)
        else:
            done[each.decision.action] += 1
            log.info("Sweep of gang %s: %s, because %s", each.ref, each.decision.action, each.decision.reason)
    return done


__all__ = ["NamespaceView", "Sweep", "SweptGang", "log_swept"]

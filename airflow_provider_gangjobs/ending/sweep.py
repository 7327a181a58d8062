"""Sweep: one look at all gangs of a namespace that nobody is responsible for, and what follows from it.

The rules are `gang.state.ownership`. A `Sweep` remembers from one sweep to the next since when nobody has followed a
gang, and since when Airflow says that the task of a gang has ended. After a restart of the process it counts again from
the beginning, which only delays what it does. `sweep_once` is the sweep of the command line, which does what may be
done without the states of the tasks: held pods of gangs that are over, and of Jobs that are gone, are released whatever
Airflow says. It ends no live gang, because the gang's task may still be deferred.

A process does not know which gangs other processes follow. So each triggerer asks Airflow about the live gangs that it
does not follow itself, task by task: one question for the gangs of a task in all its runs. For 10,000 gangs in the DAG
runs of 20 DAGs, 40 questions have answers of 650 kB and take Airflow's API server 0.8 to 1.1 s of CPU (Airflow 3.3.2,
one core, SQLite, without HTTP). An answer that a task has not ended holds for some looks, so this is spread over them.

A triggerer sweeps a namespace (`NamespaceSweeper`) while gangs are followed there, from the informers of the followers.
A look sends no request to Kubernetes unless there is something to do: the watches of Jobs and pods exist for the
followers anyway. The informers forget the gangs that are settled, because an ended Job may be kept for a week.
`sweep_totals` counts what all sweeps of one event loop have done, for metrics.

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
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.clock import Clock, TimeSlice
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.informer import InformerClosedError, informers
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.ending.delete import delete, finish_deletion
from airflow_provider_gangjobs.ending.deliver import mark_delivered
from airflow_provider_gangjobs.ending.release import release
from airflow_provider_gangjobs.ending.stop import finish_stop
from airflow_provider_gangjobs.gang.outcome.outcomes import failures_first, format_table, outcome_of
from airflow_provider_gangjobs.gang.state.ownership import (
    GRACE,
    SweepAction,
    SweepDecision,
    SweepFacts,
    TaskEnd,
    confirm_end,
    decide_sweep,
    ends_live_gang,
    grace_of,
    is_settled,
    may_release_orphaned_pods,
)
from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of
from airflow_provider_gangjobs.gang.state.pods import deletion_requested_at, gang_ref_of, has_ended, is_held
from airflow_provider_gangjobs.gang.state.stored_gang import read_gangs
from airflow_provider_gangjobs.jobs.requests import RetryingRequests, get_main_job
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from airflow_provider_gangjobs.kube.views import JobView, PodView
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.cluster.informer import Informer
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import Meta


log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 8
OUTCOMES_LOGGED_MAX: Final = 100
FOLLOW_TIMEOUT_S: Final = 300.0
VANISHED: Final = SweepDecision(
    SweepAction.RELEASE, "its Job is gone with its ledger, so nobody can record the outcomes of its pods any more"
)


@dataclass(frozen=True)
class SweptGang:
    """A gang, what a sweep has done with it, or would do, and why."""

    ref: GangRef
    decision: SweepDecision
    facts: SweepFacts
    """What the decision depends on, besides the Job."""
    job: StoredGang | None = None
    """None if the Job does not exist any more."""
    pods: Sequence[PodView] = ()
    """The held pods of a Job that does not exist any more."""
    error: str = ""
    """Why it could not be done. The next sweep tries again."""

    @property
    def installation(self) -> str:
        """Id of the installation that the gang belongs to. Empty if the gang does not say."""
        return self.job.installation if self.job else self.pods[0].metadata.labels.installation or ""

    @property
    def phase(self) -> Phase:
        """The phase in which the sweep has found the gang."""
        return phase_of(self.job)


def _judged(job: StoredGang, facts: SweepFacts) -> SweptGang:
    return SweptGang(job.ref, decide_sweep(job, facts), facts, job)


async def _act(client: Client, gang: SweptGang, follow: Callable[[GangRef], Awaitable[object]]) -> SweptGang | None:
    """Do what was decided. Returns None if the gang has changed meanwhile and was left alone.

    :param follow: Follows a gang that is over, which records the outcomes of its pods and releases them.
    """
    try:
        is_done = await _do(client, gang, follow)
    except (ClusterError, TimeoutError) as error:
        return replace(gang, error=str(error) or type(error).__name__)
    return gang if is_done else None


async def _do(client: Client, gang: SweptGang, follow: Callable[[GangRef], Awaitable[object]]) -> bool:
    job, action = gang.job, gang.decision.action
    if job is None:
        return await _release_if_gone(client, gang.ref, gang.pods)
    if action is SweepAction.RELEASE:
        async with asyncio.timeout(FOLLOW_TIMEOUT_S):
            await follow(job.ref)
        return True
    if action is SweepAction.MARK_DELIVERED:
        # A user may have marked the task as successful, so it is not certain that anybody has the results.
        return await mark_delivered(client, job.ref, job.claim.id, is_kept=True) is not None
    if action is SweepAction.FINISH:
        return await finish_stop(client, job.ref)

    def is_still_so(stored: StoredGang) -> bool:
        return stored.claim.id == job.claim.id and decide_sweep(stored, gang.facts).action is action

    deletion = await delete(RetryingRequests(client, job.ref.namespace), job.ref, only_if=is_still_so)
    if deletion.deleted is not None:
        await finish_deletion(client, job.ref, deletion)
    return deletion.deleted is not None


async def _release_if_gone(client: Client, ref: GangRef, pods: Sequence[PodView]) -> bool:
    """Release the pods of a Job that does not exist, and log their outcomes. Returns false if the Job exists."""
    if await get_main_job(client, ref) is not None:
        return False
    # The ledger is deleted with the Job, so the log is the only place that is left for the outcomes.
    outcomes = failures_first((outcome_of(pod, ended=has_ended(pod)) for pod in pods), OUTCOMES_LOGGED_MAX)
    log.warning("Gang %s: its Job is gone. Outcomes of its %d held pods:\n%s", ref, len(pods), format_table(outcomes))
    await release(client, pods)
    return True


LOOK_EVERY_S: Final = 60.0
"""Less if the grace is shorter."""
QUESTIONS_PER_LOOK: Final = 100
"""How many questions Airflow is asked at each look. Each one is a request, and a triggerer sends one at a time."""
GANGS_PER_QUESTION: Final = 250
"""A task with more gangs to ask about counts as several questions."""
ANSWER_LOOKS: Final = 5
"""For how many looks an answer holds, at most, that a task has not ended. It holds for as long as nobody had followed
the gang when it came: the task of a gang that was submitted just now may end before a triggerer follows the gang."""


@dataclass(frozen=True)
class NamespaceView:
    """The gangs of a namespace, or of a cluster, at one moment."""

    gangs: Collection[str]
    """The names of the gangs; of a cluster, `<namespace>/<name>`."""
    jobs: Callable[[str], Iterable[JobView]]
    """Returns the Jobs of a gang."""
    pods: Callable[[str], Iterable[PodView]]
    """Returns the pods of a gang; in a list only the held ones."""
    is_complete: bool = True
    """Whether the view has all Jobs, so that a Job that is missing does not exist."""

    @classmethod
    async def read(cls, client: Client, namespace: str | None) -> NamespaceView:
        """List the Jobs and the held pods of a namespace; of the whole cluster if the namespace is None.

        The pods are listed first: a pod is made after its Job, so the list of Jobs has the Job of each pod, if it
        exists.

        Raises:
            ClusterError: they could not be listed.
        """
        gangs: dict[str, tuple[list[JobView], list[PodView]]] = {}
        async with aclosing(client.list_views(PodView, PODS, namespace, label_selector=LABEL_GANG)) as pod_pages:
            async for pods in pod_pages:
                for pod in filter(is_held, pods):
                    gangs.setdefault(_gang_of(pod.metadata), ([], []))[1].append(pod)
        async with aclosing(client.list_views(JobView, JOBS, namespace, label_selector=LABEL_GANG)) as job_pages:
            async for jobs in job_pages:
                for job in jobs:
                    gangs.setdefault(_gang_of(job.metadata), ([], []))[0].append(job)
        return cls(gangs.keys(), lambda gang: gangs[gang][0], lambda gang: gangs[gang][1])

    @classmethod
    def of_informers(cls, jobs: Informer[JobView], pods: Informer[PodView]) -> NamespaceView:
        """Return the gangs of a namespace, as the shared informers show them."""
        return cls(
            {*jobs.keys(), *pods.keys()},
            lambda gang: jobs.objects(gang).values(),
            lambda gang: pods.objects(gang).values(),
            is_complete=jobs.is_complete_snapshot and jobs.problem is None,
        )


def _gang_of(metadata: Meta) -> str:
    return f"{metadata.namespace}/{metadata.labels.gang}"


def held_by_gang(pods: Iterable[PodView]) -> dict[GangRef, list[PodView]]:
    """Return the held pods by their gang. A pod that does not say which Job made it is left out."""
    held: dict[GangRef, list[PodView]] = {}
    for pod in pods:
        if is_held(pod) and (ref := gang_ref_of(pod)) is not None:
            held.setdefault(ref, []).append(pod)
    return held


def _are_abandoned(pods: Iterable[PodView], facts: SweepFacts) -> bool:
    """Return whether the held pods of a Job that does not exist are released."""
    return all(
        may_release_orphaned_pods(
            pod_installation=pod.metadata.labels.installation or "",
            installation=facts.installation,
            unowned_for=facts.unowned_for or timedelta(),
            grace=facts.grace,
        )
        for pod in pods
    )


@dataclass
class _Memory:
    unowned_since_s: float
    claim: str | None = None
    ended_since_s: float | None = None
    asked_at_s: float | None = None


@dataclass
class Sweep:
    """One sweep after the other of a namespace, by one process, for the gangs of one installation."""

    installation: str
    """Id of the installation. Without an id, held pods are released, and nothing else is done."""
    is_followed: Callable[[GangRef], bool]
    """Whether this process follows the gang."""
    ask: Callable[[TaskKey], Awaitable[TaskEnd]]
    """Asks Airflow about a task instance: `SUCCEEDED`, `ENDED` without success, `CLEARED`, `NOT_ENDED`, or `UNKNOWN`.
    The calls for instances of one task are made at the same time, so that they can share a request."""
    follow: Callable[[GangRef], Awaitable[object]]
    """Follows a gang that is over, which records the outcomes of its pods and releases them."""
    clock: Clock = field(default_factory=Clock)
    grace: timedelta = GRACE
    forget: Callable[[str], None] | None = None
    """Called with the name of each gang that is settled, so that the view need not show the gang any more."""
    _memory: dict[GangRef, _Memory] = field(default_factory=dict, init=False)
    has_more: bool = field(default=False, init=False)
    """Whether the last look found live gangs of the installation, or held pods, that this process does not follow."""

    @property
    def look_every_s(self) -> float:
        """How often to look."""
        return min(LOOK_EVERY_S, max(self.grace.total_seconds(), 1.0))

    async def run(self, client: Client, view: NamespaceView) -> list[SweptGang]:
        """Sweep once: look at all gangs, and act. Returns what was done, with the errors of requests that failed."""
        found = await self._find_unowned(view)
        found += await self._ask(one for one in found if one.decision.action is SweepAction.ASK)
        self._forget_settled(view, found)
        slots = asyncio.Semaphore(AT_ONCE_MAX)

        async def act_in_turn(gang: SweptGang) -> SweptGang | None:
            async with slots:
                # This process may have begun to follow the gang since the decision.
                return None if self.is_followed(gang.ref) else await _act(client, gang, self.follow)

        acts = []
        for one in found:
            if one.job and one.decision.action in {SweepAction.RELEASE, SweepAction.FINISH}:
                # If pods stay held, or the Job stays suspended, this is repeated after the next grace.
                self._memory[one.ref].unowned_since_s = self.clock.monotonic()
            if one.decision.action not in {SweepAction.LEAVE, SweepAction.ASK}:
                acts.append(act_in_turn(one))
        return [swept for swept in await asyncio.gather(*acts) if swept is not None]

    # -- what nobody follows ---------------------------------------------------------------------------------

    async def _find_unowned(self, view: NamespaceView) -> list[SweptGang]:
        """Return the Jobs that this process does not follow, and the held pods of Jobs that are gone for long."""
        time_slice = TimeSlice()
        found: list[SweptGang] = []
        seen: set[GangRef] = set()
        self.has_more = False
        for gang in view.gangs:
            await time_slice.yield_if_due()
            jobs = read_gangs(view.jobs(gang))
            if any(map(self.is_followed, (job.ref for job in jobs))):
                continue
            held = held_by_gang(view.pods(gang))
            for job in jobs:
                seen.add(job.ref)
                pods = held.pop(job.ref, [])
                facts = self._facts(job.ref, job.claim.id, pods, grace_of(job, self.grace))
                found.append(_judged(job, facts))
                is_own = job.installation == self.installation != ""
                self.has_more |= is_own and (bool(pods) or not job.is_over)
            if view.is_complete:
                for ref, pods in held.items():
                    if self.is_followed(ref):
                        continue
                    seen.add(ref)
                    self.has_more = True
                    facts = self._facts(ref, None, pods, self.grace)
                    if _are_abandoned(pods, facts):
                        found.append(SweptGang(ref, VANISHED, facts, pods=pods))
        self._memory = {ref: memory for ref, memory in self._memory.items() if ref in seen}
        return found

    def _facts(self, ref: GangRef, claim: str | None, held: Sequence[PodView], grace: timedelta) -> SweepFacts:
        memory, now_s = self._memory.get(ref), self.clock.monotonic()
        if memory is None or memory.claim != claim:  # what was known about the task of another try is void
            memory = self._memory[ref] = _Memory(now_s, claim)
        unowned_for = timedelta(seconds=now_s - memory.unowned_since_s)
        return SweepFacts(installation=self.installation, unowned_for=unowned_for, held_pods=len(held), grace=grace)

    def _forget_settled(self, view: NamespaceView, found: Iterable[SweptGang]) -> None:
        if self.forget is None:
            return
        settled = {one.ref for one in found if one.job and is_settled(one.job, one.facts)}
        for ref in settled:
            if all(job.ref in settled for job in read_gangs(view.jobs(ref.name))):
                self.forget(ref.name)
                del self._memory[ref]

    # -- questions to Airflow --------------------------------------------------------------------------------

    async def _ask(self, questions: Iterable[SweptGang]) -> list[SweptGang]:
        """Ask Airflow about some of these gangs, and decide again.

        The gangs whose task had ended by the last answer come first, then the other live gangs, and then the gangs that
        were not delivered. Of these, the gangs that were asked about longest ago come first.
        """
        now_s = self.clock.monotonic()
        due = []
        for gang in questions:
            memory = self._memory[gang.ref]
            asked_at_s = memory.unowned_since_s if memory.asked_at_s is None else memory.asked_at_s
            holds_s = min(ANSWER_LOOKS * self.look_every_s, asked_at_s - memory.unowned_since_s)
            if gang.job and (memory.ended_since_s is not None or now_s - asked_at_s >= holds_s):
                order = memory.ended_since_s is None, gang.job.is_over, memory.asked_at_s or 0.0
                due.append((order, gang.job, gang.facts))
        due.sort(key=lambda each: each[0])
        answers: list[SweptGang] = []
        for batch in _by_task((job, facts) for _, job, facts in due):
            ends = await asyncio.gather(*(self._task_end(job) for job, _ in batch))
            answers += [_judged(job, replace(facts, task=end)) for (job, facts), end in zip(batch, ends, strict=True)]
            if TaskEnd.UNKNOWN in ends:
                break  # Airflow cannot be asked now
        return answers

    async def _task_end(self, job: StoredGang) -> TaskEnd:
        memory = self._memory[job.ref]
        answer = await self.ask(_task_key(job))
        memory.asked_at_s = now_s = self.clock.monotonic()
        if job.is_over:
            return answer
        has_ended = ends_live_gang(answer, outlives_task=job.claim.outlives_task)
        known, memory.ended_since_s = confirm_end(memory.ended_since_s, has_ended=has_ended, now_s=now_s)
        return known


def _by_task(due: Iterable[tuple[StoredGang, SweepFacts]]) -> Iterable[list[tuple[StoredGang, SweepFacts]]]:
    """Return the gangs of each task, the first gangs of at most `QUESTIONS_PER_LOOK` questions."""
    by_task: dict[tuple[str, str], list[tuple[StoredGang, SweepFacts]]] = {}
    questions = 0
    for job, facts in due:
        key = _task_key(job)
        batch = by_task.setdefault((key.dag_id, key.task_id), [])
        if len(batch) % GANGS_PER_QUESTION == 0:
            if questions == QUESTIONS_PER_LOOK:
                break
            questions += 1
        batch.append((job, facts))
    return filter(None, by_task.values())


def _task_key(job: StoredGang) -> TaskKey:
    assert job.record.task is not None, "only the gangs of tasks are asked about"
    return job.record.task


def log_swept(swept: Iterable[SweptGang]) -> None:
    """Log what a look has done."""
    for each in swept:
        if each.error:
            log.warning("Sweep of gang %s: %s failed: %s", each.ref, each.decision.action, each.error)
        else:
            log.info("Sweep of gang %s: %s, because %s", each.ref, each.decision.action, each.decision.reason)


async def sweep_once(
    client: Client,
    namespace: str | None,
    *,
    follow: Callable[[GangRef], Awaitable[object]],
    older_than: timedelta,
    dry_run: bool = False,
) -> list[SweptGang]:
    """Sweep all installations of a namespace, or of the cluster, once. Safe to repeat and to run concurrently.

    :param follow: Follows a gang that is over, which records the outcomes of its pods and releases them.
    :param older_than: Pods are released if their gang has been over, or their Job gone, for this long.
    :param dry_run: Only return what would be done, and also the gangs that would be left, each with its reason.

    Raises:
        ClusterError: the gangs could not be listed.
    """
    view = await NamespaceView.read(client, namespace)
    planned = list(_plan(view, client.server_clock.now(), older_than))
    if dry_run:
        return planned
    done = [await _act(client, one, follow) for one in planned if one.decision.action is not SweepAction.LEAVE]
    return [swept for swept in done if swept is not None]


def _plan(view: NamespaceView, now: datetime, older_than: timedelta) -> Iterator[SweptGang]:
    for gang in view.gangs:
        held = held_by_gang(view.pods(gang))
        for job in read_gangs(view.jobs(gang)):
            facts = SweepFacts(
                installation=job.installation,
                unowned_for=now - (job.ended_at or job.created_at or now),
                knows_followers=False,
                held_pods=len(held.pop(job.ref, ())),
                task=TaskEnd.UNKNOWN,
                grace=older_than,
            )
            yield _judged(job, facts)
        for ref, pods in held.items():
            gone_for = now - max(last_sign(pod, now) for pod in pods)
            if gone_for >= older_than:
                facts = SweepFacts(installation="", unowned_for=gone_for, held_pods=len(pods), grace=older_than)
                yield SweptGang(ref, VANISHED, facts, pods=pods)


def last_sign(pod: PodView, now: datetime) -> datetime:
    """Return when the pod was deleted, as happens soon after its Job, or else when it was created."""
    return deletion_requested_at(pod.metadata) or pod.metadata.creation_timestamp or now


_BY_ACTION: Final = {
    SweepAction.DELETE_LIVE: "ended",
    SweepAction.RELEASE: "released",
    SweepAction.DELETE_DELIVERED: "deleted",
    SweepAction.MARK_DELIVERED: "delivered",
    SweepAction.FINISH: "finished",
}
"""The counter of each action, which counts gangs."""
COUNTERS: Final = ("looks", *_BY_ACTION.values(), "forgotten", "failures")
"""Looks at a namespace; the gangs by action; gangs that the informers dropped from memory; errors."""


def sweep_totals() -> Counter[str]:
    """Return the counters of all sweeps of the running loop, also of those that are over. None ever decreases."""
    return loop_local(_totals)


def _totals() -> Counter[str]:
    return Counter(dict.fromkeys(COUNTERS, 0))


LOOKS_PER_CONNECTION: Final = 10
"""After so many looks the connection is read again, because its credentials may have changed."""
LINGER_S: Final = 3600.0
"""How long a namespace is swept after the last gang that was followed there. A worker that was stopped may submit the
gang of a task that has ended meanwhile."""


@dataclass(kw_only=True)
class NamespaceSweeper:
    """Sweeps one namespace until, for `LINGER_S`, nobody follows a gang there and no gang is left to be swept."""

    sweep: Sweep
    namespace: str
    read_config: Callable[[], Awaitable[ClusterConfig]]
    """Reads the connection."""
    followed: Callable[[], Collection[GangRef]]
    """Returns the gangs that this process follows in the namespace."""
    index: Callable[[JobView | PodView], str | None]
    """Returns the name of an object's gang: the index of the informers of the followers."""
    _idle_since_s: float | None = field(default=None, init=False)

    async def run(self) -> None:
        """Sweep until there is nothing to do. Raises what `read_config` raises if nobody follows a gang."""
        while True:
            try:
                config = await self.read_config()
            except Exception:  # a secrets backend may raise anything
                if not self.followed():
                    raise
                await self.sweep.clock.sleep(self.sweep.look_every_s)
                continue
            async with informers().client(config) as client:
                if await self._sweep_over(client):
                    return

    async def _sweep_over(self, client: Client) -> bool:
        """Look `LOOKS_PER_CONNECTION` times over this client. Returns whether there is nothing left to do."""
        namespace, index = self.namespace, self.index
        self.sweep.forget = lambda gang: self._forget(client.config.key, gang)
        async with (
            informers().acquire(client, JOBS, namespace, LABEL_GANG, decode=JobView, index=index) as jobs,
            informers().acquire(client, PODS, namespace, LABEL_GANG, decode=PodView, index=index) as pods,
        ):
            for _ in range(LOOKS_PER_CONNECTION):
                await self.sweep.clock.sleep(self.sweep.look_every_s)
                try:
                    is_synced = await jobs.synced(0) and await pods.synced(0)
                except InformerClosedError:
                    return False
                if not is_synced:
                    continue
                totals = sweep_totals()
                totals["looks"] += 1
                try:
                    swept = await self.sweep.run(client, NamespaceView.of_informers(jobs, pods))
                    log_swept(swept)
                    totals.update("failures" if one.error else _BY_ACTION[one.decision.action] for one in swept)
                except Exception:  # a defect must not end the sweeps of a triggerer that runs for months
                    log.exception("The sweep of namespace %s failed, and is repeated", namespace)
                    totals["failures"] += 1
                    continue
                if self.followed() or self.sweep.has_more:
                    self._idle_since_s = None
                elif self._has_idled():
                    return True
        return False

    def _has_idled(self) -> bool:
        now_s = self.sweep.clock.monotonic()
        self._idle_since_s = now_s if self._idle_since_s is None else self._idle_since_s
        return now_s - self._idle_since_s >= LINGER_S

    def _forget(self, cluster: str, gang: str) -> None:
        informers().forget(cluster, self.namespace, self.index, gang)
        sweep_totals()["forgotten"] += 1

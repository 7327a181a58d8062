"""A sweep ends the gang of a task that has ended, and changes no other gang."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.ending.deliver import mark_delivered
from airflow_provider_gangjobs.ending.sweep import ANSWER_LOOKS, LOOK_EVERY_S, NamespaceView, Sweep
from airflow_provider_gangjobs.gang.spec import OnFinish, OnKill, Policies, WaitUntil
from airflow_provider_gangjobs.gang.state.ownership import ASK_AFTER, CONFIRM_AFTER, GRACE, SweepAction, TaskEnd
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import JOBS, PODS
from tests.ends import begin_kill
from tests.examples import examples
from tests.interleaving import Gate, interleaved
from tests.provider.submission_cluster import KEY, InterleavingClient, SubmissionCluster, running_cluster
from tests.sandbox.builders import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from airflow_provider_gangjobs.ending.sweep import SweptGang
    from airflow_provider_gangjobs.gang.identity import GangRef

PROD, STAGING = (replace(KEY, installation=name) for name in ("prod", "staging"))
DELETE = Policies(OnKill.DELETE, OnFinish.DELETE_SUCCEEDED)
GRACE_S, ASK_AFTER_S = GRACE.total_seconds(), ASK_AFTER.total_seconds()
MINUTE_S = CONFIRM_AFTER.total_seconds()

ENDS = {True: TaskEnd.ENDED, False: TaskEnd.NOT_ENDED, None: TaskEnd.UNKNOWN}


class Sweeper:
    """A sweep of one installation, with the answers of its Airflow."""

    def __init__(self, cluster: SubmissionCluster, *answers: bool | None, installation: str = "prod") -> None:
        self.cluster = cluster
        self.answers = list(answers or [True])
        self.asked = 0
        self.followed: set[GangRef] = set()
        self.followed_to_the_end: list[GangRef] = []
        self.sweep = Sweep(
            installation,
            is_followed=self.followed.__contains__,
            ask=self._answer,
            follow=self._follow,
            clock=cluster.time.clock(),
        )

    async def look(self, *, after_s: float = 0.0, api: Any = None) -> list[SweepAction]:
        return [swept.decision.action for swept in await self.swept(after_s=after_s, api=api) if not swept.error]

    async def swept(self, *, after_s: float = 0.0, api: Any = None) -> list[SweptGang]:
        self.cluster.time.now += after_s
        view = await NamespaceView.read(self.cluster.client, NAMESPACE)
        return await self.sweep.run(api or self.cluster.client, view)

    async def until_confirmed(self, *, api: Any = None) -> list[SweepAction]:
        """Sweep three times: the gang has no follower, and then its task has ended in two answers."""
        looks = [await self.look(), await self.look(after_s=GRACE_S), await self.look(after_s=MINUTE_S, api=api)]
        return [action for look in looks for action in look]

    async def _answer(self, key: Any) -> TaskEnd:
        self.asked += 1
        return ENDS[self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]]

    async def _follow(self, ref: GangRef) -> None:
        self.followed_to_the_end.append(ref)


def uids(cluster: SubmissionCluster) -> list[str]:
    return [job["metadata"]["uid"] for job in cluster.live_jobs()]


def held_pods(cluster: SubmissionCluster) -> list[Any]:
    return [pod for pod in cluster.objects(PODS) if FINALIZER_HARVEST in (pod["metadata"].get("finalizers") or ())]


async def test_gang_of_an_ended_task_is_deleted_after_grace_and_confirmation(cluster):
    await cluster.submit(key=PROD, policies=DELETE)
    cluster.bench.run()
    assert await Sweeper(cluster).until_confirmed() == [SweepAction.DELETE_LIVE]
    assert cluster.live_jobs() == []
    assert held_pods(cluster) == []
    cluster.bench.run()
    cluster.bench.stop_deleted()
    cluster.bench.run()
    assert cluster.jobs() == []


ANSWERS: dict[str, tuple[bool | None, ...]] = {
    "deferred": (False,),
    "Airflow is down": (None,),
    "ended, then cleared": (True, False),
    "ended, then Airflow is down": (True, None),
}


@pytest.mark.parametrize("answers", ANSWERS.values(), ids=ANSWERS)
async def test_gang_stays_unless_two_answers_say_that_its_task_has_ended(cluster, answers: tuple[bool | None, ...]):
    ref = (await cluster.submit(key=PROD, policies=DELETE)).ref
    sweeper = Sweeper(cluster, *answers)
    assert await sweeper.until_confirmed() == []
    assert uids(cluster) == [ref.uid]
    assert sweeper.asked > 0


UNTOUCHED: dict[str, dict[str, Any]] = {
    "kept on kill": {"key": PROD, "policies": Policies(OnKill.KEEP, OnFinish.KEEP)},
    "submitted by a hook": {"key": PROD},
    "of another installation": {"key": STAGING, "policies": DELETE},
    "made before installations had ids": {"key": KEY, "policies": DELETE},
}


@pytest.mark.parametrize("submitted", UNTOUCHED.values(), ids=UNTOUCHED)
async def test_airflow_is_not_even_asked_about_a_gang_that_a_sweep_may_not_end(cluster, submitted: dict[str, Any]):
    ref = (await cluster.submit(**submitted)).ref
    sweeper = Sweeper(cluster)
    assert await sweeper.until_confirmed() == []
    assert (uids(cluster), sweeper.asked) == ([ref.uid], 0)


@pytest.mark.parametrize(
    ("answer", "is_left"),
    [
        (TaskEnd.ENDED, False),
        (TaskEnd.CLEARED, False),
        (TaskEnd.SUCCEEDED, True),
        (TaskEnd.NOT_ENDED, True),
        (TaskEnd.UNKNOWN, True),
    ],
)
async def test_gang_that_outlives_its_task_is_ended_only_if_the_task_has_failed(
    cluster, answer: TaskEnd, is_left: bool
):
    policies = Policies(OnKill.DELETE, OnFinish.KEEP, WaitUntil.SUBMITTED)
    await cluster.submit(key=PROD, policies=policies)
    sweeper = Sweeper(cluster, True)

    async def ask(key: Any) -> TaskEnd:
        return answer

    sweeper.sweep.ask = ask
    await sweeper.until_confirmed()
    assert (len(cluster.live_jobs()), sweeper.asked) == (int(is_left), 0)


async def test_gang_that_is_followed_stays_and_the_grace_begins_when_nobody_follows_it(cluster):
    ref = (await cluster.submit(key=PROD, policies=DELETE)).ref
    sweeper = Sweeper(cluster)
    sweeper.followed.add(ref)
    assert await sweeper.until_confirmed() == []
    sweeper.followed.clear()
    assert await sweeper.look(after_s=GRACE_S) == []
    assert (await sweeper.look(after_s=ASK_AFTER_S - 1), sweeper.asked) == ([], 0)
    assert uids(cluster) == [ref.uid]


@pytest.mark.parametrize("grace_s", [5.0, MINUTE_S, GRACE_S], ids=["short", "a minute", "default"])
async def test_live_gang_is_asked_about_soon(cluster, grace_s: float):
    await cluster.submit(key=PROD, policies=DELETE)
    sweeper = Sweeper(cluster)
    sweeper.sweep.grace = timedelta(seconds=grace_s)
    first_s = min(grace_s, ASK_AFTER_S)
    looks = [await sweeper.look(after_s=seconds) for seconds in (0, first_s - 1, 1, MINUTE_S)]
    assert (looks, sweeper.asked) == ([[], [], [], [SweepAction.DELETE_LIVE]], 2)


async def test_task_that_has_not_ended_is_asked_about_less_often_the_longer_nobody_follows_its_gang(cluster):
    """A user may end the task of a gang that was submitted just now before a triggerer follows the gang."""
    await cluster.submit(key=PROD, policies=DELETE)
    sweeper = Sweeper(cluster, False)
    minutes = []
    for minute in range(40):
        before = sweeper.asked
        await sweeper.look(after_s=MINUTE_S if minute else 0)
        minutes += [minute] * (sweeper.asked - before)

    assert minutes == [2, 4, 8, 13, 18, 23, 28, 33, 38]


async def test_many_gangs_are_asked_about_in_turn(cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("airflow_provider_gangjobs.ending.sweep.QUESTIONS_PER_LOOK", 2)
    for number in range(5):
        await cluster.submit(key=replace(PROD, task_id=f"task-{number}"), policies=DELETE)
    sweeper = Sweeper(cluster)
    asked: list[str] = []

    async def ask(key: Any) -> TaskEnd:
        asked.append(key.task_id)
        return TaskEnd.NOT_ENDED

    sweeper.sweep.ask = ask
    for minute in range(12):
        await sweeper.look(after_s=MINUTE_S if minute else 0)
        assert len(asked) <= 2 * max(0, minute - 1)

    assert len(set(asked[:5])) == 5


async def test_gangs_of_one_task_are_asked_about_together(cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("airflow_provider_gangjobs.ending.sweep.QUESTIONS_PER_LOOK", 2)
    monkeypatch.setattr("airflow_provider_gangjobs.ending.sweep.GANGS_PER_QUESTION", 3)
    for number in range(10):
        await cluster.submit(key=replace(PROD, run_id=f"run-{number}"), policies=DELETE)
    sweeper = Sweeper(cluster)
    asked, together = [], []

    async def ask(key: Any) -> TaskEnd:
        asked.append(key.run_id)
        await asyncio.sleep(0)
        together.append(len(asked))
        return TaskEnd.NOT_ENDED

    sweeper.sweep.ask = ask
    await sweeper.look()
    await sweeper.look(after_s=ASK_AFTER_S)

    assert (len(set(asked)), set(together)) == (6, {6})


async def test_no_further_question_is_asked_once_airflow_cannot_be_asked(cluster):
    for number in range(3):
        await cluster.submit(key=replace(PROD, task_id=f"task-{number}"), policies=DELETE)
    sweeper = Sweeper(cluster, None)

    looks = [await sweeper.look(after_s=seconds) for seconds in (0, ASK_AFTER_S)]

    assert (looks, sweeper.asked, len(uids(cluster))) == ([[], []], 1, 3)


async def test_two_installations_in_one_namespace_have_a_gang_each_and_sweep_their_own(cluster):
    staging = (await cluster.submit(key=STAGING, policies=DELETE)).ref
    prod = (await cluster.submit(key=PROD, policies=DELETE)).ref
    assert staging.name != prod.name
    assert await Sweeper(cluster, installation="prod").until_confirmed() == [SweepAction.DELETE_LIVE]
    assert uids(cluster) == [staging.uid]


@pytest.mark.parametrize("at", ["get jobs", "delete jobs"])
async def test_gang_that_a_try_adopts_meanwhile_is_kept(cluster, at: str):
    ref = (await cluster.submit(key=PROD, policies=DELETE)).ref
    api = InterleavingClient(cluster.client, at, lambda: cluster.adopt(ref, "ti-2"))
    assert await Sweeper(cluster).until_confirmed(api=api) == []
    assert (uids(cluster), api.happened) == ([ref.uid], 1)


async def test_adoption_discards_the_known_state_of_the_task(cluster):
    ref = (await cluster.submit(key=PROD, policies=DELETE)).ref
    sweeper = Sweeper(cluster)
    assert [await sweeper.look(), await sweeper.look(after_s=GRACE_S)] == [[], []]
    await cluster.adopt(ref, "ti-2")
    assert await sweeper.look(after_s=MINUTE_S) == []
    assert (uids(cluster), sweeper.asked) == ([ref.uid], 1)


async def test_delivered_gang_whose_deletion_failed_is_deleted(cluster):
    ref = (await cluster.submit(key=PROD, policies=DELETE)).ref
    cluster.finish_job(ref.name)
    await mark_delivered(cluster.client, ref, "ti-1")
    assert [await Sweeper(cluster).look(), cluster.jobs() == []] == [[], False]
    sweeper = Sweeper(cluster)
    assert [await sweeper.look(), await sweeper.look(after_s=GRACE_S)] == [[], [SweepAction.DELETE_DELIVERED]]
    assert (cluster.jobs(), sweeper.asked) == ([], 0)
    assert cluster.time.now == GRACE_S, "no pod of a gang that has ended is waited for"


async def succeeded(cluster: SubmissionCluster) -> GangRef:
    """Submit a gang that succeeds, and that its task does not deliver."""
    ref = (await cluster.submit(key=PROD, policies=DELETE, max_tries=1)).ref
    cluster.finish_job(ref.name)
    return ref


def sweeper_of_ended_task(cluster: SubmissionCluster, *ends: TaskEnd) -> Sweeper:
    sweeper = Sweeper(cluster)
    answers = iter(ends)

    async def ask(key: Any) -> TaskEnd:
        assert key == PROD
        sweeper.asked += 1
        return next(answers)

    sweeper.sweep.ask = ask
    return sweeper


async def test_cleared_task_runs_again_after_a_sweep_has_written_the_mark_of_its_delivery(cluster):
    ref = await succeeded(cluster)
    sweeper = sweeper_of_ended_task(cluster, TaskEnd.SUCCEEDED)

    looks = [await sweeper.look(), await sweeper.look(after_s=GRACE_S), await sweeper.look(after_s=MINUTE_S)]

    assert (looks, sweeper.asked) == ([[], [SweepAction.MARK_DELIVERED], []], 1)
    (job,) = map(read_job, cluster.jobs())
    assert (job.ref, job.is_delivered, job.claim.policies) == (ref, True, replace(DELETE, on_finish=OnFinish.KEEP))
    again = await cluster.submit(key=PROD, claim="ti-2", policies=DELETE, max_tries=2)
    assert (again.attempt, again.adopted) == (1, False)


@pytest.mark.parametrize("end", [TaskEnd.UNKNOWN, TaskEnd.NOT_ENDED, TaskEnd.CLEARED, TaskEnd.ENDED])
async def test_success_that_airflow_has_not_accepted_stays_undelivered(cluster, end: TaskEnd):
    ref = await succeeded(cluster)
    sweeper = sweeper_of_ended_task(cluster, end)

    assert [await sweeper.look(), await sweeper.look(after_s=GRACE_S), sweeper.asked] == [[], [], 1]

    adopted = await cluster.submit(key=PROD, claim="ti-2", policies=DELETE)
    assert (adopted.ref, adopted.state) == (ref, "succeeded")


async def test_task_that_has_not_ended_is_asked_about_until_it_has_succeeded(cluster):
    await succeeded(cluster)
    sweeper = sweeper_of_ended_task(cluster, TaskEnd.NOT_ENDED, TaskEnd.SUCCEEDED)
    await sweeper.look()

    looks = [await sweeper.look(after_s=seconds) for seconds in (GRACE_S, MINUTE_S, ANSWER_LOOKS * LOOK_EVERY_S)]

    assert (looks, sweeper.asked) == ([[], [], [SweepAction.MARK_DELIVERED]], 2)


async def test_success_that_a_try_adopts_meanwhile_is_not_marked(cluster):
    ref = await succeeded(cluster)
    sweeper = sweeper_of_ended_task(cluster, TaskEnd.SUCCEEDED)
    await sweeper.look()
    api = InterleavingClient(cluster.client, "patch jobs", lambda: cluster.adopt(ref, "ti-2"))

    assert await sweeper.look(after_s=GRACE_S, api=api) == []

    (job,) = map(read_job, cluster.jobs())
    assert (job.claim.id, job.is_delivered, api.happened) == ("ti-2", False, 1)


async def test_held_pods_of_an_ended_gang_are_harvested_once_in_each_grace(cluster):
    ref = (await cluster.submit(key=PROD, policies=DELETE)).ref
    cluster.bench.run()
    for pod in cluster.bench.live_pods(ref.name):
        cluster.bench.succeed(pod)
    cluster.bench.run()
    sweeper = Sweeper(cluster)
    looks = [await sweeper.look(after_s=GRACE_S) for _ in range(3)]
    assert looks == [[], [SweepAction.RELEASE], [SweepAction.RELEASE]]
    assert sweeper.followed_to_the_end == [ref, ref]


async def vanished(cluster: SubmissionCluster, **submitted: Any) -> GangRef:
    ref = (await cluster.submit(**submitted)).ref
    cluster.bench.run()
    cluster.bench.registry.delete(JOBS, ref.name, ref.namespace, propagation="Background")
    cluster.bench.run()
    assert len(held_pods(cluster)) == 4
    return ref


@pytest.mark.parametrize(
    ("key", "held"), [(PROD, 0), (STAGING, 4), (KEY, 0)], ids=["own", "of another installation", "of none"]
)
async def test_held_pods_of_a_vanished_job_are_released_after_the_grace(cluster, key: Any, held: int):
    await vanished(cluster, key=key)
    sweeper = Sweeper(cluster)
    assert [await sweeper.look(), len(held_pods(cluster))] == [[], 4]
    swept = await sweeper.swept(after_s=GRACE_S)
    assert [gang.error for gang in swept] == [""] * len(swept)
    assert len(held_pods(cluster)) == held


async def test_refused_release_of_a_vanished_job_is_repeated_at_the_next_look(cluster):
    await vanished(cluster, key=PROD)
    sweeper = Sweeper(cluster)
    await sweeper.look()
    cluster.faults.add(Fault(FaultKind.STATUS, method="GET", path="/jobs/", code=403, times=1))
    assert await sweeper.look(after_s=GRACE_S) == []
    assert await sweeper.look(after_s=LOOK_EVERY_S) == [SweepAction.RELEASE]


async def test_outcomes_of_the_pods_of_a_vanished_job_are_logged(cluster, caplog: pytest.LogCaptureFixture):
    ref = await vanished(cluster, key=PROD)
    sweeper = Sweeper(cluster)
    await sweeper.look()

    await sweeper.look(after_s=GRACE_S)

    assert f"Gang {ref}: its Job is gone. Outcomes of its 4 held pods:\nrank  outcome" in caplog.text


async def test_pods_stay_held_while_their_follower_handles_the_deletion(cluster):
    sweeper = Sweeper(cluster)
    sweeper.followed.add(await vanished(cluster, key=PROD))
    assert [await sweeper.look(), await sweeper.look(after_s=GRACE_S)] == [[], []]
    assert len(held_pods(cluster)) == 4


async def test_refused_deletion_is_reported_and_repeated(cluster):
    await cluster.submit(key=PROD, policies=DELETE)
    cluster.faults.add(Fault(FaultKind.STATUS, method="DELETE", code=403, times=1))
    sweeper = Sweeper(cluster)
    assert await sweeper.until_confirmed() == []
    assert await sweeper.look() == [SweepAction.DELETE_LIVE]


class PagesUngated:
    """The client of a process that waits for its turn before each request, except for pages of a list."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate._api if name == "list_views" else self._gate, name)


OTHERS: dict[str, Callable[[SubmissionCluster, GangRef], Callable[[Any], Awaitable[Any]]]] = {
    "kill": lambda cluster, ref: lambda api: begin_kill(api, ref, "ti-1"),
    "deliver": lambda cluster, ref: lambda api: mark_delivered(api, ref, "ti-1"),
}


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(st.integers(0, 2), max_size=24), other=st.sampled_from(sorted(OTHERS)))
async def test_a_try_that_adopts_or_submits_has_one_live_gang_whoever_sweeps_kills_or_delivers(turns, other):
    async with running_cluster() as cluster:
        ref = (await cluster.submit(key=PROD, policies=DELETE)).ref
        sweeper = Sweeper(cluster)
        assert [await sweeper.look(), await sweeper.look(after_s=GRACE_S)] == [[], []]
        cluster.time.now += MINUTE_S
        order: Iterator[int] = iter(turns)
        _, submission, _ = await interleaved(
            cluster.client,
            order,
            lambda api: sweeper.look(api=PagesUngated(api)),
            lambda api: cluster.submit(key=PROD, claim="ti-2", policies=DELETE, api=api),
            OTHERS[other](cluster, ref),
        )
        assert not isinstance(submission, BaseException), submission
        (job,) = cluster.live_jobs()
        assert (job["metadata"]["uid"], read_job(job).claim.id) == (submission.ref.uid, "ti-2")

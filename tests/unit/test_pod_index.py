"""What the known pods of a gang say: their counts, the ranks that are there, and whether they are complete."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.gang.state.gang_state import observe
from airflow_provider_gangjobs.gang.state.phase import has_all_pods
from airflow_provider_gangjobs.gang.state.pods import PodIndex
from airflow_provider_gangjobs.kube.views import parse_indexes
from tests.examples import examples
from tests.unit.builders import REF, JobBuilder, PodBuilder, job, pod

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.kube.views import PodView


# -- Counting pods as they change has the same result as counting all of them again ----------------------------------

RANKS = 3
STATES: dict[str, Callable[[PodBuilder], PodBuilder]] = {
    "new": lambda made: made,
    "held": lambda made: made.held(),
    "refused": lambda made: made.unschedulable("0/3 nodes are available: 3 Insufficient cpu."),
    "refused otherwise": lambda made: made.unschedulable("the gang is not complete"),
    "gated": lambda made: made.gated("kueue.x-k8s.io/topology"),
    "not gated any more": lambda made: made.gated(),
    "placed": lambda made: made.on("node-1"),
    "without its image": lambda made: made.on("node-1").waiting("ErrImagePull", "no such image"),
    "without its secret": lambda made: made.on("node-1").waiting("CreateContainerConfigError", "no secret"),
    "running": lambda made: made.on("node-1").running(since=5),
    "running since later": lambda made: made.on("node-1").running(since=9),
    "succeeded": lambda made: made.held().on("node-1").succeeded(),
    "failed": lambda made: made.on("node-1").failed(),
    "deleted while it ran": lambda made: made.held().on("node-1").running().deleted(20),
    "of another Job": lambda made: made.of_job("another").running(),
}
JOBS = {
    "assembling": job(RANKS).started(1),
    "with an index done": job(RANKS).started(1).counts(succeeded=1, completedIndexes="1"),
    "complete": job(RANKS).started(1).complete(60),
}
NAMES = ["a", "b", "c", "d", "e"]


def _shown(name: str, rank: int, state: str) -> PodView:
    return STATES[state](pod(name).rank(rank)).view()


changes = st.lists(
    st.tuples(st.sampled_from(NAMES), st.none() | st.sampled_from(list(STATES))), min_size=1, max_size=30
)
ranks_of_pods = st.fixed_dictionaries({name: st.integers(0, RANKS - 1) for name in NAMES})


@settings(max_examples=examples(150), deadline=None)
@given(changes=changes, ranks=ranks_of_pods, seen_job=st.sampled_from(list(JOBS)))
def test_index_of_single_changes_equals_index_of_all_pods(changes, ranks, seen_job):
    pods: dict[str, PodView] = {}
    index = PodIndex(REF)
    for name, state in changes:
        if state is None:
            index.remove([pods.pop(name)] if name in pods else [])
        else:
            pods[name] = _shown(name, ranks[name], state)
            index.update([pods[name]])
        # The index is also read between the changes, because a cached count must not become wrong.
        at = JOBS[seen_job].read()
        assert observe(at, index, None, REF) == observe(at, pods.values(), None, REF)


def test_rank_counts_as_long_as_one_of_its_pods_is_there():
    first, second = _shown("a", 0, "failed"), _shown("b", 0, "running")
    index = PodIndex(REF, [first, second])
    assert index.counts(JOBS["assembling"].read()).started == 1
    index.remove([first])
    assert index.counts(JOBS["assembling"].read()).started == 1
    index.remove([second])
    assert index.counts(JOBS["assembling"].read()).started == 0


@pytest.mark.parametrize("state", ["refused", "without its image"])
def test_problem_of_a_pod_is_dropped_when_the_pod_runs(state):
    index = PodIndex(REF, [_shown("a", 0, state)])
    assert bool(index.pods_with_errors) + bool(index.refusals) == 1
    index.update([_shown("a", 0, "running")])
    assert (dict(index.pods_with_errors), dict(index.refusals)) == ({}, {})


def test_pods_of_another_job_are_ignored():
    assert len(PodIndex(REF, [_shown("a", 0, "of another Job")])) == 0


# -- A rank counts as long as one of its pods exists, or the Job has completed it ------------------------------------

INDEXES = st.one_of(st.integers(0, 20), st.sampled_from([100_000, 2**31]))
SPANS = ["", "0", "0-3,5", "2,4,6-30", "7,99998-100002"]


@settings(max_examples=examples(200), deadline=None)
@given(steps=st.lists(st.tuples(INDEXES, st.booleans()), max_size=40), done=st.sampled_from(SPANS))
def test_rank_counts_while_one_of_its_pods_exists_or_the_job_has_completed_it(steps, done):
    index, model = PodIndex(REF), Counter()
    gang = job(2**31).started(1).counts(completedIndexes=done).read()
    for rank, comes in steps:
        if comes:
            index.update([pod(f"{rank}-{model[rank]}").rank(rank).view()])
            model[rank] += 1
        elif model[rank]:
            model -= Counter([rank])
            index.remove([pod(f"{rank}-{model[rank]}").rank(rank).view()])
        there = set(model)
        assert index.counts(gang).created == len(there | parse_indexes(done))
        assert index.has_one_pod_per_rank is (model.total() == len(there))
        assert all(index.has_exactly_ranks(number) is (there == set(range(number))) for number in range(4))


@pytest.mark.parametrize("missing", [0, 1, 5_000, 9_999])
def test_missing_rank_among_many_is_found(missing: int):
    pods = [pod(f"train-{rank}").rank(rank).view() for rank in range(10_000)]
    index = PodIndex(REF, pods)
    assert index.has_exactly_ranks(10_000)
    index.remove([pods[missing]])
    assert not index.has_exactly_ranks(10_000)
    assert index.has_exactly_ranks(9_999) is (missing == 9_999)


# -- The known pods of a gang count as complete only if this is certain. Otherwise the pods are listed ---------------


def complete_job() -> JobBuilder:
    job = JobBuilder(RANKS).started(1).complete(10)
    job.obj["metadata"]["generation"] = 2
    return job


def pod_of_rank(rank: int, name: str = "") -> PodBuilder:
    return PodBuilder(name or f"pod-{rank}").rank(rank).on("node").succeeded(9)


def pods() -> list[PodView]:
    return [pod_of_rank(rank).view() for rank in range(RANKS)]


def uids(seen: list[PodView]) -> set[str]:
    return {one.metadata.uid for one in seen}


def all_known(job: JobBuilder | None, seen: list[PodView], recorded: AbstractSet[str] = frozenset()) -> bool | None:
    return has_all_pods(job.read() if job else None, PodIndex(REF, seen), recorded, REF)


def test_one_succeeded_pod_for_each_rank_is_complete() -> None:
    assert all_known(complete_job(), pods()) is True
    assert all_known(complete_job(), pods(), uids(pods())) is True


DOUBTS: dict[str, Callable[[JobBuilder], object]] = {
    "its spec has changed since it was let run": lambda job: job.obj["metadata"].update(generation=3),
    "it is not known whether its spec has changed": lambda job: job.obj["metadata"].pop("generation"),
    "a pod has failed": lambda job: job.counts(failed=1),
    "fewer have succeeded than it has ranks": lambda job: job.counts(succeeded=RANKS - 1),
    "it has more ranks": lambda job: job.spec(completions=RANKS + 1),
    "it runs more pods at once than it has ranks": lambda job: job.spec(parallelism=RANKS + 1),
    "it is another Job": lambda job: job.obj["metadata"].update(uid="another"),
}


@pytest.mark.parametrize("doubt", DOUBTS.values(), ids=DOUBTS)
def test_job_that_may_have_had_other_pods_is_not_complete(doubt: Callable[[JobBuilder], object]) -> None:
    job = complete_job()
    doubt(job)
    assert all_known(job, pods()) is None


@pytest.mark.parametrize("job", [None, JobBuilder(RANKS).started(1), JobBuilder(RANKS).started(1).failed(10)])
def test_job_that_has_not_succeeded_is_not_complete(job: JobBuilder | None) -> None:
    assert all_known(job, pods()) is None


SIGHTS = {
    "a rank has two pods": [*pods(), pod_of_rank(0, "again").view()],
    "a rank has two pods and another none": [*pods()[:-1], pod_of_rank(0, "again").view()],
    "a rank has failed": [*pods()[:-1], PodBuilder("pod-2").rank(2).on("node").failed(1, 9).view()],
    "a rank has failed and another is missing": [*pods()[:-2], PodBuilder("pod-2").rank(2).failed(1, 9).view()],
    "a pod has no rank": [*pods()[:-1], PodBuilder("pod-2").on("node").succeeded(9).view()],
    "a pod has a rank that the Job has not": [*pods()[:-1], pod_of_rank(RANKS).view()],
}


@pytest.mark.parametrize("seen", SIGHTS.values(), ids=SIGHTS)
def test_pods_that_are_not_one_success_for_each_rank_are_not_complete(seen: list[PodView]) -> None:
    assert all_known(complete_job(), seen) is None


BEHIND = {
    "a rank is missing": pods()[:-1],
    "no pod was seen yet": [],
    "a rank still runs as far as is seen": [*pods()[:-1], PodBuilder("pod-2").rank(2).on("node").running(3).view()],
}


@pytest.mark.parametrize("seen", BEHIND.values(), ids=BEHIND)
def test_pods_that_a_watch_may_complete_are_waited_for(seen: list[PodView]) -> None:
    assert all_known(complete_job(), seen) is False


def test_recorded_pod_that_is_gone_makes_the_pods_incomplete() -> None:
    assert all_known(complete_job(), pods(), {"a-pod-that-was-preempted"}) is None

"""Counting pods as they change has the same result as counting all of them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.gang.state.observation import observe
from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
from tests.examples import examples
from tests.unit.builders import REF, PodBuilder, job, pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.kube.views import PodView

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

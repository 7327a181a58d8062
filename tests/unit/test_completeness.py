"""The known pods of a gang count as complete only if this is certain. Otherwise the pods are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.state.phase import Completeness, check_completeness
from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
from tests.unit.builders import REF, JobBuilder, PodBuilder

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.kube.views import PodView

RANKS = 3


def complete_job() -> JobBuilder:
    job = JobBuilder(RANKS).started(1).complete(10)
    job.obj["metadata"]["generation"] = 2
    return job


def pod(rank: int, name: str = "") -> PodBuilder:
    return PodBuilder(name or f"pod-{rank}").rank(rank).on("node").succeeded(9)


def pods() -> list[PodView]:
    return [pod(rank).view() for rank in range(RANKS)]


def uids(seen: list[PodView]) -> set[str]:
    return {one.metadata.uid for one in seen}


def completeness_of(
    job: JobBuilder | None, seen: list[PodView], recorded: AbstractSet[str] = frozenset()
) -> Completeness:
    return check_completeness(job.read() if job else None, PodIndex(REF, seen), recorded, REF)


def test_one_succeeded_pod_for_each_rank_is_complete() -> None:
    assert completeness_of(complete_job(), pods()) is Completeness.COMPLETE
    assert completeness_of(complete_job(), pods(), uids(pods())) is Completeness.COMPLETE


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
    assert completeness_of(job, pods()) is Completeness.UNKNOWN


@pytest.mark.parametrize("job", [None, JobBuilder(RANKS).started(1), JobBuilder(RANKS).started(1).failed(10)])
def test_job_that_has_not_succeeded_is_not_complete(job: JobBuilder | None) -> None:
    assert completeness_of(job, pods()) is Completeness.UNKNOWN


SIGHTS = {
    "a rank has two pods": [*pods(), pod(0, "again").view()],
    "a rank has two pods and another none": [*pods()[:-1], pod(0, "again").view()],
    "a rank has failed": [*pods()[:-1], PodBuilder("pod-2").rank(2).on("node").failed(1, 9).view()],
    "a rank has failed and another is missing": [*pods()[:-2], PodBuilder("pod-2").rank(2).failed(1, 9).view()],
    "a pod has no rank": [*pods()[:-1], PodBuilder("pod-2").on("node").succeeded(9).view()],
    "a pod has a rank that the Job has not": [*pods()[:-1], pod(RANKS).view()],
}


@pytest.mark.parametrize("seen", SIGHTS.values(), ids=SIGHTS)
def test_pods_that_are_not_one_success_for_each_rank_are_not_complete(seen: list[PodView]) -> None:
    assert completeness_of(complete_job(), seen) is Completeness.UNKNOWN


BEHIND = {
    "a rank is missing": pods()[:-1],
    "no pod was seen yet": [],
    "a rank still runs as far as is seen": [*pods()[:-1], PodBuilder("pod-2").rank(2).on("node").running(3).view()],
}


@pytest.mark.parametrize("seen", BEHIND.values(), ids=BEHIND)
def test_pods_that_a_watch_may_complete_are_waited_for(seen: list[PodView]) -> None:
    assert completeness_of(complete_job(), seen) is Completeness.PENDING


def test_recorded_pod_that_is_gone_makes_the_pods_incomplete() -> None:
    assert completeness_of(complete_job(), pods(), {"a-pod-that-was-preempted"}) is Completeness.UNKNOWN

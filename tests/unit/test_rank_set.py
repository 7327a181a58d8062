"""A rank counts as long as one of its pods exists, or the Job has completed it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.gang.state.pod_index import PodIndex
from airflow_provider_gangjobs.kube.views import parse_indexes
from tests.examples import examples
from tests.unit.builders import REF, job, pod

RANKS = st.one_of(st.integers(0, 20), st.sampled_from([100_000, 2**31]))
SPANS = ["", "0", "0-3,5", "2,4,6-30", "7,99998-100002"]


@settings(max_examples=examples(200), deadline=None)
@given(steps=st.lists(st.tuples(RANKS, st.booleans()), max_size=40), done=st.sampled_from(SPANS))
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

"""A rank is in a set as long as one of its pods is."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.gang.state.pod_index import RankSet
from airflow_provider_gangjobs.kube.views import parse_indexes, parse_spans
from tests.examples import examples

RANKS = st.one_of(st.integers(0, 20), st.sampled_from([100_000, 2**31, "a-uid", "another-uid"]))
SPANS = ["", "0", "0-3,5", "2,4,6-30", "7,99998-100002"]


@settings(max_examples=examples(200), deadline=None)
@given(steps=st.lists(st.tuples(RANKS, st.booleans()), max_size=40), done=st.sampled_from(SPANS))
def test_rank_is_in_the_set_while_one_of_its_pods_is(steps, done):
    ranks, model = RankSet(), Counter()
    for rank, comes in steps:
        if comes:
            ranks.add(rank)
            model[rank] += 1
        elif model[rank]:
            ranks.remove(rank)
            model -= Counter([rank])
        there = {one for one, pods in model.items() if pods}
        assert len(ranks) == len(there)
        assert ranks.union_size(parse_spans(done)) == len(there | parse_indexes(done))
        assert all(ranks.is_exactly(number) is (there == set(range(number))) for number in range(4))


@pytest.mark.parametrize("missing", [0, 1, 50_000, 99_999])
def test_missing_rank_among_many_is_found(missing: int):
    ranks = RankSet()
    for rank in range(100_000):
        ranks.add(rank)
    assert ranks.is_exactly(100_000)
    ranks.remove(missing)
    assert not ranks.is_exactly(100_000)
    assert not ranks.is_exactly(99_999) or missing == 99_999

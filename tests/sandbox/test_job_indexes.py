"""Completion indexes: their compact text, and the lowest free indexes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox.controllers.job.indexed_job import Indexes, first_free, index_of

index_sets = st.sets(st.integers(0, 30))


@pytest.mark.parametrize(
    ("indexes", "text"),
    [([], ""), ([3], "3"), ([0, 1], "0,1"), ([0, 1, 2], "0-2"), ([5, 1, 3, 4, 7], "1,3-5,7")],
    ids=str,
)
def test_indexes_are_written_in_compact_text(indexes, text):
    assert str(Indexes.of(indexes)) == text


@given(index_sets)
def test_written_indexes_read_back_equal(indexes):
    assert set(Indexes.parse(str(Indexes.of(indexes)), 31)) == indexes


@given(index_sets, index_sets)
def test_union_holds_what_either_holds(left, right):
    union = Indexes.of(left) | Indexes.of(right)
    assert set(union) == left | right
    assert len(union) == len(left | right)
    assert all((index in union) == (index in left | right) for index in range(32))


def test_indexes_above_completions_are_ignored():
    assert str(Indexes.parse("0-5,8,9-12", 10)) == "0-5,8,9"


def test_corrupt_part_is_ignored():
    assert str(Indexes.parse("0,x,3-,4", 10)) == "0,4"


@given(index_sets, st.integers(0, 10), st.integers(0, 32))
def test_lowest_free_indexes_are_found(taken, count, completions):
    expected = [index for index in range(completions) if index not in taken][:count]
    assert first_free(Indexes.of(taken), count, completions) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5", "two", "٣"], ids=repr)
def test_invalid_index_annotation_is_ignored(text):
    pod = {"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": text}}}
    assert index_of(pod) is None

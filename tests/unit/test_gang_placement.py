"""Which Jobs can be a gang, and what happens to the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from airflow_provider_gangjobs.gang.render.placement import (
    Placement,
    PlacementDecision,
    Shape,
    decide_placement,
    ineligibility_reason,
    shape_of,
)
from airflow_provider_gangjobs.gang.spec import GangPolicy, GangSpec

FOUR = Shape(parallelism=4, completions=4, indexed=True, backoff_limit=0)

INELIGIBLE_SHAPES = {
    "not indexed": ({"indexed": False}, "NonIndexed"),
    "a tail of completions": ({"completions": 8}, "completions (8) is not equal to parallelism (4)"),
    "fewer completions": ({"completions": 2}, "completions (2) is not equal to parallelism (4)"),
    "no completions": ({"completions": None}, "completions (None)"),
    "replacement pods": ({"backoff_limit": 3}, "kubernetes#142330"),
    "replacement pods per index": ({"per_index_backoff": True}, "kubernetes#142330"),
    "owned by a controller": ({"controller": "CronJob/x"}, "CronJob/x owns the Job"),
}


@pytest.mark.parametrize(("change", "reason"), INELIGIBLE_SHAPES.values(), ids=INELIGIBLE_SHAPES)
def test_other_shapes_cannot_be_a_gang(change, reason):
    shape = structs.replace(FOUR, **change)
    assert reason in (ineligibility_reason(shape) or "")
    assert decide_placement(shape, GangPolicy.REQUIRED, scheduler="v1beta1").placement is Placement.REFUSED
    assert decide_placement(shape, GangPolicy.PREFERRED, scheduler="v1beta1").placement is Placement.BASIC


def test_four_indexed_pods_at_once_are_a_gang():
    assert decide_placement(FOUR, GangPolicy.REQUIRED, scheduler="v1beta1") == PlacementDecision(
        Placement.GANG, "v1beta1"
    )


def test_one_pod_is_basic_without_a_note():
    one = Shape(parallelism=1, completions=1, indexed=True, backoff_limit=0)
    assert decide_placement(one, GangPolicy.REQUIRED, scheduler=None) == PlacementDecision(Placement.BASIC, "one pod")


def test_cluster_without_api_is_refused_or_fallen_back_on():
    assert decide_placement(FOUR, GangPolicy.REQUIRED, scheduler=None, unserved="old") == PlacementDecision(
        Placement.REFUSED, "old"
    )
    assert decide_placement(FOUR, GangPolicy.PREFERRED, scheduler=None, unserved="old") == PlacementDecision(
        Placement.BASIC, "old"
    )


def test_policy_off_is_no_gang_on_any_cluster():
    assert decide_placement(FOUR, GangPolicy.OFF, scheduler="v1beta1") == PlacementDecision(Placement.OFF)


def test_link_of_the_user_is_not_changed():
    brought = structs.replace(FOUR, user_gang_link="spec.scheduling", indexed=False)
    assert decide_placement(brought, GangPolicy.REQUIRED, scheduler=None) == PlacementDecision(Placement.USER_PROVIDED)


@given(
    st.builds(Shape, st.integers(1, 5), st.none() | st.integers(1, 5), st.booleans(), st.integers(0, 2), st.booleans()),
    st.sampled_from(GangPolicy),
    st.none() | st.just("v1beta1"),
)
def test_only_a_gang_is_reported_as_a_gang(shape, policy, dialect):
    decision = decide_placement(shape, policy, scheduler=dialect)
    if decision.placement is Placement.GANG:
        assert shape.indexed
        assert shape.parallelism == shape.completions > 1
        assert (policy, dialect) != (GangPolicy.OFF, None)
    assert (decision.placement is Placement.REFUSED) <= (policy is GangPolicy.REQUIRED)


@pytest.mark.parametrize("text", ["gang:v1beta1", "basic:no API: none", "off", "brought"])
def test_decision_is_read_as_it_was_written(text):
    assert str(PlacementDecision.parse(text)) == text


def test_unknown_decision_is_no_gang():
    assert PlacementDecision.parse("volcano:x") == PlacementDecision(Placement.OFF)


def manifest(**spec):
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (GangSpec(), (1, 1, True)),
        (GangSpec(workers=4), (4, 4, True)),
        (GangSpec(manifest=manifest(parallelism=3, completions=3)), (3, 3, False)),
        (GangSpec(manifest=manifest(parallelism=3, completions=3, completionMode="Indexed")), (3, 3, True)),
        (GangSpec(manifest=manifest(parallelism=3), workers=5), (5, 5, True)),
        (GangSpec(manifest=manifest(parallelism=3)), (3, None, False)),
        (GangSpec(manifest=manifest(completionMode="NonIndexed"), workers=2), (2, 2, False)),
    ],
    ids=[
        "nothing",
        "workers",
        "manifest",
        "indexed manifest",
        "both",
        "work queue",
        "workers of a NonIndexed manifest",
    ],
)
def test_shape_follows_workers_then_manifest(spec, expected):
    shape = shape_of(spec, dict(spec.manifest or {}))
    assert (shape.parallelism, shape.completions, shape.indexed) == expected


def test_shape_includes_the_fields_that_others_manage():
    job = manifest(template={"spec": {"schedulingGroup": {"podGroupName": "g"}}})
    job["metadata"] = {
        "labels": {"kueue.x-k8s.io/queue-name": "q"},
        "ownerReferences": [{"kind": "JobSet", "name": "s", "controller": True}],
    }
    shape = shape_of(GangSpec(manifest=job), job)
    assert shape.user_gang_link == "spec.template.spec.schedulingGroup"
    assert (shape.kueue_queue, shape.controller) == ("q", "JobSet/s")

"""What stays of a gang, and what of it is a leak."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_gangjobs.gang.gang_lists import LeakKind, find_leak
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube import well_known
from tests.unit.builders import JobBuilder, at, job

DELIVERED = (well_known.ANNOTATION_DELIVERED, "2026-08-01T12:01:00+00:00")


def gang() -> JobBuilder:
    return job().resumed(3).record(task=TaskKey("etl", "run", "train"))


CASES: dict[str, tuple[JobBuilder, dict[str, Any], LeakKind | None]] = {
    "live, and its pods are held": (gang(), {"held_pods": 4}, None),
    "half submitted": (gang(), {"is_half_submitted": True}, LeakKind.INCOMPLETE),
    "over, and its pods are held": (gang().complete(9).annotation(*DELIVERED), {"held_pods": 1}, LeakKind.HELD_PODS),
    "succeeded and not delivered": (gang().complete(9), {}, LeakKind.UNDELIVERED),
    "failed, without a time to live": (gang().failed(9), {}, LeakKind.KEPT_FOR_EVER),
    "of a submission id, ended": (job().complete(9), {}, LeakKind.KEPT_FOR_EVER),
    "delivered, without a time to live": (gang().complete(9).annotation(*DELIVERED), {}, LeakKind.KEPT_FOR_EVER),
    "stopped, and its pods end": (
        gang().suspended(5).stopped(),
        {},
        None,
    ),
}


@pytest.mark.parametrize(("made", "facts", "kind"), CASES.values(), ids=CASES)
def test_gang_leaves(made: JobBuilder, facts: dict[str, Any], kind: LeakKind | None) -> None:
    leak = find_leak(made.read(), now=at(3600), grace=timedelta(minutes=15), **facts)

    assert (leak.kind if leak else None) == kind
    assert leak is None or (leak.is_leak and leak.remedy)


def test_what_happens_within_the_grace_is_no_leak() -> None:
    for made, facts, kind in CASES.values():
        leak = find_leak(made.read(), now=at(60), grace=timedelta(minutes=15), **facts)
        assert leak is None or kind is LeakKind.INCOMPLETE  # the caller judges the age of a half-submitted gang


@pytest.mark.parametrize("made", [job().complete(9), gang().failed(9)], ids=["ended", "of a task that has failed"])
def test_job_that_is_deleted_later_is_kept_and_no_leak(made: JobBuilder) -> None:
    kept = made.record(ttl_s=7200)

    leak = find_leak(read_job(kept.obj), now=at(3600), grace=timedelta(minutes=15))

    assert leak is not None
    assert (leak.kind, leak.until, leak.is_leak) == (LeakKind.KEPT, at(7209), False)

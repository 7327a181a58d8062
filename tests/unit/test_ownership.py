"""The decision of a sweep about a gang without an owner."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.state.ownership import (
    ASK_AFTER,
    CONFIRM_AFTER,
    GRACE,
    SweepAction,
    SweepFacts,
    TaskEnd,
    confirm_end,
    decide_sweep,
    grace_of,
    is_settled,
    may_release_orphaned_pods,
)
from airflow_provider_gangjobs.kube import well_known
from tests.annotations import policies
from tests.unit.builders import JobBuilder, job

LEAVE, ASK, RELEASE = SweepAction.LEAVE, SweepAction.ASK, SweepAction.RELEASE
TASK = TaskKey("etl", "run", "train", installation="prod")
UNOWNED = SweepFacts(installation="prod", unowned_for=GRACE, held_pods=0)
HELD = replace(UNOWNED, held_pods=3)
DELIVERED_REASON = "its outcome was delivered, and on_finish is delete"
ENDED = replace(UNOWNED, task=TaskEnd.ENDED)
SUCCEEDED = replace(UNOWNED, task=TaskEnd.SUCCEEDED)


def gang(*, installation: str = "prod", on_kill: str = "delete", on_finish: str = "delete_succeeded") -> JobBuilder:
    made = job().resumed(3).record(task=TASK).claim("ti", policies=policies(on_kill, on_finish))
    return made.label(well_known.LABEL_INSTALLATION, installation)


def delivered(made: JobBuilder) -> JobBuilder:
    return made.annotation(well_known.ANNOTATION_DELIVERED, "2026-08-01T12:01:00+00:00")


def outliving(made: JobBuilder) -> JobBuilder:
    return made.claim("ti", policies=policies(wait_until="submitted"))


def stopped(made: JobBuilder) -> JobBuilder:
    return made.suspended(9).stopped()


@pytest.mark.parametrize(
    ("made", "grace"),
    [
        (gang(), ASK_AFTER),
        (gang().suspended(), ASK_AFTER),
        (gang().complete(9), GRACE),
        (stopped(gang()), GRACE),
    ],
    ids=["live", "half submitted", "ended", "stopped"],
)
def test_grace_of_a_live_gang_is_short(made: JobBuilder, grace: timedelta) -> None:
    assert grace_of(made.read(), GRACE) == grace
    assert grace_of(made.read(), timedelta(seconds=1)) == timedelta(seconds=1)


NAMELESS = job().resumed(3).record(task=TASK)
NAMELESS_ENDED = job().resumed(3).complete(9).label(well_known.LABEL_INSTALLATION, "prod")
WITHOUT_POLICY = gang().claim("ti")
WITHOUT_TASK = gang().record(task=None)
CASES: dict[str, tuple[JobBuilder, SweepFacts, SweepAction]] = {
    "live, of another installation": (gang(installation="staging"), ENDED, LEAVE),
    "live, made before installations had ids": (NAMELESS, ENDED, LEAVE),
    "live, and the sweep has no id": (NAMELESS, replace(ENDED, installation=""), LEAVE),
    "held, of another installation": (gang(installation="staging").complete(9), HELD, LEAVE),
    "held, and neither has an id": (job().resumed(3).complete(9), replace(HELD, installation=""), RELEASE),
    "live and followed": (gang(), replace(ENDED, unowned_for=None), LEAVE),
    "live, within the grace": (gang(), replace(ENDED, unowned_for=GRACE / 2), LEAVE),
    "live, Airflow was not asked": (gang(), UNOWNED, ASK),
    "live, Airflow is down": (gang(), replace(UNOWNED, task=TaskEnd.UNKNOWN), LEAVE),
    "live, its task is deferred": (gang(), replace(UNOWNED, task=TaskEnd.NOT_ENDED), LEAVE),
    "live, its task has ended once": (gang(), replace(UNOWNED, task=TaskEnd.ENDED_ONCE), LEAVE),
    "live, its task has ended": (gang(), ENDED, SweepAction.DELETE_LIVE),
    "half submitted, its task has ended": (gang().suspended(), ENDED, SweepAction.DELETE_LIVE),
    "live, its end is announced, its task has ended": (
        gang().decided("FailureTarget", 9),
        ENDED,
        SweepAction.DELETE_LIVE,
    ),
    "live, kept after a kill": (gang(on_kill="keep"), ENDED, LEAVE),
    "live, without a policy": (WITHOUT_POLICY, ENDED, LEAVE),
    "live, without a task": (WITHOUT_TASK, ENDED, LEAVE),
    "live, without a claim": (gang().claim("", policies=policies()), ENDED, LEAVE),
    "live, handed over by its task": (delivered(gang().claim("", policies=policies())), ENDED, LEAVE),
    "live, outlives its task, Airflow was not asked": (outliving(gang()), UNOWNED, ASK),
    "live, outlives its task, which has failed": (outliving(gang()), ENDED, SweepAction.DELETE_LIVE),
    "live, its task has succeeded": (gang(), SUCCEEDED, LEAVE),
    "complete, Airflow was not asked": (gang().complete(9), UNOWNED, ASK),
    "complete, its task has succeeded": (gang().complete(9), SUCCEEDED, SweepAction.MARK_DELIVERED),
    "complete, kept, its task has succeeded": (
        gang(on_finish="keep").complete(9),
        SUCCEEDED,
        SweepAction.MARK_DELIVERED,
    ),
    "complete, outlived its task, which has succeeded": (
        outliving(gang().complete(9)),
        SUCCEEDED,
        SweepAction.MARK_DELIVERED,
    ),
    "complete, within the grace": (gang().complete(9), replace(SUCCEEDED, unowned_for=GRACE / 2), LEAVE),
    "complete and held, its task has succeeded": (gang().complete(9), replace(HELD, task=TaskEnd.SUCCEEDED), RELEASE),
    "complete, its task has failed": (gang().complete(9), ENDED, LEAVE),
    "complete, its task has not ended": (gang().complete(9), replace(UNOWNED, task=TaskEnd.NOT_ENDED), LEAVE),
    "complete, Airflow is down": (gang().complete(9), replace(UNOWNED, task=TaskEnd.UNKNOWN), LEAVE),
    "complete, without a claim": (gang().complete(9).claim("", policies=policies()), UNOWNED, LEAVE),
    "complete, made by a hook": (NAMELESS_ENDED, UNOWNED, LEAVE),
    "failed, Airflow was not asked": (gang().failed(9), UNOWNED, LEAVE),
    "complete and held": (gang().complete(9), HELD, RELEASE),
    "failed and held": (gang().failed(9), HELD, RELEASE),
    "stopped and held": (stopped(gang()), HELD, RELEASE),
    "stopped, and its Job is suspended": (stopped(gang()), ENDED, SweepAction.FINISH),
    "stopped, and its Job is about to fail": (stopped(gang()).resumed(10), ENDED, LEAVE),
    "stopped, and its Job has failed": (stopped(gang()).failed(10), ENDED, LEAVE),
    "stopped, of another installation": (stopped(gang(installation="staging")), ENDED, LEAVE),
    "stopped, within the grace": (stopped(gang()), replace(ENDED, unowned_for=GRACE / 2), LEAVE),
    "being deleted and held": (gang().deleted(9), HELD, RELEASE),
    "being deleted": (gang().deleted(9), ENDED, LEAVE),
    "kept for people, and held": (gang(on_kill="keep").complete(9), HELD, RELEASE),
    "delivered": (delivered(gang().complete(9)), UNOWNED, SweepAction.DELETE_DELIVERED),
    "delivered and held": (delivered(gang().complete(9)), HELD, RELEASE),
    "delivered and kept": (delivered(gang(on_finish="keep").complete(9)), UNOWNED, LEAVE),
    "failed and delivered": (delivered(gang().failed(9)), UNOWNED, LEAVE),
    "failed, delivered, to be deleted": (
        delivered(gang(on_finish="delete").failed(9)),
        UNOWNED,
        SweepAction.DELETE_DELIVERED,
    ),
    "delivered, its Job was kept when its submission was deleted": (
        delivered(gang().complete(9)).claim("", policies=policies(on_finish="keep")),
        UNOWNED,
        LEAVE,
    ),
}


@pytest.mark.parametrize(("made", "facts", "action"), CASES.values(), ids=CASES)
def test_a_sweep_does_what_state_owner_and_policy_allow(
    made: JobBuilder, facts: SweepFacts, action: SweepAction
) -> None:
    assert decide_sweep(made.read(), facts).action is action


REASONS = {
    "no id": (NAMELESS, UNOWNED, "the gang has no installation id"),
    "neither has an id": (NAMELESS, replace(UNOWNED, installation=""), "the gang belongs to no task"),
    "neither has an id, and its policy deletes the Job": (
        delivered(job().resumed(3).complete(9).claim("", policies=policies(on_finish="delete"))),
        replace(UNOWNED, installation=""),
        f"{DELIVERED_REASON}; but without an installation id, it may belong to another Airflow",
    ),
    "the sweep has no id": (gang(), replace(UNOWNED, installation=""), "the sweep has no installation id"),
    "another installation": (
        gang(installation="staging"),
        UNOWNED,
        "the gang belongs to installation staging, and the sweep to installation prod",
    ),
    "ended once": (
        gang(),
        replace(UNOWNED, task=TaskEnd.ENDED_ONCE),
        "Airflow has said once that its task has ended; a second answer must confirm this",
    ),
}


@pytest.mark.parametrize(("made", "facts", "reason"), REASONS.values(), ids=REASONS)
def test_gang_that_is_left_has_the_true_reason(made: JobBuilder, facts: SweepFacts, reason: str) -> None:
    assert decide_sweep(made.read(), facts).reason == reason


def test_every_decision_has_a_reason() -> None:
    assert all(decide_sweep(made.read(), facts).reason for made, facts, _ in CASES.values())


FACTS: Any = st.builds(
    SweepFacts,
    installation=st.sampled_from(["", "prod", "staging"]),
    unowned_for=st.none() | st.timedeltas(timedelta(0), timedelta(days=9)),
    held_pods=st.integers(0, 3),
    task=st.sampled_from(TaskEnd),
    grace=st.timedeltas(timedelta(0), timedelta(days=9)),
)


@given(st.sampled_from([made for made, _, _ in CASES.values()]), FACTS)
def test_only_a_confirmed_end_of_the_own_task_ends_a_live_gang(made: JobBuilder, facts: SweepFacts) -> None:
    read = made.read()
    if decide_sweep(read, facts).action is SweepAction.DELETE_LIVE:
        assert facts.task is TaskEnd.ENDED
        assert facts.installation == read.installation != ""
        assert facts.unowned_for is not None
        assert facts.unowned_for >= facts.grace
        assert not any((read.is_ended, read.is_stopped, read.is_being_deleted))
        assert read.claim.policies is not None
        assert read.claim.policies.on_kill == "delete"


@given(st.sampled_from([made for made, _, _ in CASES.values()]), FACTS)
def test_only_a_success_of_the_own_task_marks_a_gang_that_has_succeeded(made: JobBuilder, facts: SweepFacts) -> None:
    read = made.read()
    if decide_sweep(read, facts).action is SweepAction.MARK_DELIVERED:
        assert facts.task is TaskEnd.SUCCEEDED
        assert facts.installation == read.installation != ""
        assert read.complete_condition is not None
        assert read.claim.id
        assert not any((read.is_delivered, read.is_being_deleted))


@given(st.sampled_from([made for made, _, _ in CASES.values()]), FACTS)
def test_nothing_is_done_to_a_gang_that_is_followed_or_of_another_installation(
    made: JobBuilder, facts: SweepFacts
) -> None:
    read = made.read()
    if facts.unowned_for is None or read.installation != facts.installation:
        assert decide_sweep(read, facts).action is LEAVE


@pytest.mark.parametrize(("pods", "own"), list(product(["", "prod", "staging"], ["", "prod"])))
def test_held_pods_of_a_vanished_job_are_released_by_their_installation(pods: str, own: str) -> None:
    is_released = may_release_orphaned_pods(pod_installation=pods, installation=own, unowned_for=GRACE, grace=GRACE)
    assert is_released is (pods in {"", own})


def test_held_pods_of_a_vanished_job_stay_within_the_grace() -> None:
    assert not may_release_orphaned_pods(pod_installation="", installation="prod", unowned_for=GRACE / 2, grace=GRACE)


MINUTE = CONFIRM_AFTER.total_seconds()
ANSWERS: dict[str, tuple[list[tuple[float, bool | None]], TaskEnd]] = {
    "one end": ([(0, True)], TaskEnd.ENDED_ONCE),
    "two ends in one second": ([(0, True), (1, True)], TaskEnd.ENDED_ONCE),
    "two ends a minute apart": ([(0, True), (MINUTE, True)], TaskEnd.ENDED),
    "an end that was revoked": ([(0, True), (30, False), (MINUTE, True)], TaskEnd.ENDED_ONCE),
    "no answer between two ends": ([(0, True), (30, None), (MINUTE, True)], TaskEnd.ENDED),
    "no answer after an end": ([(0, True), (MINUTE, None)], TaskEnd.UNKNOWN),
    "no end": ([(0, False)], TaskEnd.NOT_ENDED),
}


@pytest.mark.parametrize(("answers", "end"), ANSWERS.values(), ids=ANSWERS)
def test_an_end_counts_when_airflow_has_confirmed_it(answers: list[tuple[float, bool | None]], end: TaskEnd) -> None:
    known, since = TaskEnd.NOT_ASKED, None
    for now, has_ended in answers:
        known, since = confirm_end(since, has_ended=has_ended, now_s=now)
    assert known is end


SETTLED: dict[str, tuple[JobBuilder, SweepFacts, bool]] = {
    "ended, Airflow was not asked": (gang().complete(9), UNOWNED, False),
    "ended, Airflow is down": (gang().complete(9), replace(UNOWNED, task=TaskEnd.UNKNOWN), False),
    "ended, its task has not ended": (gang().complete(9), replace(UNOWNED, task=TaskEnd.NOT_ENDED), False),
    "ended, its task has succeeded": (gang().complete(9), SUCCEEDED, False),
    "ended, its task has failed": (gang().complete(9), ENDED, True),
    "ended, made by a hook": (NAMELESS_ENDED, UNOWNED, True),
    "ended and delivered": (delivered(gang(on_finish="keep").complete(9)), UNOWNED, True),
    "failed": (gang().failed(9), UNOWNED, True),
    "ended, of another installation": (gang(installation="staging").complete(9), UNOWNED, True),
    "ended, within the grace": (gang().complete(9), replace(UNOWNED, unowned_for=GRACE / 2), False),
    "ended and followed": (gang().complete(9), replace(UNOWNED, unowned_for=None), False),
    "ended and held": (gang().complete(9), HELD, False),
    "delivered, and its policy deletes the Job": (delivered(gang().complete(9)), UNOWNED, False),
    "stopped, and its Job has not failed yet": (stopped(gang()), UNOWNED, False),
    "live": (gang(), ENDED, False),
}


@pytest.mark.parametrize(("made", "facts", "settled"), SETTLED.values(), ids=SETTLED)
def test_only_a_gang_to_which_nothing_happens_any_more_is_forgotten(
    made: JobBuilder, facts: SweepFacts, settled: bool
) -> None:
    assert is_settled(made.read(), facts) is settled

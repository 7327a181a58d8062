"""The rule that decides whether a task adopts one of its Jobs or submits a new one, as tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_DELIVERED,
    ANNOTATION_STOPPED,
    LABEL_ATTEMPT,
    LABEL_DROPPED,
    LABEL_KUEUE_QUEUE,
)
from airflow_provider_gangjobs.submission.submission import (
    Adopt,
    NextAttemptRule,
    Refuse,
    SubmitNew,
    TakenOver,
    TaskRule,
    decide,
    differing_fields,
    gang_of_later_try,
)
from tests.annotations import claimed, recorded, submitted

OURS, OTHERS = "hash-ours", "hash-others"
ME, FORMER = "ti-2", "ti-1"


def job(state, attempt=0, *, spec_hash=OURS, claim=FORMER, fields=None, max_tries=None):
    """Return a Job of this task in a state.

    `half`: live and never resumed; `queued`: the same in a queue of Kueue; `in queue`: completely submitted to a queue.
    """
    made = {
        "metadata": {
            "namespace": "ml",
            "name": f"train-{attempt}",
            "uid": f"uid-{attempt}",
            "labels": {LABEL_ATTEMPT: str(attempt)},
            "annotations": recorded(spec_hash=spec_hash, fields=fields or {}) | claimed(claim, max_tries=max_tries),
        },
        "spec": {"suspend": state in {"half", "queued", "in queue", "stopped"}},
        "status": {} if state in {"half", "queued", "in queue"} else {"startTime": "2026-01-01T00:00:00Z"},
    }
    metadata, status = made["metadata"], made["status"]
    if state in {"succeeded", "delivered"}:
        status["conditions"] = [{"type": "Complete", "status": "True"}]
    if state in {"failed", "failed and delivered"}:
        status["conditions"] = [{"type": "Failed", "status": "True"}]
    if state == "failing":
        status["conditions"] = [{"type": "FailureTarget", "status": "True"}]
    if state == "terminating":
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if state in {"delivered", "failed and delivered"}:
        metadata["annotations"][ANNOTATION_DELIVERED] = "2026-01-01T00:00:00+00:00"
    if state == "stopped":
        metadata["annotations"][ANNOTATION_STOPPED] = "assembling took too long"
    if state in {"queued", "in queue"}:
        metadata["labels"][LABEL_KUEUE_QUEUE] = "q"
    if state == "in queue":
        metadata["annotations"] |= submitted(is_queued=True)
    if state == "dropped":
        metadata["labels"][LABEL_DROPPED] = "true"
        metadata["annotations"] |= {ANNOTATION_DELIVERED: "2026-01-01T00:00:00+00:00"} | claimed("")
    return read_job(made)


NEVER, DURABLE = TaskRule(durable=False), TaskRule()
OTHER = {"spec_hash": OTHERS}
MINE = {"claim": ME}

RULES = {
    "nothing there": ([], DURABLE, SubmitNew(0)),
    "a running gang is adopted": ([job("live")], DURABLE, "adopt 0"),
    "a half submitted one is adopted": ([job("half")], DURABLE, "adopt 0"),
    "one about to fail is still adopted": ([job("failing")], DURABLE, "adopt 0"),
    "an undelivered success is adopted": ([job("succeeded")], DURABLE, "adopt 0"),
    "a delivered success is run again": ([job("delivered")], DURABLE, SubmitNew(1)),
    "a failure is followed by another attempt": ([job("failed", 3)], DURABLE, SubmitNew(4)),
    "what is being deleted is not waited for": ([job("terminating", 1)], DURABLE, SubmitNew(2)),
    "a stopped one is over": ([job("stopped")], DURABLE, SubmitNew(1)),
    "only the last attempt's success counts": ([job("succeeded"), job("failed", 1)], DURABLE, SubmitNew(2)),
    "a live one counts before later ones": ([job("live"), job("failed", 1)], DURABLE, "adopt 0"),
    "one of two live ones is left": ([job("live"), job("live", 1)], DURABLE, ("adopt", 1, [0])),
    "of two live ones that of these parameters": ([job("live"), job("half", 1, **OTHER)], DURABLE, ("adopt", 0, [1])),
    "its own success is returned before others run": ([job("succeeded", **MINE), job("failed", 1)], NEVER, "adopt 0"),
    "never replaces what is live": ([job("live"), job("failed", 1)], NEVER, ("replace", 2, [0])),
    "never leaves a success alone": ([job("succeeded")], NEVER, SubmitNew(1)),
    "never still knows its own": ([job("live", claim=ME)], NEVER, "adopt 0"),
    "never still knows its own success": ([job("succeeded", claim=ME)], NEVER, "adopt 0"),
    "other parameters are refused while it runs": ([job("live", **OTHER)], DURABLE, "refuse 0"),
    "other parameters of its own are refused": ([job("live", **OTHER, **MINE)], NEVER, "refuse 0"),
    "other parameters replace what never ran": ([job("half", **OTHER)], DURABLE, ("replace", 1, [0])),
    "other parameters are refused in Kueue's queue": ([job("queued", **OTHER)], DURABLE, "refuse 0"),
    "other parameters make another attempt of a success": ([job("succeeded", **OTHER)], DURABLE, SubmitNew(1)),
}


def expected_choice(jobs, expected):
    if isinstance(expected, SubmitNew):
        return expected
    if isinstance(expected, tuple):
        verb, number, replaced = expected
        superseded = tuple(jobs[index] for index in replaced)
        return SubmitNew(number, superseded) if verb == "replace" else Adopt(jobs[number], superseded)
    verb, attempt = expected.split()
    (found,) = (j for j in jobs if j.attempt == int(attempt))
    return {"adopt": Adopt, "refuse": Refuse, "leave": TakenOver}[verb](found)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ([job("failed", **MINE)], "adopt 0"),
        ([job("failed")], SubmitNew(1)),
        ([job("failed", **MINE), job("failed", 1)], SubmitNew(2)),
        ([job("failed and delivered", **MINE)], SubmitNew(1)),
        ([job("stopped", **MINE)], SubmitNew(1)),
        ([job("failed", **MINE, **OTHER)], SubmitNew(1)),
    ],
)
def test_failure_of_the_same_try_is_returned_if_that_is_wanted(jobs, expected):
    choice = decide(TaskRule(return_own_failed=True), jobs, claim=ME, spec_hash=OURS)
    assert choice == expected_choice(jobs, expected)


@pytest.mark.parametrize(("jobs", "rule", "expected"), RULES.values(), ids=RULES)
def test_job_is_chosen_by_state_claim_and_parameters(jobs, rule, expected):
    choice = decide(rule, jobs, claim=ME, spec_hash=OURS)
    assert choice == expected_choice(jobs, expected)


NOT_CLEARED, CLEARED = {"max_tries": 2}, {"max_tries": 1}
"""Jobs that were claimed before a task instance whose `max_tries` is 2: without and with a clear in between."""
OTHER_PARAMETERS = {
    "a retry continues what runs": ([job("live", **OTHER, **NOT_CLEARED)], DURABLE, "adopt 0"),
    "a retry continues what waits in a queue": ([job("in queue", **OTHER, **NOT_CLEARED)], DURABLE, "adopt 0"),
    "the same try continues what runs": ([job("live", **OTHER, **MINE, **NOT_CLEARED)], NEVER, "adopt 0"),
    "a retry returns a success": ([job("succeeded", **OTHER, **NOT_CLEARED)], DURABLE, "adopt 0"),
    "a retry returns a failure": ([job("failed", **OTHER, **NOT_CLEARED)], DURABLE, "adopt 0"),
    "a clear replaces what runs": ([job("live", **OTHER, **CLEARED)], DURABLE, ("replace", 1, [0])),
    "a clear replaces what waits in a queue": ([job("in queue", **OTHER, **CLEARED)], DURABLE, ("replace", 1, [0])),
    "a clear runs a success again": ([job("succeeded", **OTHER, **CLEARED)], DURABLE, SubmitNew(1)),
    "a clear returns no failure": ([job("failed", **OTHER, **CLEARED)], DURABLE, SubmitNew(1)),
    "a clear continues what has the parameters": ([job("live", **CLEARED)], DURABLE, "adopt 0"),
    "a clear returns a success of the parameters": ([job("succeeded", **CLEARED)], DURABLE, "adopt 0"),
    "an unknown clear replaces nothing": ([job("live", **OTHER)], DURABLE, "adopt 0"),
    "the parameters come before the clear": (
        [job("live", **CLEARED), job("live", 1, **OTHER, **NOT_CLEARED)],
        DURABLE,
        ("adopt", 0, [1]),
    ),
    "what never ran cannot be completed": ([job("half", **OTHER, **NOT_CLEARED)], DURABLE, ("replace", 1, [0])),
    "nor what a queue took too early": ([job("queued", **OTHER, **NOT_CLEARED)], DURABLE, ("replace", 1, [0])),
    "a retry that adopts nothing replaces all": ([job("live", **OTHER, **NOT_CLEARED)], NEVER, ("replace", 1, [0])),
}


@pytest.mark.parametrize(("jobs", "rule", "expected"), OTHER_PARAMETERS.values(), ids=OTHER_PARAMETERS)
def test_only_a_clear_replaces_a_gang_of_other_parameters(jobs, rule, expected):
    choice = decide(replace(rule, return_failed=True), jobs, claim=ME, spec_hash=OURS, max_tries=2)
    assert choice == expected_choice(jobs, expected)


def test_try_that_goes_on_after_a_loss_continues_its_next_attempt_whatever_its_parameters_are():
    jobs = [job("failed", 1, **MINE, **NOT_CLEARED), job("live", 2, **MINE, **OTHER, **NOT_CLEARED)]
    choice = decide(NextAttemptRule(1, 1), jobs, claim=ME, spec_hash=OURS, max_tries=2)
    assert choice == Adopt(jobs[1])


FIRST_TRY, SECOND_TRY = "019a0000-0000-7000-8000-000000000001", "019a0000-0001-7000-8000-000000000000"
NO_TRY = "019a0000-0002-4000-8000-000000000000"
"""A UUID version 4, which has no time."""


@pytest.mark.parametrize("state", ["half", "running", "succeeded", "delivered", "failed"])
def test_gang_of_a_later_try_is_a_suspicion(state):
    jobs = [job("failed", 0, claim=FIRST_TRY), job(state, 1, claim=SECOND_TRY), job("failed", 2, claim=NO_TRY)]

    assert gang_of_later_try(jobs, FIRST_TRY) == jobs[1]


@pytest.mark.parametrize(
    ("holder", "claim"), [(FIRST_TRY, SECOND_TRY), (SECOND_TRY, NO_TRY), (NO_TRY, FIRST_TRY), (SECOND_TRY, "me")]
)
def test_gang_is_no_suspicion_unless_its_try_is_known_to_be_later(holder, claim):
    assert gang_of_later_try([job("running", claim=holder)], claim) is None


def test_dropped_gang_of_a_later_try_is_no_suspicion():
    assert gang_of_later_try([job("dropped", claim=SECOND_TRY)], FIRST_TRY) is None


RETURNED_FAILURES = {
    "a failure that is not delivered": ([job("failed", 3)], DURABLE, "adopt 3"),
    "not of an earlier try, if that is not adopted": ([job("failed", 3)], NEVER, SubmitNew(4)),
    "a failure of the try itself under any policy": ([job("failed", 3, **MINE)], NEVER, "adopt 3"),
    "no failure that was delivered": ([job("failed and delivered", 3)], DURABLE, SubmitNew(4)),
    "no failure of other parameters": ([job("failed", 3, **OTHER)], DURABLE, SubmitNew(4)),
    "no failure before the last attempt": ([job("failed"), job("stopped", 1)], DURABLE, SubmitNew(2)),
    "not while another gang is live": ([job("live"), job("failed", 1)], DURABLE, "adopt 0"),
}


@pytest.mark.parametrize(("jobs", "rule", "expected"), RETURNED_FAILURES.values(), ids=RETURNED_FAILURES)
def test_action_when_failures_are_returned(jobs, rule, expected):
    choice = decide(replace(rule, return_failed=True), jobs, claim=ME, spec_hash=OURS)
    assert choice == expected_choice(jobs, expected)


LOST = {
    "the next attempt": ([job("failed", 1, **MINE)], SubmitNew(2)),
    "also if the lost one is gone": ([], SubmitNew(2)),
    "also if the lost one was delivered": ([job("failed and delivered", 1, **MINE)], SubmitNew(2)),
    "one that it had begun": ([job("failed", 1, **MINE), job("half", 2, **MINE)], "adopt 2"),
    "one that has succeeded meanwhile": ([job("failed", 1, **MINE), job("succeeded", 2, **MINE)], "adopt 2"),
    "nothing where another try has taken the lost one": ([job("failed", 1)], "leave 1"),
    "nothing where another try has gone on": ([job("failed", 1, **MINE), job("live", 2)], "leave 2"),
    "after failures of earlier tries": ([job("failed", 0), job("failed", 1, **MINE)], SubmitNew(2)),
    "not what was made from other parameters": (
        [job("failed", 1, **MINE), job("live", 2, **MINE, **OTHER)],
        "refuse 2",
    ),
}


@pytest.mark.parametrize(("jobs", "expected"), LOST.values(), ids=LOST)
def test_action_after_an_attempt_was_lost(jobs, expected):
    choice = decide(NextAttemptRule(1, 1), jobs, claim=ME, spec_hash=OURS)
    assert choice == expected_choice(jobs, expected)


def test_used_up_numbers_are_skipped():
    assert decide(TaskRule(), [job("failed")], claim=ME, spec_hash=OURS, min_attempt=5) == SubmitNew(5)


STATES = [
    "live",
    "half",
    "queued",
    "in queue",
    "failing",
    "succeeded",
    "delivered",
    "failed",
    "failed and delivered",
    "terminating",
    "stopped",
]
JOBS = st.lists(
    st.builds(
        job,
        st.sampled_from(STATES),
        st.integers(0, 9),
        spec_hash=st.sampled_from([OURS, OTHERS]),
        claim=st.sampled_from([ME, FORMER]),
        max_tries=st.sampled_from([None, 1, 2]),
    ).filter(lambda made: made.claim != ME or made.max_tries != 1),
    max_size=4,
    unique_by=lambda made: made.ref.name,
)


MAX_TRIES = st.sampled_from([None, 2])


@given(JOBS, st.sampled_from([NEVER, DURABLE]), MAX_TRIES)
def test_choice_never_leaves_more_than_one_live_gang(jobs, rule, max_tries):
    live = [made for made in jobs if state_of(made) is SubmissionState.IN_PROGRESS]
    match decide(rule, jobs, claim=ME, spec_hash=OURS, max_tries=max_tries):
        case SubmitNew(number, superseded):
            assert [made for made in live if made not in superseded] == []
            assert number not in {made.attempt for made in jobs}
        case Adopt(adopted, superseded):
            assert [made for made in live if made not in superseded] in ([], [adopted])
            assert adopted.record.spec_hash == OURS or max_tries is not None
            assert state_of(adopted) in {SubmissionState.IN_PROGRESS, SubmissionState.SUCCEEDED}
        case Refuse(made):
            assert made.record.spec_hash == OTHERS
            assert max_tries is None
            assert state_of(made) is SubmissionState.IN_PROGRESS


@given(JOBS)
def test_task_that_was_not_cleared_runs_nothing_anew_while_a_complete_gang_is_live(jobs):
    jobs = [made for made in jobs if made.claim == FORMER]
    kept = [made for made in jobs if made.max_tries != 1 and made.is_submission_complete]
    match decide(TaskRule(), jobs, claim=ME, spec_hash=OURS, max_tries=2):
        case SubmitNew(_, superseded):
            assert [made for made in superseded if made in kept] == []


@given(JOBS, st.integers(0, 9))
def test_gang_of_another_try_is_never_taken_after_a_loss(jobs, lost):
    match decide(NextAttemptRule(lost, 1), jobs, claim=ME, spec_hash=OURS):
        case SubmitNew(number, superseded):
            assert number > max([lost, *(made.attempt for made in jobs)])
        case Adopt(adopted, superseded):
            assert adopted.claim.id == ME
        case _:
            superseded = ()
    assert all(made.attempt < lost or made.claim.id == ME for made in superseded)


@given(JOBS, st.sampled_from([NEVER, DURABLE]), MAX_TRIES, st.randoms(use_true_random=False))
def test_order_of_the_list_does_not_matter(jobs, rule, max_tries, random):
    shuffled = random.sample(jobs, len(jobs))
    ask = {"claim": ME, "spec_hash": OURS, "max_tries": max_tries}
    assert decide(rule, jobs, **ask) == decide(rule, shuffled, **ask)


def test_differing_parameters_are_named():
    spec = GangSpec(image="trainer:2", workers=4)
    made_from = GangSpec(image="trainer:1", name="a").field_digests
    assert differing_fields(spec, job("live", fields=made_from)) == ("image", "name", "workers")


def test_missing_digests_name_no_parameter():
    assert differing_fields(GangSpec(image="a"), job("live")) == ()

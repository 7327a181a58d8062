"""The log lines of a submission say what was created, with how many workers, and how the pods are scheduled."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.attempt.messages import describe_placement, submission_messages
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.state.phase import SubmissionState
from airflow_provider_gangjobs.submission.submission import Submission


def submission(**changes: Any) -> Submission:
    known = {
        "ref": GangRef("default", "train-0", "uid"),
        "attempt": 0,
        "workers": 8,
        "submission_id": "t",
        "decision": "gang:v1beta1",
        "adopted": False,
        "state": SubmissionState.IN_PROGRESS,
    }
    return Submission(**{**known, **changes})


SUCCEEDED_BEFORE = {"adopted": True, "attempt": 2, "workers": 1, "decision": "off", "state": SubmissionState.SUCCEEDED}
CREATED = f"Created gang default/train-0 (attempt 0): 8 workers, {describe_placement('off')}"
SUSPENDED = {"decision": "brought", "is_suspended": True}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "Created gang default/train-0 (attempt 0): 8 workers, gang scheduling by Workload API v1beta1"),
        (
            SUCCEEDED_BEFORE,
            f"Adopted gang default/train-0 (attempt 2): 1 worker, {describe_placement('off')}, already succeeded",
        ),
        ({"decision": "off", "queue": "team"}, f"{CREATED}, Kueue queue team"),
        ({"decision": "off", "restarts_max": 3}, f"{CREATED}, up to 3 restarts in place"),
        (
            {"decision": "off", "queue": "team", "queue_defaults": ("queue_name", "queue_priority")},
            f"{CREATED}, Kueue queue team (queue_name and queue_priority of the connection)",
        ),
    ],
    ids=["created", "adopted", "queue of the gang", "restarts", "queue of the connection"],
)
def test_submission_is_described_in_one_line(changes: dict[str, Any], line: str) -> None:
    assert list(submission_messages(submission(**changes))) == [line]


def test_sandbox_says_that_it_pulls_no_image() -> None:
    _, note = submission_messages(submission(), server_software="gangjobs-sandbox")
    assert note.startswith("This cluster is the sandbox: it pulls no image")


def test_gang_that_was_not_started_is_described_as_suspended_with_the_command_that_resumes_it() -> None:
    line, resume = submission_messages(submission(**SUSPENDED))

    assert resume.endswith(""": kubectl -n default patch job train-0 -p '{"spec":{"suspend":false}}'""")

    assert line.endswith(
        ": 8 workers, scheduling as the manifest specifies, suspended until another component starts it"
    )


def test_missing_guarantees_follow_the_description() -> None:
    assert list(submission_messages(submission(notes=("Not a gang: one", "two"))))[1:] == ["Not a gang: one", "two"]


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        ("gang:native", "gang scheduling by Job.spec.scheduling"),
        ("basic:one pod", "plain pods without gang scheduling (one pod)"),
        ("off", "plain pods without gang scheduling, as the parameter gang requests"),
        ("basic", "plain pods without gang scheduling"),
        ("of a later release: {x}", "of a later release: {x}"),
    ],
)
def test_placement_is_described_in_words(decision: str, text: str) -> None:
    assert describe_placement(decision) == text

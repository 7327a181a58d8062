"""What is said in the log of a submission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.submission.submit import Submission

PLACED: Final = {
    "gang": "placed all together",
    "basic": "plain pods",
    "brought": "placed as its manifest says",
    "off": "plain pods, as asked for",
}
"""By the first word of the decision, as it is in the Job's annotation."""


def submission_messages(submission: Submission) -> Iterator[str]:
    """What was submitted, in a line, and then what it lacks."""
    did = "adopted" if submission.adopted else "submitted"
    how = describe_placement(submission.decision)
    yield f"Gang {submission.ref} {did}: attempt {submission.attempt}, {how}, {submission.state}"
    yield from submission.notes


def describe_placement(decision: str) -> str:
    """How the pods are placed, in words, by the decision in the Job's annotation."""
    how, _, detail = decision.partition(":")
    said = PLACED.get(how, decision)
    return f"{said} ({detail})" if detail else said

"""Secrets are masked in the texts of an event before the texts are cut."""

from __future__ import annotations

import json

import pytest
from airflow.sdk._shared.secrets_masker import mask_secret as add_mask

from airflow_provider_gangjobs.airflow_api import task_log
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import (
    MESSAGE_CHARACTERS_MAX,
    RANK_MESSAGE_CHARACTERS_MAX,
    Status,
    build_event,
)
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.state.phase import Phase

SECRET = "dIrViNzKyOpQaRsT"
PART = 4
"""This many consecutive characters of a secret count as a part of the secret."""
REF = GangRef("default", "train", "u")


@pytest.fixture(autouse=True)
def known_secret() -> None:
    """Airflow knows the secret."""
    add_mask(SECRET)


def has_part_of_secret(text: str) -> bool:
    return any(SECRET[at : at + PART] in text for at in range(len(SECRET) - PART + 1))


@pytest.mark.parametrize("before", range(PART, len(SECRET)))
def test_secret_across_the_limit_of_a_text_is_masked(before: int) -> None:
    """`before` characters of the secret are on the side of the limit that is kept."""
    head = "x" * (MESSAGE_CHARACTERS_MAX - 3 - before) + SECRET + "y" * 50
    tail = "x" * 50 + SECRET + "y" * (RANK_MESSAGE_CHARACTERS_MAX - 3 - before)
    failed = Outcome(uid="u", pod="p", outcome=OutcomeKind.FAILED, rank=0, exit_code=1, message=tail)
    event = build_event(REF, Status.FAILED, Phase.FAILED, message=head, notes=[head], outcomes=[failed])

    assert has_part_of_secret(json.dumps(event.to_payload()))
    assert not has_part_of_secret(json.dumps(task_log.mask_event(event).to_payload()))


def test_message_that_the_kubelet_cut_begins_with_a_whole_word() -> None:
    message = f"{SECRET[5:]} rest of the log"
    cut = Outcome(uid="u", pod="p", outcome=OutcomeKind.FAILED, rank=0, message=message, message_cut=True)

    (rank,) = build_event(REF, Status.FAILED, Phase.FAILED, outcomes=[cut]).ranks

    assert rank.message == "rest of the log"

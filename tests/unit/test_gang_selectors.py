"""Label selectors of gangs match what they name, and nothing else."""

from __future__ import annotations

import pytest

from airflow_provider_gangjobs.gang.labels import (
    LABEL_ATTEMPT,
    LABEL_DROPPED,
    LABEL_GANG,
    LABEL_JOB_UID,
    LABEL_PURPOSE,
    LABEL_TASK,
)
from airflow_provider_gangjobs.gang.selectors import (
    ALL_GANGS,
    gang_selector,
    ledger_selector,
    submission_selector,
    task_selector,
)
from airflow_provider_gangjobs.kube.selector import parse

JOB = {LABEL_GANG: "train-0", LABEL_TASK: "digest", LABEL_ATTEMPT: "0"}
DROPPED = JOB | {LABEL_DROPPED: "true"}
LEDGER = {LABEL_GANG: "train-0", LABEL_PURPOSE: "ledger", LABEL_JOB_UID: "uid"}
PICKED = {
    "a gang": (gang_selector("train-0"), [JOB, DROPPED, LEDGER], [{LABEL_GANG: "train-1"}, {}]),
    "a ledger": (ledger_selector("train-0", "uid"), [LEDGER], [LEDGER | {LABEL_JOB_UID: "earlier"}, JOB]),
    "a task": (task_selector("digest"), [JOB, DROPPED], [LEDGER]),
    "a task of an installation": (
        task_selector("digest-of-installation", "digest"),
        [JOB, JOB | {LABEL_TASK: "digest-of-installation"}],
        [JOB | {LABEL_TASK: "digest-of-other-installation"}, LEDGER],
    ),
    "a submission": (submission_selector("digest"), [JOB], [DROPPED, LEDGER]),
    "an attempt": (submission_selector("digest", 0), [JOB], [JOB | {LABEL_ATTEMPT: "1"}, DROPPED]),
    "all submissions": (ALL_GANGS, [JOB], [DROPPED, LEDGER]),
}


@pytest.mark.parametrize(("selector", "picked", "left"), PICKED.values(), ids=PICKED)
def test_selector_picks_its_own(selector: str, picked: list[dict[str, str]], left: list[dict[str, str]]) -> None:
    matches = parse(selector).matches
    assert [matches(labels) for labels in (*picked, *left)] == [True] * len(picked) + [False] * len(left)

"""The entries of a ledger: their format in each version, and the selector of their ConfigMaps."""

import json

from airflow_provider_gangjobs.gang.identity import ledger_selector
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.tracking.harvest.ledger import decode, encode
from tests.unit.builders import REF, at

GOLDEN_V1 = (
    '{"uid":"u-1","pod":"train-0-3-x","outcome":"preempted","rank":3,"attempt":1,"node":"node-b","phase":"Failed",'
    '"exit_code":143,"signal":15,"reason":"Error","message":"bye","created":"2026-08-01T12:00:00Z",'
    '"started":"2026-08-01T12:00:05Z","finished":"2026-08-01T12:01:00Z","caused":"2026-08-01T12:00:50Z","restarts":2,'
    '"disruption":"PreemptionByScheduler"}'
)
OUTCOME_V1 = Outcome(
    uid="u-1",
    pod="train-0-3-x",
    outcome=OutcomeKind.PREEMPTED,
    rank=3,
    attempt=1,
    node="node-b",
    phase="Failed",
    exit_code=143,
    signal=15,
    reason="Error",
    message="bye",
    created=at(0),
    started=at(5),
    finished=at(60),
    caused=at(50),
    restarts=2,
    disruption="PreemptionByScheduler",
)


def test_entry_of_the_first_version_still_loads():
    assert decode("u-1", GOLDEN_V1) == OUTCOME_V1


def test_entry_is_written_as_in_the_first_version():
    assert encode(OUTCOME_V1) == GOLDEN_V1


def test_empty_fields_are_left_out():
    assert json.loads(encode(Outcome(uid="u", pod="p", outcome=OutcomeKind.SUCCEEDED))) == {
        "uid": "u",
        "pod": "p",
        "outcome": "succeeded",
    }


def test_entry_of_a_later_version_is_unknown_and_not_lost():
    found = decode("u-1", '{"uid":"u-1","pod":"p","outcome":"teleported"}')
    assert (found.uid, found.outcome, found.reason) == ("u-1", OutcomeKind.UNKNOWN, "LedgerEntryUnreadable")


def test_selector_finds_the_ledger_of_one_job_only():
    assert ledger_selector(REF.name, REF.uid) == (
        "gangjobs.airflow/gang=train-0,gangjobs.airflow/role=ledger,gangjobs.airflow/job-uid=job-uid"
    )

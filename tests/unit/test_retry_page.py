"""The page on retries: its policy decides as its table says, in Airflow's own code."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import airflow.sdk
import pytest

from airflow_provider_gangjobs import exceptions

DOCS = Path(__file__).resolve().parents[2] / "docs"
ERRORS = set(re.findall(r"[├└]── (\w+)", exceptions.__doc__ or "")) - {"GangEndError"}
TABLE = {
    name: row.rsplit("|", 2)[1].strip()
    for row in (DOCS / "retries.md").read_text().splitlines()
    if row.startswith("| `") and row.rsplit("|", 2)[1].strip() in {"retry", "fail"}
    for name in re.findall(r"`(\w+)`", row.split("|")[1])
}


def test_every_error_is_in_the_table() -> None:
    assert TABLE.keys() == ERRORS


def test_errors_that_fail_at_once_are_named() -> None:
    (sentence,) = re.findall(
        r"uses a retry, but these: (.*?), and the errors of results", (DOCS / "retries.md").read_text(), flags=re.DOTALL
    )
    permanent = {name for name in ERRORS if getattr(exceptions, name)._is_permanent}
    assert {name for name in permanent if not name.startswith("Result")} == set(re.findall(r"`(\w+)`", sentence))


@pytest.fixture(scope="module")
def policy() -> Any:
    if not hasattr(airflow.sdk, "ExceptionRetryPolicy"):
        pytest.skip("Airflow has retry policies from 3.3 on")
    return runpy.run_path(str(DOCS / "samples" / "retry_policy.py"))["CLUSTER_ONLY"]


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_policy_decides_as_the_table_says(name: str, policy: Any) -> None:
    kind = getattr(exceptions, name)
    error = kind.__new__(kind)
    stored = type(policy).deserialize(policy.serialize())

    assert [each.evaluate(error, 1, 5).action.value for each in (policy, stored)] == [TABLE[name]] * 2


def test_other_errors_are_left_to_airflow(policy: Any) -> None:
    assert policy.evaluate(ValueError(), 1, 5).action.value == "default"

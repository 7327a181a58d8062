"""Label selectors of gangs match what they name, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from airflow_provider_gangjobs.gang.identity import (
    ALL_GANGS,
    VALUES_CHARACTERS_MAX,
    gang_selector,
    gang_selectors,
    ledger_selector,
    roles_selectors,
    submission_selector,
    task_selector,
    tasks_selectors,
)
from airflow_provider_gangjobs.kube.well_known import (
    LABEL_ATTEMPT,
    LABEL_DROPPED,
    LABEL_GANG,
    LABEL_GANG_ROLE,
    LABEL_JOB_UID,
    LABEL_PURPOSE,
    LABEL_TASK,
)
from gangjobs_sandbox.apimachinery.selectors import parse

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = {LABEL_GANG: "train-0", LABEL_TASK: "digest", LABEL_ATTEMPT: "0"}
DROPPED = JOB | {LABEL_DROPPED: "true"}
LEDGER = {LABEL_GANG: "train-0", LABEL_PURPOSE: "ledger", LABEL_JOB_UID: "uid"}
PICKED = {
    "a gang": (gang_selector("train-0"), [JOB, DROPPED, LEDGER], [{LABEL_GANG: "train-1"}, {}]),
    "a ledger": (ledger_selector("train-0", "uid"), [LEDGER], [LEDGER | {LABEL_JOB_UID: "earlier"}, JOB]),
    "a task": (task_selector("digest"), [JOB, DROPPED], [LEDGER]),
    "a submission": (submission_selector("digest"), [JOB], [DROPPED, LEDGER]),
    "an attempt": (submission_selector("digest", 0), [JOB], [JOB | {LABEL_ATTEMPT: "1"}, DROPPED]),
    "all submissions": (ALL_GANGS, [JOB], [DROPPED, LEDGER]),
}


@pytest.mark.parametrize(("selector", "picked", "left"), PICKED.values(), ids=PICKED)
def test_selector_picks_its_own(selector: str, picked: list[dict[str, str]], left: list[dict[str, str]]) -> None:
    matches = parse(selector).matches
    assert [matches(labels) for labels in (*picked, *left)] == [True] * len(picked) + [False] * len(left)


MANY = {
    "names": (gang_selectors, LABEL_GANG, {}),
    "names of gangs with roles": (roles_selectors, LABEL_GANG, {LABEL_GANG_ROLE: "worker"}),
    "tasks": (tasks_selectors, LABEL_TASK, {}),
}


@pytest.mark.parametrize(("selectors_of", "label", "others"), MANY.values(), ids=MANY)
@pytest.mark.parametrize("count", [0, 1, 2, 90, 5000])
@pytest.mark.parametrize("length", [5, 63])
def test_selectors_of_many_values_pick_each_value_once_and_fit_into_a_url(
    selectors_of: Callable[..., tuple[str, ...]], label: str, others: dict[str, str], count: int, length: int
) -> None:
    values = [f"{number:0{length}}" for number in range(count)]
    selectors = selectors_of([*values, *values])

    assert all(len(quote(selector, safe="")) < VALUES_CHARACTERS_MAX + 200 for selector in selectors)
    requirements = [parse(selector).requirements[-1] for selector in selectors]
    assert sorted(value for each in requirements for value in each.values) == values
    assert all(parse(selectors[0]).matches({label: value, **others}) for value in values[:1])
    assert len(selectors) == -(-count // (VALUES_CHARACTERS_MAX // (length + 3)))

"""Which gangs a selection finds, and when the wait for them is over."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.awaited import (
    Answer,
    GangSelection,
    NewestGangs,
    SelectedGang,
    answer_of,
    decide_wait,
)
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, build_gang, read_job
from airflow_provider_gangjobs.parameters.target_gangs import read_gangs
from tests.annotations import recorded

MET, FAILED, WAITING, UNKNOWN = Answer.MET, Answer.FAILED, Answer.WAITING, Answer.UNKNOWN


def job(name: str, task: str = "", attempt: int = 0, *, dropped: bool = False) -> StoredGang:
    labels = {"gangjobs.airflow/task": task or name, "gangjobs.airflow/attempt": str(attempt)}
    if dropped:
        labels["gangjobs.airflow/dropped"] = "true"
    metadata = {"name": name, "namespace": "n", "uid": f"uid of {name}", "labels": labels, "annotations": recorded()}
    return read_job({"metadata": metadata})


def names(selection: GangSelection, *jobs: StoredGang) -> dict[str, str | None]:
    return {key: gang.ref.name if gang.ref else None for key, gang in selection.find(jobs).items()}


def test_gang_that_does_not_exist_yet_has_no_reference() -> None:
    selection = GangSelection(namespace="n", names={"a": "", "b": ""})

    assert names(selection, job("a"), job("c")) == {"a": "a", "b": None}


def test_gang_of_a_known_uid_is_found_without_its_job() -> None:
    selection = GangSelection(namespace="n", names={"a": "earlier uid"})

    (gang,) = selection.find([job("a")]).values()

    assert (gang.ref, gang.job) == (GangRef("n", "a", "earlier uid"), None)


def test_newest_attempt_of_a_task_counts() -> None:
    selection = GangSelection(namespace="n", digests=("now", "other"))

    found = names(selection, job("a-2", "now", 2), job("a-10", "now", 10), job("a-1", "now", 1))

    assert found == {"now": "a-10", "other": None}


def test_gang_of_a_deleted_submission_is_not_selected() -> None:
    assert names(GangSelection(namespace="n", digests=("t",)), job("a", "t", dropped=True)) == {"t": None}


def test_selector_waits_for_the_number_of_gangs_that_was_asked_for() -> None:
    selection = GangSelection(namespace="n", selector="team=x", at_least=3)

    assert names(selection, job("a", "t"), job("b", "u")) == {"t": "a", "u": "b", "missing 2": None}


@pytest.mark.parametrize(
    ("status", "running", "succeeded", "ended"),
    [
        (Status.RUNNING, MET, WAITING, WAITING),
        (Status.SUCCEEDED, MET, MET, MET),
        (Status.FAILED, FAILED, FAILED, MET),
        (Status.DELETED, FAILED, FAILED, MET),
        (Status.REPLACED, FAILED, FAILED, MET),
        (Status.TIMEOUT, FAILED, FAILED, MET),
        (Status.ERROR, UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_status_of_an_event_answers_what_is_awaited(
    status: Status, running: Answer, succeeded: Answer, ended: Answer
) -> None:
    found = [answer_of(status, until) for until in ("running", "succeeded", "ended")]

    assert found == [running, succeeded, ended]


@pytest.mark.parametrize(
    ("answers", "all_of_them", "any_of_them"),
    [
        ([], WAITING, WAITING),
        ([MET, MET], MET, MET),
        ([MET, WAITING], WAITING, MET),
        ([MET, FAILED], FAILED, MET),
        ([FAILED, WAITING], FAILED, WAITING),
        ([FAILED, FAILED], FAILED, FAILED),
        ([UNKNOWN, MET], UNKNOWN, MET),
        ([UNKNOWN, FAILED], FAILED, UNKNOWN),
        ([UNKNOWN, WAITING], WAITING, WAITING),
    ],
)
def test_wait_is_over_when_no_further_answer_can_change_it(
    answers: list[Answer], all_of_them: Answer, any_of_them: Answer
) -> None:
    found = {(decide_wait(order, "all"), decide_wait(order, "any")) for order in orders(answers)}

    assert found == {(all_of_them, any_of_them)}


def orders(answers: list[Answer]) -> list[Any]:
    return list(itertools.permutations(answers))


def test_references_of_xcoms_and_names_are_read() -> None:
    reference = {"namespace": "n", "name": "a", "uid": "u"}

    assert read_gangs(reference, "default") == ("n", {"a": "u"})
    assert read_gangs((each for each in ["b", "c"]), "default") == ("default", {"b": "", "c": ""})


@pytest.mark.parametrize(
    ("gangs", "message"),
    [
        ([], "gangs: is empty. Give gangs of one namespace."),
        ([{"uid": "u"}], r"gangs\[0\]: is a dict. Give the name of a Job"),
        ([7], r"gangs\[0\]: is 7. Give the name of a Job"),
        (["a", {"name": "b", "namespace": "n"}], "gangs: are in the namespaces default, n"),
    ],
)
def test_gangs_that_are_no_references_are_refused(gangs: Any, message: str) -> None:
    with pytest.raises(InvalidGangSpec, match=message):
        read_gangs(gangs, "default")


def made_at(second: int, name: str, attempt: int = 0) -> SelectedGang:
    stored = job(name, "t", attempt).view
    metadata = replace(stored.metadata, creation_timestamp=datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC))
    return SelectedGang(GangRef("n", name, f"uid of {name}"), build_gang(replace(stored, metadata=metadata)))


@pytest.mark.parametrize(
    ("looks", "newest"),
    [
        ([made_at(1, "t-0"), made_at(5, "t-1", 1)], "t-1"),
        ([made_at(5, "t-1", 1), made_at(1, "t-0")], "t-1"),
        ([made_at(5, "t-1", 1), SelectedGang()], "t-1"),
        ([made_at(5, "t-1", 1), made_at(5, "t-0")], "t-1"),
        ([made_at(5, "t-1", 1), SelectedGang(), made_at(9, "another")], "another"),
        ([SelectedGang(), made_at(5, "t-1", 1)], "t-1"),
    ],
    ids=["later attempt", "earlier attempt is left", "gone", "of one second", "submitted again", "first"],
)
def test_newest_gang_of_all_looks_counts(looks: list[SelectedGang], newest: str) -> None:
    gangs = NewestGangs()
    for look in looks:
        found = gangs.update({"t": look})["t"]
    assert found.ref is not None
    assert found.ref.name == newest

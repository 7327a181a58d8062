"""The record of a gang, and what happens to a Job whose record cannot be read."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.ending.delete import is_live_gang_of
from airflow_provider_gangjobs.ending.submissions import is_half_submitted
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.record import Record, read_record
from airflow_provider_gangjobs.gang.spec import RoleRanks
from airflow_provider_gangjobs.gang.state.ownership import GRACE, SweepAction, SweepFacts, TaskEnd, decide_sweep
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, judge, state_of
from airflow_provider_gangjobs.gang.view import view_job
from airflow_provider_gangjobs.kube import well_known
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_RECORD, LABEL_INSTALLATION
from airflow_provider_gangjobs.submission.submission import Foreign, SubmitNew, TaskRule, decide
from tests.annotations import policies
from tests.unit.builders import REF, JobBuilder, at, job

ROOT = Path(__file__).parents[2]
TASK = TaskKey("etl", "run", "train", 3, "prod")
RECORD = Record(
    submission_id="digest-2",
    task=TASK,
    spec_hash="hash",
    fields={"image": "1a", "env": "2b"},
    placement="gang:v1beta1",
    requests={"cpu": "4"},
    roles=(RoleRanks("leader", 1, 0), RoleRanks("worker", 3, 1)),
    queue="team",
    restarts=3,
    restarts_alone=True,
    disruptions=1,
    ttl_s=60,
)


def test_record_is_read_as_it_was_written() -> None:
    assert read_record(RECORD.to_text()).record == RECORD
    assert read_record(Record().to_text()).record == Record()


def test_record_of_equal_gangs_is_the_same_text() -> None:
    turned = Record(fields={"env": "2b", "image": "1a"})
    assert turned.to_text() == Record(fields={"image": "1a", "env": "2b"}).to_text()


def changed(**values: object) -> str:
    return json.dumps(json.loads(RECORD.to_text()) | values)


UNREADABLE = {
    "none": (None, "has no record"),
    "empty": ("", "cannot be read"),
    "no JSON": ("{", "cannot be read"),
    "a list": ("[1]", "cannot be read"),
    "nested too deep": ("[" * 100_000, "cannot be read"),
    "a field of another type": (Record(ttl_s="x").to_text(), "cannot be read"),  # type: ignore[arg-type]
    "a newer version": (changed(version=2), "version 2, which only a newer release"),
    "a newer version of another form": ('{"version": 7}', "version 7, which only a newer release"),
    "edited": (changed(gang={"spec_hash": "another"}), "was changed after it was written"),
    "another hash": (changed(hash="0" * 16), "was changed after it was written"),
}


@pytest.mark.parametrize(("text", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_record_that_cannot_be_read_says_why_and_nothing_else(text: str | None, problem: str) -> None:
    reading = read_record(text)
    assert (problem in reading.problem, reading.record) == (True, Record())


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert read_record(text).problem


def foreign(text: str | None, built: JobBuilder) -> JobBuilder:
    built.claim("ti", policies=policies()).label(LABEL_INSTALLATION, "prod")
    if text is None:
        del built.obj["metadata"]["annotations"][ANNOTATION_RECORD]
        return built
    return built.annotation(ANNOTATION_RECORD, text)


EACH = pytest.mark.parametrize("text", [text for text, _ in UNREADABLE.values()], ids=UNREADABLE)


@EACH
def test_state_of_a_foreign_job_is_unknown(text: str | None) -> None:
    for built in (job().complete(9), job().failed(9), job().resumed(3)):
        gang = foreign(text, built).read()
        assert (judge(gang, REF), gang.is_ended, state_of(gang)) == (None, False, SubmissionState.FOREIGN)


@EACH
def test_foreign_job_is_listed_with_the_reason(text: str | None) -> None:
    gang = foreign(text, job().resumed(3)).read()
    assert view_job(gang).state is SubmissionState.FOREIGN
    assert gang.problem[1:] in view_job(gang).summary


@EACH
def test_live_foreign_job_is_neither_adopted_nor_replaced(text: str | None) -> None:
    gang = foreign(text, job().resumed(3)).read()
    for rule in (TaskRule(), TaskRule(durable=False)):
        assert decide(rule, [gang], claim="ti", spec_hash="hash") == Foreign(gang)


@EACH
def test_foreign_job_that_has_ended_is_followed_by_the_next_attempt(text: str | None) -> None:
    gang = foreign(text, job().complete(9)).read()
    assert decide(TaskRule(), [gang], claim="ti", spec_hash="hash") == SubmitNew(1)


@EACH
def test_foreign_job_is_never_deleted(text: str | None) -> None:
    for built in (job().complete(9), job().resumed(3), job().submitted_suspended()):
        gang = foreign(text, built).read()
        for task in TaskEnd:
            facts = SweepFacts(installation="prod", unowned_for=GRACE, held_pods=2, task=task)
            assert decide_sweep(gang, facts).action is SweepAction.LEAVE
        assert not is_live_gang_of("ti")(gang)
        assert not is_half_submitted(gang, now=at(9e9), older_than=timedelta())


def test_table_of_annotations_names_each_one_and_who_writes_it() -> None:
    rows = re.findall(
        r"^\| `gangjobs\.airflow/([\w-]+)` \| (?:[^|]*) \| ([^|]*) \| [^|]+ \|$",
        (ROOT / "docs" / "reference.md").read_text(),
        re.MULTILINE,
    )
    documented = {name: set(re.findall(r"`([\w/]+\.py)`", writers)) for name, writers in rows}
    names = {name: value for name, value in vars(well_known).items() if name.startswith("ANNOTATION_")}
    assert {value.removeprefix("gangjobs.airflow/") for value in names.values()} == documented.keys()
    assert len(documented) <= ANNOTATIONS_MAX
    for name, value in names.items():
        assert documented[value.removeprefix("gangjobs.airflow/")] == writers_of(name)


ANNOTATIONS_MAX = 9
NO_WRITERS = {"gang/schedulers.py", "tracking/explanation.py"}
"""Modules that only read an annotation."""


def writers_of(annotation: str) -> set[str]:
    """Return the modules whose code, and not only their documentation, has the name of an annotation."""
    package = ROOT / "airflow_provider_gangjobs"
    sources = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    used = re.compile(rf"(?<!`)\b{annotation}\b(?!`)")
    of_names = {"kube/well_known.py", "kube/views.py"}
    return {path for path, text in sources.items() if used.search(text)} - of_names - NO_WRITERS

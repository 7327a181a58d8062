"""The properties of a stored Job, read from a view and from an object as the server sends it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.record import AssemblyBaseline, StoredClaim, Submitted, read_mark
from airflow_provider_gangjobs.gang.state.phase import is_started_by_others
from airflow_provider_gangjobs.gang.state.stored_gang import build_gang, read_job
from airflow_provider_gangjobs.gang.view import view_job
from airflow_provider_gangjobs.kube import well_known
from airflow_provider_gangjobs.kube.views import JobView
from tests.unit.builders import JobBuilder, at, job


def test_view_and_object_are_read_alike() -> None:
    built = job().resumed(3).label(well_known.LABEL_TASK, "digest").claim("ti-1").failed(9)
    assert read_job(built.view()) == read_job(built.obj)


def test_everything_that_a_submission_writes_is_read() -> None:
    key = TaskKey("etl", "run", "train")
    built = job().label(well_known.LABEL_ATTEMPT, "2").claim("ti-1")
    built.record(
        submission_id="digest-2",
        spec_hash="hash",
        fields={"image": "1a"},
        disruptions=3,
        task=key,
        placement="gang:v1beta1",
    )
    read = built.annotation(well_known.ANNOTATION_DELIVERED, at(90).isoformat()).read()
    assert read.ref == GangRef("team", "train-0", "job-uid")
    assert (read.attempt, read.record.submission_id, read.record.spec_hash, read.record.fields) == (
        2,
        "digest-2",
        "hash",
        {"image": "1a"},
    )
    assert (read.claim.id, read.holds_claim("ti-1"), read.holds_claim("ti-2")) == ("ti-1", True, False)
    assert (view_job(read).delivered_at, read.record.disruptions, read.record.task, read.placement) == (
        at(90),
        3,
        key,
        "gang:v1beta1",
    )


BROKEN: dict[str, tuple[JobBuilder, str, Any]] = {
    "no attempt": (job().label(well_known.LABEL_ATTEMPT, ""), "attempt", 0),
    "an attempt that is no number": (job().label(well_known.LABEL_ATTEMPT, "x"), "attempt", 0),
    "a claim that is no JSON": (job().annotation(well_known.ANNOTATION_CLAIM, "ti-1"), "claim", StoredClaim()),
    "a claim that is nested too deep": (
        job().annotation(well_known.ANNOTATION_CLAIM, "[" * 100_000),
        "claim",
        StoredClaim(),
    ),
    "a number that Python does not read": (
        job().annotation(well_known.ANNOTATION_CLAIM, f'{{"id":"ti-1","max_tries":{"9" * 5000}}}'),
        "claim",
        StoredClaim(),
    ),
    "an unknown policy": (
        job().annotation(
            well_known.ANNOTATION_CLAIM, '{"id":"ti-1","policies":{"on_kill":"explode","on_finish":"keep"}}'
        ),
        "claim",
        StoredClaim(),
    ),
    "a mark of the last step that is a list": (
        job().annotation(well_known.ANNOTATION_SUBMITTED, "[]"),
        "submitted",
        Submitted(),
    ),
}


@pytest.mark.parametrize(("built", "name", "value"), BROKEN.values(), ids=BROKEN)
def test_unreadable_annotation_is_the_same_as_a_missing_one(built: JobBuilder, name: str, value: Any) -> None:
    assert getattr(built.read(), name) == value


def test_baseline_that_python_does_not_read_is_none() -> None:
    assert read_mark(AssemblyBaseline, f'{{"other_stops":{"9" * 5000}}}') == AssemblyBaseline()


def test_mark_of_delivery_counts_although_its_time_cannot_be_read() -> None:
    read = job().annotation(well_known.ANNOTATION_DELIVERED, "yes").read()
    assert (read.is_delivered, view_job(read).delivered_at) == (True, None)


SIZES = {
    "a gang": ({"parallelism": 4, "completions": 4}, 4, 4),
    "a stream of pods": ({"parallelism": 2, "completions": 9}, 2, 9),
    "fewer completions than pods": ({"parallelism": 4, "completions": 3}, 3, 3),
    "no completions": ({"parallelism": 4, "completions": None}, 4, 4),
    "nothing given": ({"parallelism": None, "completions": None}, 1, 1),
    "stopped in a queue": ({"parallelism": 0, "completions": 4}, 0, 4),
}


@pytest.mark.parametrize(("spec", "ranks", "workers"), SIZES.values(), ids=SIZES)
def test_ranks_run_side_by_side_and_workers_are_all(spec: dict[str, Any], ranks: int, workers: int) -> None:
    read = job().spec(**spec).read()
    assert (read.ranks, read.workers) == (ranks, workers)


KEPT = {"manifest.spec.suspend": "1"}
STARTERS = {
    "the submission": (job().submitted_suspended(), False, True),
    "the submission, and it runs": (job().started(3), False, False),
    "the submission, and it ran before": (job().submitted_suspended().counts(failed=1), False, False),
    "Kueue": (job().submitted_suspended().label(well_known.LABEL_KUEUE_QUEUE, "q"), True, False),
    "its user": (job().submitted_suspended().record(fields=KEPT), True, True),
}


@pytest.mark.parametrize(("built", "by_others", "never_ran"), STARTERS.values(), ids=STARTERS)
def test_who_starts_the_job_and_whether_it_ever_ran(built: JobBuilder, by_others: bool, never_ran: bool) -> None:
    read = built.read()
    assert (is_started_by_others(read), read.never_ran) == (by_others, never_ran)


ENDS: dict[str, tuple[JobBuilder, tuple[bool, bool]]] = {
    "it runs": (job().started(3), (False, False)),
    "it was stopped": (job().stopped(), (False, True)),
    "it is about to fail by itself": (
        job().decided("FailureTarget", 9).stopped(),
        (False, False),
    ),
    "it failed": (job().failed(9).stopped(), (True, False)),
    "it completed": (job().complete(9).stopped(), (True, False)),
}


@pytest.mark.parametrize(("built", "ends"), ENDS.values(), ids=ENDS)
def test_stop_ends_a_gang_that_has_not_ended_by_itself(built: JobBuilder, ends: tuple[bool, bool]) -> None:
    read = built.read()
    assert (read.is_ended, read.ends_by_stop) == ends


def test_field_of_another_type_is_an_error() -> None:
    with pytest.raises(msgspec.ValidationError):
        read_job({"metadata": {"name": 1}})


def test_jobs_with_equal_views_are_equal() -> None:
    assert read_job(JobView()) == build_gang(JobView())


@pytest.mark.parametrize("module", ["gang.state.gang_state", "submission.submission"])
def test_phase_is_known_without_io(module: str) -> None:
    with_io = {"aiohttp", "airflow", "kubernetes", "kubernetes_asyncio"}
    code = f"import sys, airflow_provider_gangjobs.{module}; sys.exit(bool({with_io} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""The rules of a Job that was halted: what remains to be done until it has failed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.gang.state.halt import FinishStep, finish_patch, next_finish_step
from airflow_provider_gangjobs.kube import well_known
from tests.unit.builders import JobBuilder, job


def halted(made: JobBuilder) -> JobBuilder:
    return made.annotation(well_known.ANNOTATION_HALTED, "Halted: by hand")


STEPS: dict[str, tuple[JobBuilder, FinishStep]] = {
    "suspended": (halted(job().suspended(1)), FinishStep.END),
    "suspended, and the Job controller has not seen it": (halted(job().spec(suspend=True)), FinishStep.END),
    "suspended again before its failure": (halted(job().suspended(1).decided("FailureTarget", 2)), FinishStep.END),
    "started": (halted(job()), FinishStep.WAIT),
    "about to fail": (halted(job().started(1).decided("FailureTarget", 2)), FinishStep.WAIT),
    "failed": (halted(job().failed(2, reason="DeadlineExceeded")), FinishStep.NOTHING),
    "failed, and suspended by Kueue": (halted(job().suspended(1).failed(2)), FinishStep.NOTHING),
    "complete": (halted(job().complete(2)), FinishStep.NOTHING),
    "being deleted": (halted(job().suspended(1).deleted(2)), FinishStep.NOTHING),
    "not halted": (job().suspended(1), FinishStep.NOTHING),
    "no time left, and suspended again": (job().suspended(1).spec(activeDeadlineSeconds=0), FinishStep.END),
    "no time left, and started": (job().spec(activeDeadlineSeconds=0), FinishStep.WAIT),
    "no time left, and failed": (job().spec(activeDeadlineSeconds=0).failed(2), FinishStep.NOTHING),
}


@pytest.mark.parametrize(("built", "step"), STEPS.values(), ids=STEPS)
def test_job_that_is_to_end_is_ended_while_it_is_suspended(built: JobBuilder, step: FinishStep) -> None:
    assert next_finish_step(built.read()) is step


ENDED: dict[str, Any] = {"suspend": False, "activeDeadlineSeconds": 0}
PATCHES: dict[str, tuple[JobBuilder, bool, dict[str, Any]]] = {
    "no queue": (job(), False, ENDED),
    "the Workload is inactive": (job().label(well_known.LABEL_KUEUE_QUEUE, "team"), True, ENDED),
    "the Workload may be admitted": (job().label(well_known.LABEL_KUEUE_QUEUE, "team"), False, {"parallelism": 0}),
}


@pytest.mark.parametrize(("built", "is_deactivated", "spec"), PATCHES.values(), ids=PATCHES)
def test_halted_job_is_started_unless_its_queue_may_start_it(
    built: JobBuilder, is_deactivated: bool, spec: dict[str, Any]
) -> None:
    assert finish_patch(built.suspended(1).read(), is_deactivated=is_deactivated) == {"spec": spec}

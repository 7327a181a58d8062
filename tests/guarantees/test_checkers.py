"""Each checker accepts a history in which its guarantee holds, and reports each way in which it can be violated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_DELIVERED,
    ANNOTATION_STOPPED,
)
from tests.guarantees.checkers import CHECKERS, Guarantee, violations
from tests.guarantees.history import History
from tests.guarantees.story import Story, delivered, ended, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SUCCESS, ONE, INCARNATION, ORPHAN, HELD, CLAIM = Guarantee


def killed() -> Story:
    """Return the history of a task that a user fails and later clears, so that it has a second gang."""
    story = running().at(5).task("failed", by_user=True).at(6).job(deleting=True)
    for rank in (0, 1):
        story.at(8).pod(rank, "Failed", held=False).gone(f"train-0-{rank}")
    story.gone("train-0").at(20).task("deferred", "try-2").job("train-1", "try-2")
    return story.pod(0, job="train-1").at(30)


def adopted() -> Story:
    """Return the history of a retry that adopts the gang before the first try is killed."""
    story = running().at(5).task("up_for_retry").at(6).task("running", "try-2").job(claim="try-2")
    return story.at(7).call("adopt", "try-2", "done", ended=8).at(9).call("kill", "try-1", "left", ended=10)


def marked(*recorded: int, exit_code: int = 0, held: bool = True) -> Story:
    """Return the history of a gang that the provider ends, because sidecars run on after its main containers."""
    story = running().at(10).pod(0, exit_code=0).pod(1, exit_code=exit_code, held=held).record(*recorded)
    story.at(40).job(
        annotations={ANNOTATION_STOPPED: '{"by": "main containers", "code": "MainContainersSucceeded"}'}, completions=2
    )
    for rank in (0, 1):
        story.at(45).pod(rank, "Failed", exit_code=exit_code if rank else 0, held=False)
    return story.at(46).job(condition="Failed")


GOOD: dict[str, Callable[[], Story]] = {
    "the gang runs": running,
    "the programs of two ranks begin again": lambda: (
        Story().begin(0, 0).begin(1, 0).at(5).begin(1, 1).at(6).begin(0, 1)
    ),
    "the ranks have ended and wait for the harvest": lambda: ended().at(20),
    "the task succeeds": delivered,
    "a user kills the task and clears it": killed,
    "a retry adopts the gang": adopted,
    "the main containers succeed, and sidecars run on": lambda: marked(0, 1).at(47).task("success", results=(0, 1)),
    "the results come from held pods": lambda: (
        ended()
        .at(12)
        .task("success", results=(0, 1))
        .at(13)
        .pod(0, "Succeeded", held=False)
        .pod(1, "Succeeded", held=False)
    ),
    "a user marks the task as success": lambda: (
        running().at(5).task("success", by_user=True).at(9).pod(0, "Failed", held=False).pod(1, "Failed", held=False)
    ),
    "the history ends before the grace": lambda: running().at(5).task("failed", by_user=True).at(60),
    "an operation without an answer has taken effect": lambda: (
        running().at(1).call("kill", "try-1", "unknown", ended=2).at(5).call("adopt", "try-2", "left")
    ),
    "an operation without an answer has not taken effect": lambda: (
        running().at(1).call("kill", "try-1", "unknown", ended=2).at(5).call("adopt", "try-2", "done")
    ),
    "operations overlap, and the later one takes effect first": lambda: (
        running().at(1).call("kill", "try-1", "left", ended=9).at(2).call("adopt", "try-2", "done", ended=8)
    ),
}

BAD: dict[str, tuple[Guarantee, Callable[[], Story]]] = {
    "success without a Job": (SUCCESS, lambda: Story().task("success")),
    "success of a Job that is not complete": (SUCCESS, lambda: running().at(5).task("success")),
    "success of a Job of another task instance": (SUCCESS, lambda: ended().record(0, 1).task("success", "try-2")),
    "success after the Job was gone": (SUCCESS, lambda: ended().record(0, 1).gone("train-0").at(12).task("success")),
    "success after the deletion of the Job": (
        SUCCESS,
        lambda: ended().record(0, 1).job(deleting=True).at(12).task("success"),
    ),
    "success after the delivery": (
        SUCCESS,
        lambda: ended().record(0, 1).job(annotations={ANNOTATION_DELIVERED: "now"}).at(12).task("success"),
    ),
    "success without the outcome of a rank": (
        SUCCESS,
        lambda: ended().record(0).pod(1, "Succeeded", held=False).at(12).task("success"),
    ),
    "success by main containers of which one was not recorded before": (
        SUCCESS,
        lambda: marked(0, held=False).record(1).at(47).task("success"),
    ),
    "success by main containers of which one has failed": (
        SUCCESS,
        lambda: marked(0, 1, exit_code=1).at(47).task("success"),
    ),
    "success by main containers before the Job has ended": (
        SUCCESS,
        lambda: marked(0, 1).job(condition="FailureTarget").at(47).task("success"),
    ),
    "success with None for a result": (SUCCESS, lambda: ended().record(0, 1).at(12).task("success", results=(0, None))),
    "success with results in a wrong order": (
        SUCCESS,
        lambda: ended().record(0, 1).at(12).task("success", results=(1, 0)),
    ),
    "success, and a pod stays held": (
        SUCCESS,
        lambda: ended().record(0, 1).pod(0, "Succeeded", held=False).task("success").at(1000),
    ),
    "pods of two attempts run at once": (
        ONE,
        lambda: running().at(5).job("train-1", "try-2").pod(0, job="train-1"),
    ),
    "a pod of the next attempt has a node while the old one ends": (
        ONE,
        lambda: running().at(5).job(deleting=True).at(6).job("train-1", "try-2").pod(0, "Pending", job="train-1"),
    ),
    "a program begins while one of an earlier restart is alive": (
        INCARNATION,
        lambda: Story().begin(0, 0).begin(1, 0).at(5).begin(0, 1, (1, 0)),
    ),
    "a program begins twice": (INCARNATION, lambda: Story().begin(0, 0).at(5).begin(0, 0)),
    "a program begins after one of a later restart": (
        INCARNATION,
        lambda: Story().begin(0, 0).at(5).begin(0, 1).at(6).begin(1, 0),
    ),
    "a pod runs on after the task failed": (ORPHAN, lambda: running().at(5).task("failed", by_user=True).at(1000)),
    "a pod runs on after the task succeeded": (
        ORPHAN,
        lambda: running().at(5).task("success", by_user=True).at(1000),
    ),
    "a pod starts after the task ended": (
        ORPHAN,
        lambda: Story().job().task("failed", by_user=True).at(500).pod(0).at(1000),
    ),
    "a pod ran on before the task was cleared": (
        ORPHAN,
        lambda: running().at(5).task("failed", by_user=True).at(500).task("running", "try-2").at(1000),
    ),
    "a pod stays held after its Job is gone": (HELD, lambda: ended().at(20).gone("train-0").at(1000)),
    "a pod is released late": (
        HELD,
        lambda: ended().at(20).gone("train-0").at(500).pod(0, held=False).pod(1, held=False).at(1000),
    ),
    "a late kill deletes an adopted gang": (
        CLAIM,
        lambda: running().at(5).task("running", "try-2").job(claim="try-2").at(6).job(claim="try-2", deleting=True),
    ),
    "a live gang is removed while its task waits": (CLAIM, lambda: running().at(5).gone("train-0")),
    "a stopped gang is adopted": (
        CLAIM,
        lambda: running().at(5).job(annotations={ANNOTATION_STOPPED: '{"by": "user"}'}).at(6).job(claim="try-2"),
    ),
    "a delivered gang is adopted": (
        CLAIM,
        lambda: ended().at(15).job(annotations={ANNOTATION_DELIVERED: "x"}).at(16).job(claim="try-2"),
    ),
    "a gang that is being deleted is adopted": (
        CLAIM,
        lambda: ended().at(15).job(deleting=True).at(16).job(claim="try-2", deleting=True),
    ),
    "a kill succeeds after the adoption by another try": (
        CLAIM,
        lambda: running().at(1).call("adopt", "try-2", "done", ended=2).at(3).call("kill", "try-1", "done"),
    ),
    "two tries deliver": (
        CLAIM,
        lambda: running().at(1).call("deliver", "try-1", "done", ended=2).at(3).call("deliver", "try-2", "done"),
    ),
    "an adoption succeeds after a stop": (
        CLAIM,
        lambda: running().at(1).call("stop", "try-1", "done", ended=2).at(3).call("adopt", "try-2", "done"),
    ),
    "a kill ends a gang that had ended": (
        CLAIM,
        lambda: running().at(1).call("end", "", "done", ended=2).at(3).call("kill", "try-1", "done"),
    ),
    "a sweep deletes what another try has adopted": (
        CLAIM,
        lambda: running().at(1).call("adopt", "try-2", "done", ended=2).at(3).call("sweep", "try-1", "done"),
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_history_has_no_violation(name: str) -> None:
    assert violations(GOOD[name]().history) == []


@pytest.mark.parametrize("name", BAD)
def test_violation_is_found(name: str) -> None:
    guarantee, story = BAD[name]
    history = story().history

    assert guarantee in {violation.guarantee for violation in violations(history)}
    assert CHECKERS[guarantee](history, 120.0)


def test_each_guarantee_is_shown_to_fail() -> None:
    assert {guarantee for guarantee, _ in BAD.values()} == set(Guarantee) == set(CHECKERS)


def test_saved_history_is_judged_as_the_recorded_one(tmp_path: Path) -> None:
    for name in (*GOOD, *BAD):
        history = (GOOD[name] if name in GOOD else BAD[name][1])().history
        history.save(tmp_path / "history.jsonl")
        assert violations(History.load(tmp_path / "history.jsonl")) == violations(history), name

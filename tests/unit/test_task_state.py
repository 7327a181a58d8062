"""The meaning of the state of a task for its gang: a kill, a success, or neither."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import TaskInstanceState

from airflow_provider_gangjobs.hooks.task_state import AbsentState, is_kill, is_success, read_state

KILLS = {"success", "failed", "skipped", "upstream_failed", "removed", AbsentState.CLEARED, AbsentState.GONE}
LOG = logging.getLogger(__name__)


@pytest.mark.parametrize("state", [*TaskInstanceState, *AbsentState, "a state of a later Airflow"])
def test_only_an_end_or_a_clear_is_a_kill(state: str) -> None:
    assert is_kill(state) == (state in KILLS)


@pytest.mark.parametrize("state", [*TaskInstanceState, *AbsentState])
def test_only_success_is_success(state: str) -> None:
    assert is_success(state) == (state == "success")


@pytest.mark.parametrize(
    ("map_index", "states", "state"),
    [
        pytest.param(-1, {"r": {"train": "failed"}}, "failed", id="as text"),
        pytest.param(-1, {"r": {"train": TaskInstanceState.QUEUED}}, "queued", id="as a value of Airflow's"),
        pytest.param(None, {"r": {"train": "running"}}, "running", id="not mapped"),
        pytest.param(3, {"r": {"train_3": "failed"}}, "failed", id="mapped"),
        pytest.param(-1, {"r": {"train": None}}, AbsentState.CLEARED, id="without a state"),
        pytest.param(-1, {"r": {}}, AbsentState.GONE, id="no task instance"),
        pytest.param(-1, {}, AbsentState.GONE, id="no run"),
    ],
)
def test_state_is_read_of_one_task_instance(map_index: int | None, states: Any, state: str) -> None:
    asked: list[dict[str, Any]] = []

    def ask(**question: Any) -> Any:
        asked.append(question)
        return states

    assert read_state(task_instance(map_index), ask, LOG) == state
    index = -1 if map_index is None else map_index
    assert asked == [{"dag_id": "d", "task_ids": ["train"], "run_ids": ["r"], "map_index": index}]


def test_state_is_unknown_if_airflow_does_not_answer() -> None:
    def ask(**question: Any) -> Any:
        raise RuntimeError(f"no answer to {question}")

    assert read_state(task_instance(), ask, LOG) is AbsentState.UNKNOWN


def test_state_of_no_task_instance_is_unknown() -> None:
    assert read_state(None, dict, LOG) is AbsentState.UNKNOWN


def task_instance(map_index: int | None = -1) -> Any:
    return SimpleNamespace(dag_id="d", task_id="train", run_id="r", map_index=map_index)

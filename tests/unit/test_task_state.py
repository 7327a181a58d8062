"""What Airflow says of a task: the meaning of its state for a gang, and whether a try may still start one."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from airflow.sdk import TaskInstanceState
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, TaskStatesResult

from airflow_provider_gangjobs.airflow_api.task_state import (
    CLEARED,
    GONE,
    IDS_CHARACTERS_MAX,
    UNKNOWN,
    is_final_failure,
    is_kill,
    is_running_try,
    is_success,
    read_state,
    read_task_state,
)
from airflow_provider_gangjobs.attempt.task_gangs import CONFIRMED_FOR_S, StartGuard, TaskGangs
from airflow_provider_gangjobs.exceptions import SubmissionFailed

# -- The meaning of the state of a task for its gang: a kill, a success, or neither ----------------------------------

KILLS = {"success", "failed", "skipped", "upstream_failed", "removed", CLEARED, GONE}
LOG = logging.getLogger(__name__)


@pytest.mark.parametrize("state", [*TaskInstanceState, CLEARED, GONE, UNKNOWN, "a state of a later Airflow"])
def test_only_an_end_or_a_clear_is_a_kill(state: str) -> None:
    assert is_kill(state) == (state in KILLS)


@pytest.mark.parametrize("state", [*TaskInstanceState, CLEARED, GONE, UNKNOWN, "a state of a later Airflow"])
def test_success_of_a_task_is_no_kill_of_a_gang_that_outlives_it(state: str) -> None:
    assert is_kill(state, outlives_task=True) == (state in KILLS - {"success"})


@pytest.mark.parametrize("state", [*TaskInstanceState, CLEARED, GONE, UNKNOWN, "a state of a later Airflow"])
def test_failure_of_a_gang_counts_only_if_its_task_submits_no_other_gang(state: str) -> None:
    expected = None if state == "success" else state in KILLS - {CLEARED}
    assert is_final_failure(state) is expected


@pytest.mark.parametrize("state", [*TaskInstanceState, CLEARED, GONE, UNKNOWN])
def test_only_success_is_success(state: str) -> None:
    assert is_success(state) == (state == "success")


@pytest.mark.parametrize(
    ("map_index", "states", "state"),
    [
        pytest.param(-1, {"r": {"train": "failed"}}, "failed", id="as text"),
        pytest.param(-1, {"r": {"train": TaskInstanceState.QUEUED}}, "queued", id="as a value of Airflow's"),
        pytest.param(None, {"r": {"train": "running"}}, "running", id="not mapped"),
        pytest.param(3, {"r": {"train_3": "failed"}}, "failed", id="mapped"),
        pytest.param(-1, {"r": {"train": None}}, CLEARED, id="without a state"),
        pytest.param(-1, {"r": {}}, GONE, id="no task instance"),
        pytest.param(-1, {}, GONE, id="no run"),
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

    assert read_state(task_instance(), ask, LOG) is UNKNOWN


def test_state_of_no_task_instance_is_unknown() -> None:
    assert read_state(None, dict, LOG) is UNKNOWN


@pytest.mark.parametrize(
    ("state", "status", "runs"),
    [
        ("running", None, True),
        ("running", 404, False),
        ("running", 410, False),
        ("running", 403, None),
        ("running", 500, None),
        ("failed", None, False),
        (None, None, False),
        (ConnectionError(), None, None),
    ],
)
def test_try_runs_if_the_task_runs_and_airflow_knows_the_id(
    state: Any, status: int | None, runs: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_task_states(**_: Any) -> Any:
        if isinstance(state, Exception):
            raise state
        return {"r": {"train": state}}

    def send(message: Any) -> None:
        assert str(message.ti_id) == ti.id
        if status is not None:
            raise AirflowRuntimeError(ErrorResponse(detail={"status_code": status}))

    ti = task_instance()
    ti.id, ti.get_task_states = str(uuid4()), get_task_states
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)

    assert is_running_try(ti, LOG) is runs


def test_try_that_cannot_be_asked_about_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(task_runner, "SUPERVISOR_COMMS", raising=False)
    ti = task_instance()
    ti.id, ti.get_task_states = str(uuid4()), lambda **_: {"r": {"train": "running"}}

    assert is_running_try(ti, LOG) is None


def task_instance(map_index: int | None = -1) -> Any:
    return SimpleNamespace(dag_id="d", task_id="train", run_id="r", map_index=map_index)


class Answers:
    """Airflow, which answers after a while with the states of all instances of a task, or of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, instances: int) -> None:
        self.asked: list[int | None] = []
        """The map indexes that were asked for; `None` for all."""
        self.runs: list[list[str]] = []
        self.tasks: list[list[str]] = []
        self.unmapped: dict[str, str] = {}
        """The states of tasks that are not mapped."""
        self.states = {f"train_{index}": "deferred" for index in range(instances)}
        self.error: Exception | None = None
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", self, raising=False)

    def send(self, message: Any) -> TaskStatesResult:
        self.asked.append(message.map_index)
        is_unmapped = message.map_index == -1
        assert is_unmapped or len(message.task_ids) == 1, "`train_1` may be an instance of `train` or a task"
        self.tasks.append(message.task_ids)
        self.runs.append(message.run_ids)
        time.sleep(0.05)
        if self.error is not None:
            raise self.error
        if is_unmapped:
            found = {task_id: self.unmapped[task_id] for task_id in message.task_ids if task_id in self.unmapped}
        else:
            name = None if message.map_index is None else f"train_{message.map_index}"
            found = {key: state for key, state in self.states.items() if name in (None, key)}
        return TaskStatesResult(task_states=dict.fromkeys(message.run_ids, found))


async def ask(*indexes: int) -> list[str]:
    tis = [SimpleNamespace(dag_id="d", run_id="r", task_id="train", map_index=index) for index in indexes]
    return await asyncio.gather(*(read_task_state(ti, LOG) for ti in tis))  # type: ignore[arg-type]


async def test_instances_that_wait_together_are_asked_for_with_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, 3)
    answers.states["train_1"] = "success"

    assert await ask(0, 1, 7) == ["deferred", "success", GONE]
    assert answers.asked == [None]


async def test_answer_is_newer_than_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, 2)
    first = asyncio.create_task(ask(0))
    await asyncio.sleep(0.02)
    answers.states["train_0"] = "success"

    assert await ask(0) == ["success"]
    await first
    assert answers.asked == [0, 0]


async def test_few_instances_of_a_large_task_are_asked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, 200)

    assert await ask(0, 199) == ["deferred", "deferred"]
    assert await ask(0, 1) == ["deferred", "deferred"]  # how many there are is known only after this answer
    assert await ask(0, 1) == ["deferred", "deferred"]
    assert answers.asked == [0, 199, None, 0, 1]


async def test_question_that_fails_leaves_all_states_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, 2)
    answers.error = OSError("gone")

    assert await ask(0, 1) == [UNKNOWN, UNKNOWN]
    answers.error = None
    assert await ask(0, 1) == ["deferred", "deferred"]


async def ask_runs(*run_ids: str, task_id: str = "train") -> list[str]:
    tis = [SimpleNamespace(dag_id="d", run_id=run_id, task_id=task_id, map_index=-1) for run_id in run_ids]
    return await asyncio.gather(*(read_task_state(ti, LOG) for ti in tis))  # type: ignore[arg-type]


async def test_instances_of_all_runs_of_a_task_are_asked_for_with_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, 0)
    answers.unmapped = {"train": "failed"}

    assert await ask_runs("r", "s", "t") == ["failed"] * 3
    assert answers.runs == [["r", "s", "t"]]


async def test_mapped_instance_and_a_task_of_the_same_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, 2)
    answers.states["train_1"] = "failed"
    answers.unmapped = {"train_1": "success"}
    both, (task,) = await asyncio.gather(ask(0, 1), ask_runs("r", task_id="train_1"))

    assert (both, task, len(answers.runs)) == (["deferred", "failed"], "success", 2)


async def ask_tasks(*task_ids: str) -> list[str]:
    return [
        state
        for states in await asyncio.gather(*(ask_runs("r", task_id=each) for each in task_ids))
        for state in states
    ]


async def test_tasks_of_a_dag_that_are_not_mapped_are_asked_for_with_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Answers(monkeypatch, 0)
    answers.unmapped = {"extract": "success", "train": "deferred"}

    assert await ask_tasks("train", "extract", "report") == ["deferred", "success", GONE]
    assert answers.tasks == [["extract", "report", "train"]]


async def test_task_ids_that_fill_the_url_are_asked_for_with_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, 0)
    tasks = [f"{number:03}" + "\N{SNOWMAN}" * 247 for number in range(40)]
    answers.unmapped = dict.fromkeys(tasks, "deferred")

    assert await ask_tasks(*tasks) == ["deferred"] * 40
    assert max(len(urlencode({"task_ids": some}, doseq=True)) for some in answers.tasks) <= IDS_CHARACTERS_MAX


async def test_run_ids_that_fill_the_url_are_asked_for_with_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, 0)
    answers.unmapped = {"train": "deferred"}
    runs = [f"{number:03}" + "\N{SNOWMAN}" * 247 for number in range(40)]

    assert await ask_runs(*runs) == ["deferred"] * 40
    assert sorted(run_id for some in answers.runs for run_id in some) == runs
    assert max(len(urlencode({"run_ids": some}, doseq=True)) for some in answers.runs) <= IDS_CHARACTERS_MAX


# -- A try asks Airflow before it starts a gang if much time has passed, by whichever clock noticed it ---------------

LATE_S = CONFIRMED_FOR_S + 1


@dataclass
class Try:
    """A try with two clocks that can be moved, the answer of Airflow, and the gangs that were ended."""

    answer: bool | None = True
    started: datetime | None = None
    moments: list[float] = field(default_factory=lambda: [1000.0, 0.0])
    questions: int = 0
    ended: list[str] = field(default_factory=list)
    writes: int = 0

    def __post_init__(self) -> None:
        clocks = [lambda at=at: self.moments[at] for at in range(2)]
        self.guard = StartGuard(self.ask, started=self.started, clocks=clocks)

    async def ask(self) -> bool | None:
        self.questions += 1
        return self.answer

    def submit(self, *, write_s: float = 0.0, writes: int = 1, delete: bool = True) -> int:
        """Send writes that start the gang, each of which takes this time. Returns how many were sent."""

        async def submit(*_: Any) -> int:
            for _write in range(writes):
                await self.guard.confirm()
                self.writes += 1
                self.moments[1] += write_s
            return self.writes

        service = SimpleNamespace(submit=submit)
        gangs: Any = SimpleNamespace(
            key=SimpleNamespace(dag_id="d", task_id="t"),
            call=lambda action: asyncio.run(action(service)),
            end=lambda _, *, why: self.ended.append(why),
            log=LOG,
        )
        submitted: Any = TaskGangs.submit(gangs, None, None, self.guard, delete=delete)
        return int(submitted)


@pytest.mark.parametrize(("wall_s", "monotonic_s"), [(LATE_S, 0.0), (0.0, LATE_S), (-600.0, LATE_S), (LATE_S, LATE_S)])
def test_clock_that_shows_the_longest_time_counts(wall_s: float, monotonic_s: float) -> None:
    one = Try()
    one.moments = [1000.0 + wall_s, monotonic_s]

    assert one.guard.is_due()


def test_quick_submission_asks_nothing() -> None:
    one = Try()
    one.moments = [1000.0 + CONFIRMED_FOR_S, CONFIRMED_FOR_S]

    assert (one.submit(), one.questions) == (1, 0)


def test_time_counts_from_the_start_of_the_try() -> None:
    assert Try(started=datetime.fromtimestamp(1000.0 - LATE_S, UTC)).guard.is_due()
    assert not Try(started=datetime.fromtimestamp(1000.0 + LATE_S, UTC)).guard.is_due()


@pytest.mark.parametrize(("writes", "write_s", "questions"), [(1, 0.0, 1), (3, LATE_S, 4)])
def test_late_submission_asks_directly_before_each_write_and_sends_no_write_twice(
    writes: int, write_s: float, questions: int
) -> None:
    one = Try(answer=True)
    one.moments[1] += LATE_S

    assert (one.submit(writes=writes, write_s=write_s), one.questions, one.ended) == (writes, questions, [])


@pytest.mark.parametrize("late_s", [0.0, LATE_S])
def test_question_that_is_always_asked_does_not_depend_on_the_clock(late_s: float) -> None:
    one = Try(answer=True)
    one.moments[1] += late_s

    asyncio.run(one.guard.confirm(always=True))

    assert (one.questions, one.guard.is_due()) == (1, False)


@pytest.mark.parametrize("delete", [True, False], ids=["on_kill deletes", "on_kill keeps"])
def test_late_submission_of_an_ended_try_starts_nothing(delete: bool) -> None:
    one = Try(answer=False)
    one.moments[1] += LATE_S

    with pytest.raises(SubmissionFailed, match=r"submission of task \S+ failed .* Airflow has ended this try"):
        one.submit(delete=delete)
    assert (one.writes, len(one.ended)) == (0, int(delete))


def test_late_submission_starts_nothing_and_ends_nothing_if_airflow_does_not_answer() -> None:
    one = Try(answer=None)
    one.moments[1] += LATE_S

    with pytest.raises(SubmissionFailed, match="does not say whether this try still runs"):
        one.submit()
    assert (one.writes, one.ended) == (0, [])


@pytest.mark.parametrize(("answer", "ended"), [(True, 0), (None, 0), (False, 1)])
def test_gang_that_started_while_the_process_was_stopped_is_ended_only_if_the_try_has_ended(
    answer: bool | None, ended: int
) -> None:
    one = Try(answer=answer)

    try:
        assert one.submit(write_s=LATE_S) == 1
    except SubmissionFailed:
        assert answer is False
    assert len(one.ended) == ended

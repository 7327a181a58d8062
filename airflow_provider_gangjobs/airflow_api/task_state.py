"""The state of a task as Airflow's API server reports it, and the rules for the task's gang in that state.

The rules are pure. They know three answers: a state, no task instance, and unknown. The names of the states are
compared as text, so a state that a later Airflow introduces permits nothing.

If a user clears a task while a worker completes the task, Airflow 3 starts the next try with the method and the event
of the earlier try, instead of `execute`: `clear_task_instances` resets these values in all states but `running`. The
next try has then neither submitted nor claimed what the event is about, and the user wants the task to begin anew. So
each event names the task instance that has waited for it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote_plus

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from asgiref.sync import sync_to_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow.sdk.types import Logger


CLEARED: Final = "cleared"
"""The task instance exists and has no state. A user has cleared it, and the scheduler has not scheduled it yet.

A scheduler that takes over from one that died also resets a queued task instance to no state. The gang of that task has
ended by then, since its trigger has written its event, unless the trigger could not follow the gang.
"""
GONE: Final = "gone"
"""Airflow has no such task instance: its DAG run was deleted."""
UNKNOWN: Final = "unknown"
"""The state could not be read."""
_ENDED_STATES: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


def is_kill(state: str, *, outlives_task: bool = False) -> bool:
    """Return true if this state means that the task was killed, when Airflow cancels the trigger of the task.

    Airflow gives the same reason to a trigger that it cancels because a user ended the task, because another triggerer
    has taken the trigger over, and because another triggerer has written the trigger's event (apache/airflow#73454). Of
    these only an end of the task, or a clear, is a kill. A task that is deferred, scheduled, queued, running, or up for
    retry still wants its gang: this try goes on with the gang, or the next try adopts it. An unknown task may want it.

    After a clear the state may already be that of the next try. Then this is no kill either: the next try adopts the
    gang or replaces it, as `durable` says.

    :param outlives_task: The gang runs on after its task has succeeded, so a success ends nothing.
    """
    if outlives_task and is_success(state):
        return False
    return state in _ENDED_STATES or state in {CLEARED, GONE}


def is_success(state: str) -> bool:
    """Return whether Airflow has accepted that the task has succeeded."""
    return state == "success"


def is_final_failure(state: str) -> bool | None:
    """Return whether the failure of a gang is that of its task, which submits no further gang.

    A task that runs, waits for its next try, or was cleared may submit another gang. `None` if the task has succeeded:
    then another of its gangs has succeeded, or a user has marked the task, and which of them is unknown.
    """
    return None if is_success(state) else state in _ENDED_STATES or state == GONE


def read_state(task_instance: Any, ask: Callable[..., Mapping[str, Any]], log: Logger) -> str:
    """Return the state of a task instance, or `CLEARED`, `GONE`, or `UNKNOWN`. Never raises. Blocks.

    :param ask: `get_task_states` of Airflow's `RuntimeTaskInstance`.
    """
    if task_instance is None:  # `dag.test()` runs a trigger without a task instance
        return UNKNOWN
    map_index = -1 if task_instance.map_index is None else task_instance.map_index
    run_id = task_instance.run_id
    question = task_instance.dag_id, [task_instance.task_id], [run_id]
    states = _ask_for_states(ask, log, *question, map_index=map_index)
    return UNKNOWN if states is None else _only_state(states.get(run_id, {}))


def _ask_for_states(
    ask: Callable[..., Mapping[str, Any]],
    log: Logger,
    dag_id: str,
    task_ids: Sequence[str],
    run_ids: Sequence[str],
    **map_index: int,
) -> Mapping[str, Mapping[str, Any]] | None:
    """Return the states of the instances of tasks, by their runs and by the names that Airflow gives them.

    Airflow names a mapped instance `<task id>_<map index>`, which may be the id of another task. So a question names
    one task, or asks only for instances that are not mapped. `None` if the states are unknown.
    """
    try:
        return ask(dag_id=dag_id, task_ids=list(task_ids), run_ids=list(run_ids), **map_index)
    except Exception:
        log.exception("Airflow could not be asked for the state of the task")
        return None


def _only_state(states: Mapping[str, Any]) -> str:
    """Return the state of an instance that was asked about by DAG, run, task and map index: there is at most one."""
    for state in states.values():
        return _state_text(state)
    return GONE


def _knows(ask: Callable[[], object], report: Callable[..., object], what: str) -> bool | None:
    """Return whether Airflow knows what `ask` asks it for. `None` if Airflow could not be asked."""
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        ask()
    except Exception as error:
        detail = error.error.detail if isinstance(error, AirflowRuntimeError) else None
        if (detail or {}).get("status_code") in _FORGOTTEN:
            return False
        report("Airflow could not be asked %s", what, exc_info=True)
        return None
    return True


def _by_map_index(task_id: str, states: Mapping[str, Any]) -> dict[int, str]:
    """Return the states of the instances of a task, of which Airflow names a mapped one `<task id>_<map index>`."""
    return {
        int(name.removeprefix(f"{task_id}_")) if name != task_id else -1: _state_text(state)
        for name, state in states.items()
    }


def _state_text(state: Any) -> str:
    return CLEARED if state is None else str(getattr(state, "value", state))


def has_reported(task_instance: Any) -> bool:
    """Return whether this process has told Airflow how the try has ended, or that the task is deferred.

    Airflow sends SIGTERM to such a process, too: if its callbacks and listeners take longer than `[core]
    task_success_overtime`, and if its worker is shut down. Then nobody has killed the task, and its trigger or its next
    try goes on with the gang.

    :param task_instance: The task instance of the context, which is running before (`task_runner.parse` of the SDK).
    """
    return getattr(task_instance, "state", None) not in (None, "running")


def is_running_try(task_instance: Any, log: Logger) -> bool | None:
    """Return whether exactly this try runs. `None` if Airflow could not be asked. Never raises. Blocks.

    The state alone is not enough, because it may be the state of the next try. Airflow gives each try a new id, and
    forgets the id before, so the try runs if the task runs, and Airflow knows the id after that answer. Of the requests
    of a task about its own id, this is the only one that changes nothing and fails for an id that is forgotten.

    :param task_instance: The task instance of the context, in the process of a task.
    """
    state = read_state(task_instance, task_instance.get_task_states, log)
    if state == UNKNOWN:
        return None
    if state != "running":
        return False
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ValidateInletsAndOutlets

    question = ValidateInletsAndOutlets(ti_id=task_instance.id)
    return _knows(lambda: task_runner.SUPERVISOR_COMMS.send(question), log.warning, "whether this try runs")


_FORGOTTEN: Final = frozenset({404, 410})
"""The answers to a request about what Airflow does not know, or does not know any more."""


INSTANCES_PER_STATE: Final = 50
"""Airflow reads so many instances of a task within the time that one more request of a triggerer takes. Its supervisor
handles one request between two rounds of queries of its database."""
SIZES_MAX: Final = 1000
IDS_CHARACTERS_MAX: Final = 28 * 1024
"""How long the run ids of a request may be, and its task ids. The request has both in its URL, which has at most 64
KiB."""


async def read_task_state(task_instance: Any, log: Logger) -> str:
    """Return the state of a task instance, or `CLEARED`, `GONE`, or `UNKNOWN`. Never raises.

    The answer is newer than the call. Calls that wait at the same time share a request if they ask for instances of one
    mapped task, or for tasks of one DAG that are not mapped, also those of several runs.

    :param task_instance: Has `dag_id`, `run_id`, `task_id` and `map_index`. `None` is unknown.
    """
    if task_instance is None:
        return UNKNOWN
    from airflow_provider_gangjobs.cluster.loop_local import loop_local

    return await loop_local(_Questions).state_of(task_instance, log)


class _Instance(NamedTuple):
    """An instance of a task of a DAG."""

    run_id: str
    task_id: str
    map_index: int


class _Question(NamedTuple):
    """What is asked next about one mapped task, or about the other tasks of a DAG."""

    instances: set[_Instance]
    answer: asyncio.Task[Mapping[_Instance, str]]
    """Returns the states of these instances."""


class _Questions:
    """The questions of one event loop for states of task instances."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next: dict[tuple[str, str | None], _Question] = {}
        """By the DAG and the mapped task."""
        self._sizes: dict[tuple[str, ...], int] = {}
        """How many instances a task had in a run, as far as Airflow has said it."""

    async def state_of(self, instance: Any, log: Logger) -> str:
        map_index = -1 if instance.map_index is None else instance.map_index
        subject = instance.dag_id, instance.task_id if map_index >= 0 else None
        asked = _Instance(instance.run_id, instance.task_id, map_index)
        question = self._next.get(subject)
        if question is None or question.answer.done():
            instances: set[_Instance] = set()
            answer = asyncio.create_task(self._answer(subject, instances, log), name="state of a task")
            question = self._next[subject] = _Question(instances, answer)
        question.instances.add(asked)
        states = await asyncio.shield(question.answer)
        return states[asked]

    async def _answer(
        self, subject: tuple[str, str | None], instances: set[_Instance], log: Logger
    ) -> Mapping[_Instance, str]:
        async with self._turn:
            del self._next[subject]  # who asks from now on needs a later answer
            dag_id, mapped = subject
            if mapped is None:
                return await sync_to_async(_ask_for_unmapped)(dag_id, instances, log)
            return await sync_to_async(self._ask_for_mapped)((dag_id, mapped), instances, log)

    def _ask_for_mapped(self, task: tuple[str, str], instances: set[_Instance], log: Logger) -> Mapping[_Instance, str]:
        dag_id, task_id = task
        asked: dict[str, list[int]] = defaultdict(list)
        for run_id, _, map_index in sorted(instances):
            asked[run_id].append(map_index)
        answers: dict[_Instance, str] = {}
        for index, run_ids in self._requests(task, asked):
            filters = {} if index is None else {"map_index": index}
            ask = RuntimeTaskInstance.get_task_states
            states = _ask_for_states(ask, log, dag_id, [task_id], run_ids, **filters)
            absent = UNKNOWN if states is None else GONE
            for run_id in run_ids:
                found = {} if states is None else self._states_of_run(task, run_id, index, states.get(run_id, {}))
                wanted = asked[run_id] if index is None else [index]
                answers |= {_Instance(run_id, task_id, one): found.get(one, absent) for one in wanted}
        return answers

    def _requests(
        self, task: tuple[str, str], asked: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[int | None, list[str]]]:
        """Yield the map index and the runs of each request. `None` asks for all instances of the runs."""
        runs: dict[int | None, list[str]] = defaultdict(list)
        for run_id, indexes in asked.items():
            size = self._sizes.get((*task, run_id), max(indexes) + 1)
            is_whole = len(indexes) > 1 and size <= len(indexes) * INSTANCES_PER_STATE
            for index in [None] if is_whole else indexes:
                runs[index].append(run_id)
        for index, run_ids in runs.items():
            for some in _groups_of(run_ids, "run_ids"):
                yield index, some

    def _states_of_run(
        self, task: tuple[str, str], run_id: str, index: int | None, states: Mapping[str, Any]
    ) -> Mapping[int, str]:
        return self._all_states(task, run_id, states) if index is None else {index: _only_state(states)}

    def _all_states(self, task: tuple[str, str], run_id: str, states: Mapping[str, Any]) -> dict[int, str]:
        self._sizes[*task, run_id] = len(states)
        if len(self._sizes) > SIZES_MAX:
            del self._sizes[next(iter(self._sizes))]
        return _by_map_index(task[1], states)


def _ask_for_unmapped(dag_id: str, instances: set[_Instance], log: Logger) -> Mapping[_Instance, str]:
    """Return the states of instances that are not mapped."""
    answers: dict[_Instance, str] = {}
    groups_of_runs = _groups_of(sorted({one.run_id for one in instances}), "run_ids")
    groups_of_tasks = _groups_of(sorted({one.task_id for one in instances}), "task_ids")
    for run_ids, task_ids in product(groups_of_runs, groups_of_tasks):
        states = _ask_for_states(RuntimeTaskInstance.get_task_states, log, dag_id, task_ids, run_ids, map_index=-1)
        wanted = (_Instance(run_id, task_id, -1) for run_id in run_ids for task_id in task_ids)
        for one in instances.intersection(wanted):
            answers[one] = UNKNOWN if states is None else _state_in(states, one)
    return answers


def _state_in(states: Mapping[str, Mapping[str, Any]], instance: _Instance) -> str:
    of_run = states.get(instance.run_id, {})
    return _state_text(of_run[instance.task_id]) if instance.task_id in of_run else GONE


def _groups_of(ids: Iterable[str], parameter: str) -> Iterator[list[str]]:
    """Return ids in groups, each of which fits into the URL of a request, as values of a parameter."""
    some: list[str] = []
    characters = 0
    for one in ids:
        length = len(f"&{parameter}={quote_plus(one)}")
        if some and characters + length > IDS_CHARACTERS_MAX:
            yield some
            some, characters = [], 0
        some.append(one)
        characters += length
    yield some


KEY: Final = "task_instance"


def with_task_instance(payload: Mapping[str, Any], ti: Any) -> dict[str, Any]:
    """Return the payload of an event with the id of the task instance that has waited for the event.

    :param ti: The `task_instance` of the trigger; `None` in `dag.test()`, which has no further tries.
    """
    return dict(payload) if ti is None else {**payload, KEY: str(ti.id)}


START_IN_WORKER: Final = "start"


def start_in_worker_event(reason: str) -> dict[str, Any]:
    """Return the payload of the event of a trigger that leaves the start of the gang to a worker.

    :param reason: Why only a worker can start the gang.
    """
    return {"v": 1, "status": START_IN_WORKER, "reason": reason}


def reason_to_start_in_worker(payload: object) -> str | None:
    """Return the reason if the event leaves the start of the gang to a worker, or else `None`."""
    is_start = isinstance(payload, Mapping) and payload.get("status") == START_IN_WORKER
    return str(payload.get("reason")) if isinstance(payload, Mapping) and is_start else None


def is_of_earlier_try(payload: object, ti: Any) -> bool:
    """Return whether another try than this one has waited for the event.

    :param ti: The task instance of the try that Airflow has resumed. Each try has an id of its own.
    """
    waited = payload.get(KEY) if isinstance(payload, Mapping) else None
    return waited is not None and waited != str(ti.id)

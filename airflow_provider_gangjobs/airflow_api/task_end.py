"""The end of a task in the triggerer, without a worker: whether it is possible, the XComs, and the event.

Airflow ends such a task in its database. What the process of a task does at its end, and what Airflow 3.3 does only for
such a process, would be lost. So the rule is: all that a worker makes observable is produced by the trigger, too, or is
not used by this task and this installation. `reasons_for_worker` has what only a worker produces, each with its name.

`TaskSuccessEvent(xcoms=...)` stores the JSON text of a value in place of the value (Airflow 3.3.2), so a trigger pushes
XComs as a worker does, through the Execution API, before the event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.airflow_api.configuration import conf, has_tracing
from airflow_provider_gangjobs.exceptions import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.triggers.base import TriggerEvent

RETURN_VALUE: Final = "return_value"


# The last five are known only to the running Airflow.
_REASONS: Final = {
    "waits_in_worker": "deferrable is false, so the task waits in a worker",
    "ends_before_gang": 'wait_until is not "ended"',
    "outlets": "the task has outlets, and a triggerer emits no asset events",
    "post_execute": "the task has post_execute, which only a worker calls",
    "on_success_callback": "the task has on_success_callback, which Airflow drops after an end in the triggerer",
    "multiple_outputs": "the task has multiple_outputs, which only a worker pushes",
    "extra_links": "the operator has extra links, which only a worker pushes",
    "old_airflow": "a trigger can end a task only with Airflow 3.3 or later",
    "xcom_backend": "Airflow has an XCom backend of its own, which only a worker uses",
    "listeners": "a plugin of Airflow has a listener, such as that of OpenLineage, which only a worker calls",
    "traces": "[traces] otel_on is true, and only a worker sends the spans of a task",
    "clears_state": "[state_store] clear_on_success is true, which Airflow does only after a worker",
}


def applying(**facts: Any) -> tuple[str, ...]:
    """Return the names of the facts that apply."""
    return tuple(name for name, applies in facts.items() if applies)


def reasons_for_worker(facts: Iterable[str]) -> tuple[str, ...]:
    """Return why a worker must end the task. Empty if the success of its gang may end the task in the triggerer.

    :param facts: Names of `_REASONS` that apply, and the methods for the end of the task that a subclass has replaced.
    """
    return tuple(_REASONS.get(name, f"the operator has a {name} of its own") for name in dict.fromkeys(facts))


def end_problems(facts: Iterable[str]) -> tuple[Problem, ...]:
    """Return the problems of `end_from_trigger=True` that are known when the DAG file is parsed."""
    remedy = "Omit end_from_trigger, or what only a worker does"
    return tuple(Problem("end_from_trigger", f"is true, and {reason}", remedy) for reason in reasons_for_worker(facts))


def replaced_methods(operator: object, base: type, names: Iterable[str]) -> tuple[str, ...]:
    """Return which of these methods the class of an operator has not from `base`."""
    return tuple(name for name in names if getattr(type(operator), name) is not getattr(base, name))


def system_facts() -> tuple[str, ...]:
    """Return what only the running Airflow says. May load the plugins of Airflow."""
    from airflow.sdk.bases.xcom import BaseXCom

    if not hasattr(BaseXCom, "aset"):  # Airflow 3.1 and 3.2. Remove this branch when 3.3 is the oldest supported one.
        return ("old_airflow",)
    from airflow.sdk.execution_time.xcom import XCom
    from airflow.sdk.listener import get_listener_manager

    return applying(
        xcom_backend=XCom is not BaseXCom,
        listeners=any(not _is_example(listener) for listener in get_listener_manager().pm.get_plugins()),
        traces=has_tracing(),
        clears_state=conf.getboolean("state_store", "clear_on_success", fallback=False),
    )


def _is_example(listener: object) -> bool:
    """Return whether a listener is of the examples that Airflow loads by default, and which only print."""
    module = getattr(listener, "__name__", None) or type(listener).__module__
    return str(module).startswith("airflow.example_dags.")


async def push_xcom(
    ti: Any, key: str, value: Any, *, is_dag_result: bool = False, mapped_length: int | None = None
) -> None:
    """Push an XCom of the task, with the value and the columns that a worker gives it.

    :param ti: The task instance of the trigger.
    :param is_dag_result: Whether the task returns the result of its DAG.
    :param mapped_length: The length of a value over which a task is mapped.

    Raises:
        AirflowRuntimeError: Airflow has refused the XCom, or could not store it.
    """
    from airflow.sdk.execution_time.xcom import XCom  # that of a backend, if Airflow has one

    await XCom.aset(
        key,
        value,
        **_task_of(ti),
        dag_result=is_dag_result,
        _mapped_length=mapped_length,
    )


async def has_xcom(ti: Any, key: str) -> bool:
    """Return whether the task has an XCom with a value."""
    from airflow.sdk.execution_time.xcom import XCom

    return await XCom.aget_one(key=key, **_task_of(ti)) is not None


def _task_of(ti: Any) -> dict[str, Any]:
    """Return the names by which Airflow stores the XComs of a task instance."""
    map_index = -1 if ti.map_index is None else ti.map_index
    return {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id, "map_index": map_index}


def is_mappable(value: Any) -> bool:
    """Return whether Airflow can map a task over this JSON value."""
    return isinstance(value, (list, dict))


def success_event() -> TriggerEvent:
    """Return the event that ends the task of a trigger with success, without a worker.

    For each of these events, Airflow sends the DAG processor a request for callbacks, under no condition but the state
    (`handle_event_submit` in `airflow/models/trigger.py`). The DAG processor parses the file, and drops the request
    (`_execute_task_callbacks` in `airflow/dag_processing/processor.py`, Airflow 3.3.2).
    """
    from airflow.triggers.base import TaskSuccessEvent

    return TaskSuccessEvent()

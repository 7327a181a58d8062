"""What a trigger must know to end the task of a gang that has succeeded, as one of its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from airflow_provider_gangjobs.airflow_api.task_end import reasons_for_worker, with_system_facts
from airflow_provider_gangjobs.gang.spec import (
    LOG_LIMIT_BYTES,
    RESULTS_LIMIT_BYTES,
    LogOptions,
    Logs,
    OnFinish,
    Results,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.parameters.task_parameters import TaskParameters


XCOM_GANG: Final = "gang"
"""XCom key of the gang's namespace, name and uid. The XCom exists from the submission on."""
XCOM_END: Final = "gang_end"
"""XCom key of the payload of the gang's event, which describes the end also after the Job is deleted."""
XCOM_REFUSED: Final = "gang_refused"
"""XCom key of the error for which a try has submitted no gang: its class and its message."""


class TriggerEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a trigger ends its task. Airflow stores it, so a new field needs a default, and no field is renamed."""

    results: Results = Results.RANK0
    results_limit: int = RESULTS_LIMIT_BYTES
    result_folders: tuple[str, ...] = ()
    """Where the ranks store large results. Addresses elsewhere are not followed."""
    logs: Logs = Logs.NONE
    log_containers: tuple[str, ...] = ()
    log_limit: int = LOG_LIMIT_BYTES
    deletes: bool = False
    """Whether the Job of a gang that has succeeded is deleted."""
    pushes_xcoms: bool = True
    is_dag_result: bool = False
    """Whether the task returns the result of its DAG."""
    is_mapped_over: bool = False
    """Whether another task is mapped over the value of this task, so that Airflow must know its length."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Return what `to_json` has stored. Fields of later releases are ignored."""
        return msgspec.convert(stored, cls)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, without the ones that equal their default."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields

    @property
    def log_options(self) -> LogOptions:
        """Which logs are copied into the log of the task, and how much of them."""
        return LogOptions(self.logs, self.log_containers, self.log_limit)


def trigger_end(
    task: TaskParameters, ti: Any, result_folders: Sequence[str], log: Logger, *, is_dag_result: bool | None = None
) -> dict[str, Any] | None:
    """Return `TriggerArgs.end` of a task; `None` if a worker must end the task, or if nobody wants it otherwise.

    The log says why a worker must end a task that wants to end in the triggerer.

    :param ti: The task instance of the context. Its `task` belongs to a DAG.
    :param is_dag_result: Whether the task returns the result of its DAG. By default the operator says it.
    """
    if not task.wants_trigger_end:
        return None
    if reasons := reasons_for_worker(with_system_facts(task.end_facts)):
        log.info("A worker ends this task after its gang, and not the triggerer: %s", "; ".join(reasons))
        return None
    is_mapped = ti.map_index is not None and ti.map_index >= 0
    return TriggerEnd(
        results=task.results,
        results_limit=task.results_limit,
        result_folders=tuple(result_folders),
        logs=task.logs,
        log_containers=task.log_containers,
        log_limit=task.log_limit,
        deletes=task.on_finish in (OnFinish.DELETE, OnFinish.DELETE_SUCCEEDED),
        pushes_xcoms=task.do_xcom_push,
        is_dag_result=ti.task.returns_dag_result if is_dag_result is None else is_dag_result,
        is_mapped_over=not is_mapped and next(iter(ti.task.iter_mapped_dependants()), None) is not None,
    ).to_json()

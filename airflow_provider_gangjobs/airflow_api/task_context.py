"""What the context of a task gives to its gang: variables of templates in a triggerer, and lineage for its programs.

Spark, dbt and OpenLineage's clients read `OPENLINEAGE_PARENT_ID`; OpenTelemetry's SDKs read `TRACEPARENT`. A team that
uses neither in Airflow gets no variable and loads neither library. They describe the try that creates the gang, so they
are no part of the gang's parameters: a later try adopts the gang with the variables that it has.

In a triggerer, templates have the variables whose values are there the same as in a worker. A triggerer may send its
supervisor only some of the requests of a task (`ToTriggerSupervisor` of Airflow 3.3). The supervisor does not answer
the others, so a template that sends one would wait forever, in the only thread that has such requests. So each other
variable refuses every use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time.xcom import XCom

from airflow_provider_gangjobs.airflow_api.configuration import has_tracing
from airflow_provider_gangjobs.kube.well_known import ENV_LINEAGE_PARENT, TASK_ENV

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context
    from airflow.sdk.types import Logger


_OPENLINEAGE: Final = "airflow.providers.openlineage"


def describes_tasks() -> bool:
    """Return whether `task_env` may return a variable in this process."""
    return has_tracing() or _sends_lineage()


def task_env(ti: Any, log: Logger) -> dict[str, str]:
    """Return the variables of this try for every rank: without OpenLineage and without tracing none.

    :param ti: The task instance of the context.
    """
    return {**_lineage_parent(ti, log), **_trace_context()}


def _lineage_parent(ti: Any, log: Logger) -> dict[str, str]:
    """Return the run of the task in OpenLineage, as the provider's own macro gives it, if the provider is enabled."""
    try:
        if not _sends_lineage():
            return {}
        return {ENV_LINEAGE_PARENT: import_module(f"{_OPENLINEAGE}.plugins.macros").lineage_parent_id(ti)}
    except Exception as error:  # foreign code, and a task does not fail for want of lineage
        log.warning("The ranks get no %s: %s", ENV_LINEAGE_PARENT, error)
        return {}


def _trace_context() -> dict[str, str]:
    """Return the W3C trace context of the span in which Airflow runs the task, if Airflow's tracing is on."""
    if not has_tracing():
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items() if name.upper() in TASK_ENV}


def _sends_lineage() -> bool:
    is_installed = _OPENLINEAGE in sys.modules or find_spec(_OPENLINEAGE) is not None
    return is_installed and not import_module(f"{_OPENLINEAGE}.conf").is_disabled()


SAME: Final = frozenset(
    {
        "conn",
        "dag_run",
        "data_interval_end",
        "data_interval_start",
        "ds",
        "ds_nodash",
        "logical_date",
        "macros",
        "params",
        "run_id",
        "task_instance_key_str",
        "ts",
        "ts_nodash",
        "ts_nodash_with_tz",
        "var",
    }
)
"""The variables that have the same value in a triggerer and in a worker."""
_OF_TASK_INSTANCE: Final = ("dag_id", "run_id", "task_id", "map_index", "try_number")
_NAMES: Final = {"dag": ("dag_id",), "task": ("task_id", "dag_id")}


class OnlyInWorkerError(Exception):
    """A template uses what only a worker has."""


def template_context(context: Context) -> Any:
    """Return the context for templates of a triggerer. Whatever a triggerer cannot know refuses every use."""
    known: Mapping[str, Any] = context
    ti = known["ti"]
    instance = _TaskInstance(ti)
    names = {
        name: _Names(name, {attribute: getattr(ti, attribute) for attribute in attributes})
        for name, attributes in _NAMES.items()
    }
    return {
        **{name: value if name in SAME else _Names(name, {}) for name, value in known.items()},
        **names,
        "ti": instance,
        "task_instance": instance,
    }


class _Names:
    """An object of which a template may read some attributes."""

    def __init__(self, name: str, attributes: Mapping[str, Any]) -> None:
        self.__dict__.update(attributes)
        self.__dict__["_refused"] = name

    def __getattr__(self, attribute: str) -> NoReturn:
        raise OnlyInWorkerError(f"a template uses {self._refused}.{attribute}, which only a worker has")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OnlyInWorkerError(f"a template uses {self._refused}, which only a worker has")

    __str__ = __repr__ = __call__ = __iter__ = __getitem__ = __bool__ = __len__ = __eq__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class _TaskInstance(_Names):
    def __init__(self, ti: Any) -> None:
        super().__init__("ti", {name: getattr(ti, name) for name in _OF_TASK_INSTANCE})

    def xcom_pull(
        self, task_ids: Any = None, dag_id: Any = None, key: str = BaseXCom.XCOM_RETURN_KEY, **others: Any
    ) -> Any:
        """Return the XCom of one task that is not mapped."""
        tasks = [task_ids] if isinstance(task_ids, str) else task_ids
        if not isinstance(task_ids, str) or others:
            raise OnlyInWorkerError(f"a template pulls the XComs of {tasks}, which only a worker can")
        values = self.__dict__
        value = XCom.get_one(
            key=key, dag_id=dag_id or values["dag_id"], task_id=task_ids, run_id=values["run_id"], map_index=-1
        )
        if value is None:
            raise OnlyInWorkerError(f"task {task_ids} has no single XCom {key}")
        return value

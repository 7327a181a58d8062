"""The context of templates in a triggerer, with the variables whose values are there the same as in a worker.

A triggerer may send its supervisor only some of the requests of a task (`ToTriggerSupervisor` of Airflow 3.3). The
supervisor does not answer the others, so a template that sends one would wait forever, in the only thread that has such
requests. So each other variable refuses every use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time.xcom import XCom

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

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


__all__ = ["OnlyInWorkerError", "template_context"]

"""Read the record of a task instance from Airflow's database. Only the API server may use this module.

The parts of Airflow that the page needs and that are not Airflow's public interface are used only in this module.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_gangjobs.operators.gang_job import XCOM_END, XCOM_GANG
from airflow_provider_gangjobs.plugins.locator import TaskRecord

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_provider_gangjobs.gang.identity import TaskKey

TRIGGER_PREFIX: Final = "airflow_provider_gangjobs.triggers."


def read_task_record(key: TaskKey) -> TaskRecord | None:
    """Return the record of a task instance, or `None` if the task instance does not exist. The call blocks."""
    with create_session(scoped=False) as session:
        ti = session.scalar(select(TaskInstance).where(*_matches(TaskInstance, key)))
        if ti is None:
            return None
        return TaskRecord(
            key=key,
            state=ti.state,
            trigger=_trigger(session, ti.trigger_id),
            rendered=session.scalar(
                select(RenderedTaskInstanceFields.rendered_fields).where(*_matches(RenderedTaskInstanceFields, key))
            ),
            gang=_xcom(session, key, XCOM_GANG),
            end=_xcom(session, key, XCOM_END),
        )


def _matches(model: Any, key: TaskKey) -> tuple[Any, ...]:
    return (
        model.dag_id == key.dag_id,
        model.run_id == key.run_id,
        model.task_id == key.task_id,
        model.map_index == key.map_index,
    )


def _trigger(session: Session, trigger_id: int | None) -> dict[str, Any] | None:
    trigger = session.get(Trigger, trigger_id) if trigger_id is not None else None
    return dict(trigger.kwargs) if trigger is not None and trigger.classpath.startswith(TRIGGER_PREFIX) else None


def _xcom(session: Session, key: TaskKey, name: str) -> Any:
    """Return the XCom as the database stores it.

    A custom XCom backend may store only a reference there, which does not parse as a gang.
    """
    value = session.scalar(select(XComModel.value).where(*_matches(XComModel, key), XComModel.key == name))
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None

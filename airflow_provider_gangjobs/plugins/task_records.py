"""Records: what Airflow's database has of a task instance. For the API server only, which may read it.

Everything of Airflow that is not its public interface, and that this page needs, is in here.
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
from airflow_provider_gangjobs.plugins.locator import Record

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_provider_gangjobs.gang.identity import TaskKey

OUR_TRIGGERS: Final = "airflow_provider_gangjobs.triggers."


def read_record(key: TaskKey) -> Record | None:
    """What is on record of a task instance, `None` if there is no such. Blocks."""
    with create_session(scoped=False) as session:
        ti = session.scalar(select(TaskInstance).where(*_of(TaskInstance, key)))
        if ti is None:
            return None
        return Record(
            key=key,
            state=ti.state,
            trigger=_trigger(session, ti.trigger_id),
            rendered=session.scalar(
                select(RenderedTaskInstanceFields.rendered_fields).where(*_of(RenderedTaskInstanceFields, key))
            ),
            gang=_xcom(session, key, XCOM_GANG),
            end=_xcom(session, key, XCOM_END),
        )


def _of(model: Any, key: TaskKey) -> tuple[Any, ...]:
    return (
        model.dag_id == key.dag_id,
        model.run_id == key.run_id,
        model.task_id == key.task_id,
        model.map_index == key.map_index,
    )


def _trigger(session: Session, trigger_id: int | None) -> dict[str, Any] | None:
    trigger = session.get(Trigger, trigger_id) if trigger_id is not None else None
    return dict(trigger.kwargs) if trigger is not None and trigger.classpath.startswith(OUR_TRIGGERS) else None


def _xcom(session: Session, key: TaskKey, name: str) -> Any:
    """As it is stored; of a backend that stores elsewhere it is a reference, which leads to no gang."""
    value = session.scalar(select(XComModel.value).where(*_of(XComModel, key), XComModel.key == name))
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None

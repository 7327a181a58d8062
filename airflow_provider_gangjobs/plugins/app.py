"""The FastAPI application that serves the tab "Gang" and the page "Gangs". Only Airflow's API server loads this module.

Each route returns the whole page, or the part of the page that a refresh replaces. A page below the tab has the last
lines of the log of a rank. The application of `rest` is mounted below them.

Airflow does not authenticate requests to a plugin's application, so each route requires the permissions that Airflow
itself requires: the user may read the task instances of this DAG, and the logs of its tasks, since the page shows
messages that the user's program has written. The page changes nothing.

Read the record of a task instance from Airflow's database. Only the API server may use this module.

The parts of Airflow that the page needs and that are not Airflow's public interface are used only in this module.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from airflow_provider_gangjobs.airflow_api.configuration import installation_id
from airflow_provider_gangjobs.attempt.deferral import XCOM_END, XCOM_GANG, XCOM_REFUSED
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import Logs
from airflow_provider_gangjobs.plugins.caches import (
    JOB_NOT_FOUND,
    ClusterUnreadError,
    ListCache,
    SnapshotCache,
    SnapshotResult,
)
from airflow_provider_gangjobs.plugins.clusters import ListSource
from airflow_provider_gangjobs.plugins.gangs_page import GANGS_ROUTE, GangsPage, read_serialized_dag
from airflow_provider_gangjobs.plugins.html import PageContext, render, render_rank, security_headers
from airflow_provider_gangjobs.plugins.locator import (
    FINISHED_TASK_STATES,
    MappedRow,
    TaskRecord,
    choose_indexes,
    fields_of_start,
    locate,
    mapped_rows,
    parse_refusal,
    parse_xcom,
    with_waits,
)
from airflow_provider_gangjobs.plugins.rest import URL_PREFIX, make_api
from airflow_provider_gangjobs.plugins.rest_access import READ_DAG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from airflow_provider_gangjobs.tracking.logs.last_lines import RankLog


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
            )
            or fields_of_start(read_serialized_dag(session, ti.dag_version_id), key.task_id),
            gang=_xcom(session, key, XCOM_GANG),
            end=_xcom(session, key, XCOM_END),
            refusal=_xcom(session, key, XCOM_REFUSED),
        )


class MappedTask(NamedTuple):
    """The map indexes of a mapped task."""

    rows: Sequence[MappedRow] = ()
    omitted: int = 0
    """How many map indexes have no row."""
    source: ListSource | None = None
    """Where the gangs are of those that have not ended; `None` if all have."""


def read_mapped(key: TaskKey) -> MappedTask:
    """Return the map indexes of a task. The call blocks."""
    *of_task, _ = _matches(TaskInstance, key)
    *of_xcoms, _ = _matches(XComModel, key)
    with create_session(scoped=False) as session:
        indexes = select(TaskInstance.map_index, TaskInstance.state).where(*of_task, TaskInstance.map_index >= 0)
        states = {index: state or "" for index, state in session.execute(indexes)}
        chosen = choose_indexes(states)
        values = select(XComModel.map_index, XComModel.value).where(
            *of_xcoms, XComModel.key == XCOM_END, XComModel.map_index.in_(chosen)
        )
        ends = {index: parse_xcom(value) for index, value in session.execute(values)} if chosen else {}
        live = [index for index in chosen if states[index] not in FINISHED_TASK_STATES]
        fields = RenderedTaskInstanceFields
        *of_fields, _ = _matches(fields, key)
        found = select(fields.rendered_fields).where(*of_fields, fields.map_index.in_(live)).limit(1)
        rendered = session.scalar(found) if live else None
    source = ListSource.of_task(rendered) if rendered is not None else None
    return MappedTask(mapped_rows(chosen, states, ends), len(states) - len(chosen), source)


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
    """Return the XCom as the database stores it."""
    return parse_xcom(session.scalar(select(XComModel.value).where(*_matches(XComModel, key), XComModel.key == name)))


ROUTE: Final = "/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/{map_index}"
REFRESH_S: Final = 3
REFRESH_AFTER_ERROR_S: Final = 30
"""The refresh interval while the API server cannot read the cluster."""
_MAP_INDEX: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


def make_app() -> FastAPI:
    """Build the application, without the documentation pages of FastAPI."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=READ_DAG)
    app.state.snapshots = SnapshotCache()
    app.add_api_route(ROUTE, gang_page, response_class=HTMLResponse)
    app.add_api_route(f"{ROUTE}/ranks/{{rank}}", rank_page, response_class=HTMLResponse)
    app.state.gangs = GangsPage(ListCache(clients=app.state.snapshots.clients))
    app.add_api_route(GANGS_ROUTE, app.state.gangs.respond, response_class=HTMLResponse)
    # A mounted application has none of the dependencies of this one.
    app.mount(URL_PREFIX, make_api(app.state.snapshots, read_task_record))
    return app


async def task_in_address(
    dag_id: Annotated[str, Path()],
    run_id: Annotated[str, Path()],
    task_id: Annotated[str, Path()],
    map_index: Annotated[str, Path()],
) -> TaskKey:
    """Return the task instance in the address of a request."""
    return TaskKey(dag_id, run_id, task_id, parse_map_index(map_index), installation_id())


TaskInAddress = Annotated[TaskKey, Depends(task_in_address)]


async def gang_page(request: Request, key: TaskInAddress, *, part: Annotated[bool, Query()] = False) -> HTMLResponse:
    """Return the page of a task instance's gang; with `part`, only the part that a refresh replaces.

    Raises:
        HTTPException: 404 if the task instance does not exist.
    """
    record = await run_in_threadpool(read_task_record, key)
    is_mapped = record is None or key.map_index >= 0
    mapped = await run_in_threadpool(read_mapped, key) if is_mapped else MappedTask()
    if record is None and not mapped.rows:
        raise HTTPException(404, "Task instance not found")
    record = record or TaskRecord(key)
    locator, now = locate(record), datetime.now(UTC)
    result = await request.app.state.snapshots.get(locator) if locator is not None else SnapshotResult()
    view = result.view(locator, now) if locator is not None else None
    gangs = await request.app.state.gangs.lists.get(mapped.source, key.installation) if mapped.source else None
    waiting = gangs.overview.gangs if gangs is not None and gangs.overview is not None else ()
    page = PageContext(
        key=key,
        view=view,
        gang_name=str(locator.ref) if locator is not None else "",
        error=result.error or ("" if locator is None or view is not None else JOB_NOT_FOUND),
        task_state=record.state or "",
        now=now,
        refusal=parse_refusal(record.refusal),
        mapped=tuple(with_waits(mapped.rows, key, waiting)),
        mapped_omitted=mapped.omitted,
        attempts=result.attempts,
    )
    if not is_final(page):
        page = replace(page, refresh_s=REFRESH_AFTER_ERROR_S if result.error else REFRESH_S)
    nonce = secrets.token_urlsafe(16)
    return HTMLResponse(render(page, nonce=nonce, part=part), headers=security_headers(nonce))


NO_LOG: Final = "No pod of this rank has a log: the rank has not started, or its pod is gone."


async def rank_page(request: Request, key: TaskInAddress, rank: Annotated[int, Path(ge=0)]) -> HTMLResponse:
    """Return the page with the last lines of the log of a rank.

    Raises:
        HTTPException: 404 if the task instance does not exist, or has no gang.
    """
    record = await run_in_threadpool(read_task_record, key)
    locator = locate(record) if record is not None else None
    if locator is None:
        raise HTTPException(404, "Task instance not found, or it has no gang")
    snapshots: SnapshotCache = request.app.state.snapshots
    result = await snapshots.get(locator)
    logs: Sequence[RankLog] = ()
    if result.snapshot is None:
        problem = result.error or JOB_NOT_FOUND
    else:
        try:
            logs = await snapshots.logs(locator, result.snapshot, Logs.ALL, rank)
            problem = "" if logs else NO_LOG
        except ClusterUnreadError as error:
            problem = str(error)
    nonce = secrets.token_urlsafe(16)
    html = await run_in_threadpool(render_rank, key, str(locator.ref), rank, logs, problem, nonce=nonce)
    return HTMLResponse(html, headers=security_headers(nonce))


def is_final(page: PageContext) -> bool:
    """Return whether the page will not change any more."""
    if page.view is not None and not page.view.is_over:
        return False
    states = {row.state for row in page.mapped} if page.is_of_all_indexes else {page.task_state}
    return page.error in {"", JOB_NOT_FOUND} and states <= FINISHED_TASK_STATES


def parse_map_index(text: str) -> int:
    """Return the map index in the URL, or -1. Airflow's UI leaves its placeholder there if the task is not mapped."""
    return int(text) if _MAP_INDEX.fullmatch(text) else -1

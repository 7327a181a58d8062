"""The FastAPI application that serves the tab "Gang" and the page "Gangs". Only Airflow's API server loads this module.

Each route returns the whole page, or the part of the page that a refresh replaces. A page below the tab has the last
lines of the log of a rank. The application of `rest` is mounted below them.

Airflow does not authenticate requests to a plugin's application, so each route requires the permissions that Airflow
itself requires: the user may read the task instances of this DAG, and the logs of its tasks, since the page shows
messages that the user's program has written. The pages change nothing.

On the page "Gangs" a user sees the gangs of a DAG if the tab "Gang" of its tasks is open to the user. The permissions
are asked for at each request. A gang that belongs to no DAG was submitted through a connection, so a user sees it who
may read this connection in Airflow. Gangs of other Airflow installations are not shown, because their DAGs are not
those of this Airflow.

This module reads Airflow's database. The parts of Airflow that are not its public interface are used only here and in
`rest_access`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - FastAPI reads the annotation
from airflow.models import DagModel
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import and_, func, select
from starlette.concurrency import run_in_threadpool

from airflow_provider_gangjobs.airflow_api.configuration import SECTION, configured_links, installation_id
from airflow_provider_gangjobs.attempt.deferral import XCOM_END, XCOM_GANG, XCOM_REFUSED
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import Logs
from airflow_provider_gangjobs.gang.state.phase import PHASE_OF_STATUS
from airflow_provider_gangjobs.gang.view import view_end
from airflow_provider_gangjobs.plugins.caches import (
    JOB_NOT_FOUND,
    ClusterUnreadError,
    ListCache,
    SnapshotCache,
    SnapshotResult,
    lists_read,
)
from airflow_provider_gangjobs.plugins.clusters import ListSource, named_sources
from airflow_provider_gangjobs.plugins.html import PageContext, render, render_gangs, render_rank, security_headers
from airflow_provider_gangjobs.plugins.locator import (
    FINISHED_TASK_STATES,
    MappedRow,
    TaskRecord,
    choose_indexes,
    fields_of_start,
    locate,
    mapped_rows,
    parse_end,
    parse_refusal,
    parse_xcom,
    with_waits,
)
from airflow_provider_gangjobs.plugins.page_view import Filters, build_gangs_view
from airflow_provider_gangjobs.plugins.rest import URL_PREFIX, make_api
from airflow_provider_gangjobs.plugins.rest_access import READ_DAG, READ_ENTITIES, may_use_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from sqlalchemy.orm import Session

    from airflow_provider_gangjobs.gang.view import GangView
    from airflow_provider_gangjobs.kube.links import LinkTemplate
    from airflow_provider_gangjobs.plugins.caches import ListResult
    from airflow_provider_gangjobs.plugins.page_view import GangsView
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


# -- the page "Gangs" -----------------------------------------------------------------------------------------------

GANGS_ROUTE: Final = "/gangs"
OPTION: Final = "page_connections"
SOURCES_MAX: Final = 20
"""How many lists of gangs a page reads at most."""
SOURCES_TTL_S: Final = 60.0
SUBMITTED_WITHIN: Final = timedelta(days=7)
"""The connections of tasks that have submitted a gang within this time are read."""
TASKS_MAX: Final = 1000
ENDS_MAX: Final = 2000
"""How many ends of gangs a page shows at most, the latest first."""
ENDS_KEPT_MAX: Final = 10_000
ENDS_TTL_S: Final = 10.0
ANOTHER_CLUSTER: Final = "A cluster could not be read, so the page may lack gangs."


@dataclass(frozen=True)
class Sources:
    """The lists that the page reads, and the DAGs that are known to use the connections."""

    dags_of: dict[str, set[str]] = field(default_factory=dict)
    """By connection id."""
    lists: tuple[ListSource, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class GangsPage:
    """The route of the page, with what its requests share. It belongs to the event loop of its first request."""

    lists: ListCache
    ends: EndCache = field(default_factory=lambda: EndCache())
    clock: Callable[[], float] = time.monotonic
    _sources: tuple[float, Sources] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def respond(self, request: Request, user: GetUserDep) -> HTMLResponse:
        """Return the page; with `part` in the query, only the part that a refresh replaces."""
        filters = Filters.parse(request.query_params)
        sources = await self._read_sources()
        installation = installation_id()
        found = await asyncio.gather(*(self.lists.get(one, installation) for one in sources.lists))
        now = datetime.now(UTC)
        view = await run_in_threadpool(build_for_user, user, filters, sources, found, self.ends, installation, now)
        as_of = min((one.read_at for one in found if one.read_at is not None), default=now)
        nonce, part = secrets.token_urlsafe(16), "part" in request.query_params
        html = await run_in_threadpool(render_gangs, view, now, as_of, nonce=nonce, part=part)
        return HTMLResponse(html, headers=security_headers(nonce, has_form=True))

    async def _read_sources(self) -> Sources:
        async with self._lock:
            if self._sources is None or self._sources[0] <= self.clock():
                found = await run_in_threadpool(read_sources, datetime.now(UTC))
                self._sources = self.clock() + SOURCES_TTL_S, found
                self.lists.forget_all_but(frozenset(found.lists))
            return self._sources[1]


def build_for_user(
    user: Any,
    filters: Filters,
    sources: Sources,
    found: Sequence[ListResult],
    ends: EndCache,
    installation: str,
    now: datetime,
) -> GangsView:
    """Return the view for a user. The call blocks."""
    listed = {gang.dag_id for one in found if one.overview is not None for gang in one.overview.gangs} - {""}
    dag_ids = readable_dags(user, listed | ends.dags(filters.hours, now))
    own = {conn_id for conn_id in {one.source.conn_id for one in found} if may_use_connection("GET", conn_id, user)}
    named = own | {conn_id for conn_id, dags in sources.dags_of.items() if not dags.isdisjoint(dag_ids)}
    errors = (one.error if one.source.conn_id in named else ANOTHER_CLUSTER for one in found if one.error)
    read = lists_read(found)
    first = {one.where: one for one in reversed(read)}
    return build_gangs_view(
        filters,
        [(str(one.source), one.overview) for one in read if one.overview is not None and first[one.where] is one],
        ends.read(dag_ids, filters.hours, now, installation),
        dag_ids=dag_ids,
        without_dag={str(first[one.where].source) for one in read if one.source.conn_id in own},
        now=now,
        notes=tuple(dict.fromkeys((*errors, *(sources.notes if own else ())))),
    )


# -- which gangs a user may see on the page "Gangs" ------------------------------------------------------------------


def readable_dags(user: Any, dag_ids: AbstractSet[str]) -> frozenset[str]:
    """Return the DAGs of which the user may read the task instances and their logs. The call blocks."""
    manager: Any = get_auth_manager()
    allowed = manager.get_authorized_dag_ids(user=user, method="GET") & dag_ids
    teams = DagModel.get_dag_id_to_team_name_mapping(list(allowed)) if allowed else {}

    def may_read(dag_id: str, entity: DagAccessEntity) -> bool:
        details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
        return bool(manager.is_authorized_dag(method="GET", access_entity=entity, details=details, user=user))

    return frozenset(dag_id for dag_id in allowed if all(may_read(dag_id, entity) for entity in READ_ENTITIES))


# -- what Airflow's database has for the page "Gangs" ----------------------------------------------------------------


def read_sources(now: datetime) -> Sources:
    """Return what `[gangjobs] page_connections` names or, without it, the connections of the tasks that have submitted
    gangs lately. The call blocks.

    The connection and the namespace of a task are those of its rendered fields, which Airflow itself has stored, of the
    task instance that has submitted a gang last; without rendered fields, those of its DAG. A task that pushes no XCom
    is not found.
    """
    named = named_sources(OPTION)
    used = _read_used(now)
    dags_of: dict[str, set[str]] = {}
    for source, dag_id in used:
        dags_of.setdefault(source.conn_id, set()).add(dag_id)
    lists = tuple(dict.fromkeys(named or (source for source, _ in used)))
    more = len(lists) - SOURCES_MAX
    note = (
        f"The page reads {SOURCES_MAX} lists of gangs, and {more} more are not read. [{SECTION}] {OPTION} chooses them."
    )
    return Sources(dags_of, lists[:SOURCES_MAX], (note,) if more > 0 else ())


def read_serialized_dag(session: Session, version_id: Any) -> Any:
    """Return the serialized DAG of a version as Airflow has stored it; `None` if there is none. The call blocks."""
    stored = session.scalar(select(SerializedDagModel).where(SerializedDagModel.dag_version_id == version_id))
    return None if stored is None else stored.data


def _read_used(now: datetime) -> list[tuple[ListSource, str]]:
    """Return pairs of a source and a DAG that uses it, those of the latest gangs first."""
    of_task = (XComModel.dag_id, XComModel.task_id)
    order = func.row_number().over(partition_by=of_task, order_by=XComModel.timestamp.desc())
    columns = (*of_task, XComModel.run_id, XComModel.map_index, XComModel.timestamp)
    is_recent = (XComModel.key == XCOM_GANG, XComModel.timestamp >= now - SUBMITTED_WITHIN)
    latest = select(*columns, order.label("number")).where(*is_recent).subquery()
    fields = RenderedTaskInstanceFields

    def same_task(model: Any) -> Any:
        return and_(*(getattr(model, name) == latest.c[name] for name in ("dag_id", "task_id", "run_id", "map_index")))

    query = (
        select(latest.c.dag_id, latest.c.task_id, fields.rendered_fields, TaskInstance.dag_version_id)
        .join(TaskInstance, same_task(TaskInstance))
        .join(fields, same_task(fields), isouter=True)
        .where(latest.c.number == 1)
        .order_by(latest.c.timestamp.desc())
        .limit(TASKS_MAX)
    )
    with create_session(scoped=False) as session:
        dag = cache(partial(read_serialized_dag, session))
        found = (
            (dag_id, rendered or fields_of_start(dag(version), task_id))
            for dag_id, task_id, rendered, version in session.execute(query)
        )
        return [(ListSource.of_task(rendered), dag_id) for dag_id, rendered in found if rendered is not None]


@dataclass
class EndCache:
    """The ends of gangs that Airflow has recorded. Each XCom is read and parsed once, for all viewers."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[_EndId, GangView | None] = field(default_factory=dict)
    _dags: dict[int, tuple[float, set[str]]] = field(default_factory=dict)
    _links: tuple[LinkTemplate, ...] = field(default_factory=configured_links)

    def dags(self, hours: int, now: datetime) -> set[str]:
        """Return the DAGs with ends in the last hours, as they were at most `ENDS_TTL_S` ago. The call blocks."""
        expires_at, found = self._dags.get(hours, (0.0, set()))
        if expires_at <= self.clock():
            query = select(XComModel.dag_id).where(*_are_ends(hours, now)).distinct()
            with create_session(scoped=False) as session:
                found = set(session.scalars(query))
            self._dags[hours] = self.clock() + ENDS_TTL_S, found
        return found

    def read(self, dag_ids: Iterable[str], hours: int, now: datetime, installation: str) -> list[GangView]:
        """Return how gangs of these DAGs have ended in the last hours, the latest first. The call blocks."""
        wanted = select(*_END_ID).where(*_are_ends(hours, now), XComModel.dag_id.in_(list(dag_ids)))
        wanted = wanted.order_by(XComModel.timestamp.desc()).limit(ENDS_MAX)
        with create_session(scoped=False) as session:
            ids = [_EndId(*row) for row in session.execute(wanted)]
            if missing := {one.dag_run_id for one in ids if one not in self._known}:
                self._parse(session, missing, installation)
        found = [self._known.get(one) for one in ids]
        if len(self._known) > ENDS_KEPT_MAX:
            self._known = {one: self._known.get(one) for one in ids}
        return [one for one in found if one is not None]

    def _parse(self, session: Session, dag_run_ids: set[int], installation: str) -> None:
        values = (XComModel.dag_id, XComModel.run_id, XComModel.value)
        query = select(*_END_ID, *values).where(XComModel.key == XCOM_END, XComModel.dag_run_id.in_(dag_run_ids))
        for *end_id, dag_id, run_id, value in session.execute(query):
            one = _EndId(*end_id)
            event = parse_end(parse_xcom(value))
            key = TaskKey(dag_id, run_id, one.task_id, one.map_index, installation)
            has_ended = event is not None and event.status in PHASE_OF_STATUS
            ended = view_end(event, key, self._links, at=one.at) if event is not None and has_ended else None
            self._known[one] = ended


class _EndId(NamedTuple):
    """The primary key of the XCom of an end, and the time at which it was written."""

    dag_run_id: int
    task_id: str
    map_index: int
    at: datetime


_END_ID: Final = (XComModel.dag_run_id, XComModel.task_id, XComModel.map_index, XComModel.timestamp)


def _are_ends(hours: int, now: datetime) -> tuple[Any, ...]:
    return XComModel.key == XCOM_END, XComModel.timestamp >= now - timedelta(hours=hours)

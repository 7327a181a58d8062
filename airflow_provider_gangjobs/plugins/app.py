"""The application behind the tab: one page, and the same page's inner part for its refresh. Only the API server has it.

Airflow does not authenticate what a plugin serves, so each route asks for what Airflow asks for itself: that the user
may read this DAG's task instances, and its tasks' logs, since the ends of ranks are told in the program's words.
Nothing can be changed here.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.plugins.html import Shown, render
from airflow_provider_gangjobs.plugins.locator import FINISHED, Lead, lead_of
from airflow_provider_gangjobs.plugins.snapshot_cache import Looking, Sight
from airflow_provider_gangjobs.plugins.task_records import read_record
from airflow_provider_gangjobs.plugins.view_model import Board, board, told

ROUTE: Final = "/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/{map_index}"
REFRESH_S: Final = 3
REFRESH_IN_TROUBLE_S: Final = 30
"""While the cluster cannot be looked at."""
_MAP_INDEX: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
READERS: Final = [
    Depends(requires_access_dag(method="GET", access_entity=entity))
    for entity in (DagAccessEntity.TASK_INSTANCE, DagAccessEntity.TASK_LOGS)
]


def make_app() -> FastAPI:
    """The application, with no pages of FastAPI's own."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=READERS)
    app.state.looking = Looking()
    app.add_api_route(ROUTE, gang_page, response_class=HTMLResponse)
    return app


async def gang_page(
    request: Request,
    dag_id: Annotated[str, Path()],
    run_id: Annotated[str, Path()],
    task_id: Annotated[str, Path()],
    map_index: Annotated[str, Path()],
    *,
    part: Annotated[bool, Query()] = False,
) -> HTMLResponse:
    """The gang of a task instance; with `part` only what changes."""
    record = await run_in_threadpool(read_record, TaskKey(dag_id, run_id, task_id, map_index_of(map_index)))
    if record is None:
        raise HTTPException(404, "Task instance not found")
    lead, now = lead_of(record), datetime.now(UTC)
    sight = await request.app.state.looking.look(lead) if lead is not None else Sight()
    shown = Shown(
        board=_board(lead, sight, now) if lead is not None else None,
        name=str(lead.ref) if lead is not None else "",
        trouble=sight.trouble,
        task_state=record.state or "",
        at=now,
    )
    if not is_over(shown):
        shown = replace(shown, refresh_s=REFRESH_IN_TROUBLE_S if sight.trouble else REFRESH_S)
    nonce = secrets.token_urlsafe(16)
    return HTMLResponse(render(shown, nonce=nonce, part=part), headers=headers(nonce))


def _board(lead: Lead, sight: Sight, now: datetime) -> Board | None:
    return board(lead, sight.snapshot, now) if sight.snapshot is not None else told(lead, sight.trouble)


def is_over(shown: Shown) -> bool:
    """Nothing of it will change by itself."""
    return shown.board.is_over if shown.board is not None else not shown.trouble and shown.task_state in FINISHED


def map_index_of(text: str) -> int:
    """Of a task that is not mapped, Airflow's UI leaves the placeholder as it is."""
    return int(text) if _MAP_INDEX.fullmatch(text) else -1


def headers(nonce: str) -> dict[str, Any]:
    """Only the page's own script and style run, whatever a rank has written; and only Airflow may frame it."""
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
        ),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }

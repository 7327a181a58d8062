"""The REST interface of submissions, in Airflow's API server: its routes, its OpenAPI document, and its requests.

The application of the pages mounts this one. Airflow does not authenticate requests to a plugin's application, so each
route requires a permission by `rest_access`. `rest_documents` has the bodies of requests and responses.

The operations are those of FLIP-236: submit under an id that the client chooses, ask, list, delete. The application has
no state: everything that it answers is in the cluster, so another process may answer the next request.

The use cases of `service` run on an event loop in a thread of its own. Airflow's event loop only waits, so neither the
validation of a large spec nor a cluster that answers slowly delays other requests to Airflow's API server.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - FastAPI reads annotations
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException

from airflow_provider_gangjobs import __version__
from airflow_provider_gangjobs.airflow_api.configuration import installation_id
from airflow_provider_gangjobs.airflow_api.exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.cluster.errors import BadRequest, ClusterError, Gone
from airflow_provider_gangjobs.exceptions import GangJobError, InvalidGangSpec
from airflow_provider_gangjobs.gang.identity import OperationKey, TaskKey, parse_default_submission_id
from airflow_provider_gangjobs.gang.spec import Logs, Validate
from airflow_provider_gangjobs.gang.state.phase import SubmissionState  # noqa: TC001 - FastAPI reads annotations
from airflow_provider_gangjobs.gang.view import view_gang
from airflow_provider_gangjobs.plugins import rest_documents
from airflow_provider_gangjobs.plugins.caches import JOB_NOT_FOUND, ClusterUnreadError
from airflow_provider_gangjobs.plugins.clusters import SharedClients
from airflow_provider_gangjobs.plugins.locator import locate, parse_refusal
from airflow_provider_gangjobs.plugins.rest_access import (
    READ_DAG,
    Limits,
    Place,
    ReadPlace,
    WritePlace,
    namespace_not_allowed,
    read_json,
)
from airflow_provider_gangjobs.plugins.rest_documents import MEDIA_TYPE, ProblemDetails, respond, respond_with_error
from airflow_provider_gangjobs.tracking.explanation import read_snapshot
from airflow_provider_gangjobs.tracking.gang_listing import list_attempts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.plugins.caches import SnapshotCache
    from airflow_provider_gangjobs.plugins.locator import TaskRecord
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.submission.submission import Submission, SubmissionPage
    from airflow_provider_gangjobs.tracking.logs.last_lines import RankLog


log = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_WITHIN_S: Final = 30.0
"""How long a request takes at most. Proxies wait for a minute by default."""
DELETION_WITHIN_S: Final = 20.0
"""How long a request to delete works. The next one continues where it stopped."""


class Clusters:
    """The clusters of one application. Its thread starts with the first request."""

    def __init__(self) -> None:
        self._clients = SharedClients()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    async def call(self, place: Place, action: Callable[[GangService], Awaitable[T]]) -> T:
        """Run an action on the cluster of a place, within `REQUEST_WITHIN_S`.

        Raises:
            TimeoutError: the time is over. What the action has begun may be repeated.
            HTTPException: the configuration does not allow the namespace.
        """

        async def bounded() -> T:
            async with asyncio.timeout(REQUEST_WITHIN_S), self._service(place) as service:
                return await action(service)

        return await self._run(bounded())

    async def compute(self, function: Callable[[], T]) -> T:
        """Return the result of a function that does not wait."""

        async def computed() -> T:
            return function()

        return await self._run(computed())

    async def aclose(self) -> None:
        """Close the clients, and end the thread."""
        if self._loop is not None:
            await self._run(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def _stop(self) -> None:
        await self._clients.aclose()
        await asyncio.get_running_loop().shutdown_default_executor()

    @asynccontextmanager
    async def _service(self, place: Place) -> AsyncIterator[GangService]:
        async with self._clients.service(place.conn_id, must_exist=True) as service:
            if place.needs_own_namespace and place.namespace != service.namespace:
                raise namespace_not_allowed(place.conn_id, place.namespace)
            yield service

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_to_the_end, args=(self._loop,), name="gangjobs REST", daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))


def _run_to_the_end(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


URL_PREFIX: Final = "/api/v1"
NAMESPACE: Final = "/connections/{connection_id}/namespaces/{namespace}"
SUBMISSIONS: Final = f"{NAMESPACE}/submissions"
SUBMISSION: Final = f"{SUBMISSIONS}/{{submission_id:path}}"
UPLOADS: Final = f"{NAMESPACE}/uploads"
GANG_OF_TASK: Final = "/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/{map_index}/gang"

PAGE_MAX: Final = 500
PAGES_READ_MAX: Final = 10
"""How many pages of Jobs are read until one has an item: the Jobs of tasks are no items."""
TOKEN_CHARACTERS_MAX: Final = 4096
SUBMIT_WITHIN_S: Final = 25.0
WAIT_FOR_PREVIOUS_S: Final = 5.0


def make_api(
    snapshots: SnapshotCache,
    read_task_record: Callable[[TaskKey], TaskRecord | None],
    *,
    clusters: Clusters | None = None,
) -> FastAPI:
    """Build the application.

    :param snapshots: The snapshots of gangs of tasks, which the pages read, too.
    :param read_task_record: Returns the record of a task instance, or `None` if there is none. It blocks.
    """
    app = FastAPI(
        title="Gang jobs",
        version=__version__,
        description="Submissions of gangs under an id that the client chooses. A request may always be repeated.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.clusters = clusters or Clusters()
    app.state.limits = Limits()
    app.state.snapshots = snapshots
    app.state.read_task_record = read_task_record
    for kind in (StarletteHTTPException, RequestValidationError, GangJobError, ClusterError, TimeoutError, Exception):
        app.add_exception_handler(kind, respond_with_error)
    app.add_exception_handler(AirflowNotFoundException, respond_with_error)
    _add_route(app, "PUT", SUBMISSION, put_submission, {202: "Submission", 200: "Submission"}, body="GangSpec")
    _add_route(app, "POST", SUBMISSIONS, post_submission, {202: "Submission", 200: "Submission"}, body="NewSubmission")
    _add_route(app, "GET", SUBMISSION, get_submission, {200: "GangAnswer"})
    _add_route(app, "GET", SUBMISSIONS, list_submissions, {200: "SubmissionList"})
    _add_route(app, "DELETE", SUBMISSION, delete_submission, {204: "", 202: ""})
    _add_route(app, "POST", UPLOADS, post_upload, {200: "StoredUpload"}, body="NewUpload")
    _add_route(app, "GET", GANG_OF_TASK, gang_of_task, {200: "GangAnswer"}, dependencies=READ_DAG)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


# -- submissions -----------------------------------------------------------------------------------------------------

SubmissionId = Annotated[str, Path(description="The id that the client chose.")]
LogsOf = Annotated[Logs, Query(description="The ranks whose last lines are read, too.")]
ValidateBy = Annotated[Validate, Query(description="With `server`, the API server checks the Job by a dry run.")]


async def put_submission(
    request: Request,
    place: WritePlace,
    submission_id: SubmissionId,
    validate: ValidateBy = Validate.CLIENT,
) -> Response:
    """Submit a gang: 202 for a new gang, and 200 for the gang that exists."""
    with request.app.state.limits.admit(place.user):
        body = await read_json(request)

        def read() -> GangSpec:
            return rest_documents.spec_in(rest_documents.decode(body, dict[str, Any]), place.namespace)

        return await _create_or_adopt(request, place, submission_id, await _clusters(request).compute(read), validate)


async def post_submission(request: Request, place: WritePlace, validate: ValidateBy = Validate.CLIENT) -> Response:
    """Submit a gang as `PUT` does, with the id in the body."""
    with request.app.state.limits.admit(place.user):
        body = await read_json(request)

        def read() -> tuple[str, GangSpec]:
            new = rest_documents.decode(body, rest_documents.NewSubmission)
            return new.submission_id, rest_documents.spec_in(new.spec, place.namespace)

        submission_id, spec = await _clusters(request).compute(read)
        return await _create_or_adopt(request, place, submission_id, spec, validate)


async def _create_or_adopt(
    request: Request, place: Place, submission_id: str, spec: GangSpec, validate: Validate
) -> Response:
    if problem := rest_documents.problem_with_address(submission_id):
        raise InvalidGangSpec((problem,))

    async def create(gangs: GangService) -> Submission:
        return await gangs.submit(
            spec,
            submission_id=submission_id,
            validate=validate,
            deadline_s=SUBMIT_WITHIN_S,
            wait_for_previous_s=WAIT_FOR_PREVIOUS_S,
        )

    submission = await _clusters(request).call(place, create)
    log.info("User %s submitted %s (%r)", place.user, submission.ref, submission_id)
    names = {"connection_id": place.conn_id, "namespace": place.namespace, "submission_id:path": submission_id}
    location = request.scope.get("root_path", "") + SUBMISSION
    for name, value in names.items():
        location = location.replace(f"{{{name}}}", quote(value, safe=""))
    return respond(submission, 200 if submission.adopted else 202, Location=location)


async def get_submission(
    request: Request,
    place: ReadPlace,
    submission_id: SubmissionId,
    logs: LogsOf = Logs.NONE,
) -> Response:
    """Return the gang of the newest attempt of a submission, its ranks, and their results."""
    _require_id_of_client(submission_id)

    async def read(gangs: GangService) -> rest_documents.GangAnswer | None:
        attempts = await list_attempts(gangs.client, place.namespace, OperationKey(submission_id).digest)
        if not attempts:
            return None
        snapshot = await read_snapshot(gangs.client, attempts[0])
        outcomes = snapshot.outcomes or ()
        lines = await gangs.logs(snapshot.ref, logs, outcomes=outcomes) if logs is not Logs.NONE else ()
        gang = view_gang(snapshot, now=gangs.client.server_clock.now())
        return rest_documents.GangAnswer(gang=gang, logs=tuple(lines), results=rest_documents.results_of(snapshot))

    with request.app.state.limits.admit(place.user):
        found = await _clusters(request).call(place, read)
    if found is None:
        raise _no_submission()
    return respond(found)


async def list_submissions(
    request: Request,
    place: ReadPlace,
    state: Annotated[SubmissionState | None, Query(description="Only submissions in this state.")] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX, description="The most items of a page.")] = 100,
    token: Annotated[
        str | None, Query(alias="continue", max_length=TOKEN_CHARACTERS_MAX, description="The token of this page.")
    ] = None,
) -> Response:
    """Return a page of the submissions. A page may have fewer items than `limit`; the last one has no token."""

    async def read(gangs: GangService) -> rest_documents.SubmissionList:
        page_token = token
        for _ in range(PAGES_READ_MAX):
            page = await _page(gangs, place, limit, page_token)
            items = tuple(
                gang for gang in page.gangs if rest_documents.is_of_client(gang) and state in {None, gang.state}
            )
            page_token = page.continue_token
            if items or page_token is None:
                break
        return rest_documents.SubmissionList(items, page_token)

    with request.app.state.limits.admit(place.user):
        return respond(await _clusters(request).call(place, read))


async def _page(gangs: GangService, place: Place, limit: int, token: str | None) -> SubmissionPage:
    try:
        return await gangs.submissions(namespace=place.namespace, limit=limit, continue_token=token)
    except (Gone, BadRequest):
        if token is None:
            raise
        raise HTTPException(410, "The page token has expired or is none. Start again with the first page") from None


async def delete_submission(request: Request, place: WritePlace, submission_id: SubmissionId) -> Response:
    """Stop the gang if it has not ended, and delete the submission with its files: 204 when it is gone.

    After 202, send the same request until the answer is 204, or 404 if there is nothing left. Each request continues
    where the one before it has stopped.
    """
    _require_id_of_client(submission_id)

    async def delete(gangs: GangService) -> tuple[GangRef, ...] | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(DELETION_WITHIN_S):
                return await gangs.delete_submission(submission_id, job=True, namespace=place.namespace)
        return None

    with request.app.state.limits.admit(place.user):
        gangs = await _clusters(request).call(place, delete)
    if gangs is None:
        return respond({"detail": "The gang is stopped, and its pods are ending."}, 202, Retry_After="5")
    if not gangs:
        raise _no_submission()
    log.info("User %s deleted submission %r in %s", place.user, submission_id, place.namespace)
    return Response(status_code=204)


def _require_id_of_client(submission_id: str) -> None:
    """Refuse the ids of tasks, whose gangs belong to those who may read their DAG."""
    if parse_default_submission_id(submission_id):
        raise _no_submission()


def _no_submission() -> HTTPException:
    return HTTPException(404, "There is no submission of this id in this namespace")


# -- uploads ---------------------------------------------------------------------------------------------------------


async def post_upload(request: Request, place: WritePlace) -> Response:
    """Store files that several submissions share, and return their content id. The same files are stored once."""
    with request.app.state.limits.admit(place.user):
        body = await read_json(request)

        def read() -> dict[str, str | bytes]:
            problems: list[Any] = []
            files = rest_documents.files_in(rest_documents.decode(body, rest_documents.NewUpload).files, problems)
            if problems:
                raise InvalidGangSpec(tuple(problems))
            return files

        files = await _clusters(request).compute(read)
        content_id = await _clusters(request).call(place, lambda gangs: gangs.upload(files, namespace=place.namespace))
    return respond(rest_documents.StoredUpload(content_id))


# -- gangs of tasks --------------------------------------------------------------------------------------------------


async def task_in_address(
    dag_id: Annotated[str, Path()],
    run_id: Annotated[str, Path()],
    task_id: Annotated[str, Path()],
    map_index: Annotated[int, Path(ge=-1, lt=2**31, description="-1 for a task that is not mapped.")],
) -> TaskKey:
    """Return the task instance in the address of a request."""
    return TaskKey(dag_id, run_id, task_id, map_index, installation_id())


async def gang_of_task(
    request: Request,
    user: GetUserDep,
    key: Annotated[TaskKey, Depends(task_in_address)],
    *,
    logs: LogsOf = Logs.NONE,
    rank: Annotated[
        int | None, Query(ge=0, description="The last lines of this rank are read, and of no other.")
    ] = None,
) -> Response:
    """Return what the gang of a task does and why, and its ranks."""
    with request.app.state.limits.admit(str(user.get_id())):
        record = await run_in_threadpool(request.app.state.read_task_record, key)
        if record is None:
            raise HTTPException(404, "Task instance not found")
        locator = locate(record)
        if locator is None:
            raise HTTPException(404, parse_refusal(record.refusal) or "This task has not submitted a gang.")
        snapshots: SnapshotCache = request.app.state.snapshots
        result = await snapshots.get(locator)
        # A connection that is unknown stays so: no later request would find the Job.
        if result.error and (locator.kubernetes_conn_id is not None or locator.end is None):
            raise HTTPException(503, result.error)
        gang = result.view(locator, datetime.now(UTC))
        if gang is None:
            raise HTTPException(404, JOB_NOT_FOUND)
        lines: Sequence[RankLog] = ()
        if result.snapshot is not None and (logs is not Logs.NONE or rank is not None):
            try:
                lines = await snapshots.logs(locator, result.snapshot, logs, rank)
            except ClusterUnreadError as unread:
                raise HTTPException(503, str(unread)) from unread
    return respond(rest_documents.GangAnswer(gang=gang, logs=tuple(lines)))


# -- the application -------------------------------------------------------------------------------------------------


def _clusters(request: Request) -> Clusters:
    clusters: Clusters = request.app.state.clusters
    return clusters


def _add_route(
    app: FastAPI,
    method: str,
    path: str,
    route: Callable[..., Any],
    answers: dict[int, str],
    *,
    body: str = "",
    **more: Any,
) -> None:
    responses: dict[int | str, dict[str, Any]] = {
        status: {"description": "", **({"content": _content(kind)} if kind else {})} for status, kind in answers.items()
    }
    responses["default"] = {"description": "Problem details.", "content": _content("ProblemDetails", MEDIA_TYPE)}
    given = {"requestBody": {"required": True, "content": _content(body)}} if body else None
    status, *_ = answers
    app.add_api_route(
        path,
        route,
        methods=[method],
        status_code=status,
        response_class=Response,
        response_model=None,
        responses=responses,
        openapi_extra=given,
        **more,
    )


def _content(kind: str, media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": f"#/components/schemas/{kind}"}}}


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        kinds = (*rest_documents.RESPONSES, *rest_documents.REQUESTS, ProblemDetails)
        _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        app.openapi_schema = document
    return app.openapi_schema

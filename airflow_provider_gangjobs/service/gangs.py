"""`GangService`: the use cases of gangs in one cluster, over one client, one coroutine for each, with its defaults.

The Airflow hook derives its blocking methods from these coroutines. The service selects the namespace and calls the
packages `submission`, `tracking`, `ending` and `cluster`, which implement the use cases. It does not know Airflow. What
only the provider's own tasks do, such as a delivery, the tasks ask of these packages with the client of the service::

    async with GangService.connect(ClusterConfig.from_extras("mine", {})) as service:
        submission = await service.submit(GangSpec(image="i", workers=4), submission_id="nightly")

A DAG file may import this module, so the module imports no client library. Each method imports what it calls.
`follow` takes no client, because all followers on an event loop share their watches.

A `GangSession` keeps one client open for code that is not asynchronous and that signals may interrupt::

    with GangSession(config) as session:
        session.call(lambda service: service.stop(ref, reason="for examination"))

The first call connects. All calls use the same event loop, the same client and its TLS connections. Airflow ends a task
whose `execution_timeout` has passed by a signal whose handler raises in the main thread. If an event loop ran in the
main thread, the exception would be raised inside whichever task of the loop runs at that moment, and asyncio would hand
the exception to whoever awaits that task, which may be nobody. So the loop runs in a thread of its own, and the main
thread only waits: an exception that a signal handler raises ends the wait.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from msgspec import Struct

from airflow_provider_gangjobs.gang.spec import Logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.ending.release import ReleaseReport
    from airflow_provider_gangjobs.ending.submissions import CleanupReport
    from airflow_provider_gangjobs.gang.awaited import GangSelection, SelectedGang
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.gang.state.gang_state import Deadlines, GangState
    from airflow_provider_gangjobs.gang.view import GangView
    from airflow_provider_gangjobs.submission.capabilities import Capabilities
    from airflow_provider_gangjobs.submission.submission import (
        Submission,
        SubmissionPage,
        SubmissionRequest,
    )
    from airflow_provider_gangjobs.submission.uploads import Upload
    from airflow_provider_gangjobs.tracking.follow import FollowUntil
    from airflow_provider_gangjobs.tracking.harvest.collect import SeenEnd
    from airflow_provider_gangjobs.tracking.harvest.harvester import LogReader
    from airflow_provider_gangjobs.tracking.logs.last_lines import RankLog


DEFAULT_NAMESPACE: Final = "default"
REQUESTS_AT_ONCE_MAX: Final = 4
"""Of one connected service. Only logs are read concurrently, and each further connection costs a handshake."""
SUBMISSIONS_PER_PAGE: Final = 100
PODS_GONE_WITHIN_S: Final = 120.0
"""The default termination grace period is 30 s, and a node needs some time to notice that a pod is deleted."""
HALF_SUBMITTED_FOR: Final = timedelta(hours=1)
"""A submission takes a second, and the retries of a task usually follow within minutes."""


class GangService(Struct, frozen=True):
    """The gangs of one cluster, over one client.

    Every method may raise `exceptions.GangJobError` or `cluster.errors.ClusterError`.
    """

    client: Client

    @classmethod
    @asynccontextmanager
    async def connect(cls, config: ClusterConfig) -> AsyncIterator[GangService]:
        """Open a client for the duration of the block, for some requests."""
        from airflow_provider_gangjobs.cluster.client import Client

        async with Client(config, requests_max=REQUESTS_AT_ONCE_MAX) as client:
            yield cls(client)

    @property
    def namespace(self) -> str:
        """The namespace of gangs whose spec names no namespace."""
        return self.client.config.namespace or DEFAULT_NAMESPACE

    # -- the cluster -----------------------------------------------------------------------------------------

    async def capabilities(self) -> Capabilities:
        """Return the release, the dialects, the fields that a dry run keeps, and the state of the feature gates.

        The result is cached for some minutes.
        """
        from airflow_provider_gangjobs.submission.capabilities import read_capabilities

        return await read_capabilities(self.client, namespace=self.namespace)

    # -- submission ------------------------------------------------------------------------------------------

    async def submit(
        self,
        /,
        spec: GangSpec,
        request: SubmissionRequest | None = None,
        *,
        submission_id: str | None = None,
        key: TaskKey | None = None,
        claim: str = "",
        **options: Any,
    ) -> Submission:
        """Create a gang, or adopt the gang that exists.

        Either the request is given, or the arguments of one of its constructors, which say whose gang it is::

            submit(spec, key=TaskKey("dag", "run", "task"), claim="me")  # SubmissionRequest.of_task
            submit(spec, submission_id="nightly-2026-01-01", validate="server")  # SubmissionRequest.of_id

        :param request: The task or the submission id, which gang to adopt, and the limits of the submission.
        :param submission_id: The id of `SubmissionRequest.of_id`, without a request.
        :param key: The task of `SubmissionRequest.of_task`, without a request.
        :param claim: The id of the task instance that is responsible for the gang from now on. Only with `key`.
        :param options: The further arguments of the constructor, such as `validate` and `deadline_s`.

        Raises:
            InvalidGangSpec, GangUnsupported, SubmissionConflict, SubmissionFailed: no new gang is left running.
            PreviousAttemptRunning: pods of an earlier attempt still run. Nothing was created.
            ValueError: not exactly one of `submission_id` and `key` is given.
        """
        from airflow_provider_gangjobs.cluster.http.transport import request_deadline
        from airflow_provider_gangjobs.submission.capabilities import discover_for
        from airflow_provider_gangjobs.submission.submission import SubmissionRequest
        from airflow_provider_gangjobs.submission.submit import submit

        if request is None:
            if key is not None and submission_id is None:
                request = SubmissionRequest.of_task(key, claim, **options)
            elif submission_id is not None and key is None:
                request = SubmissionRequest.of_id(submission_id, **options)
            else:
                raise ValueError("Give either submission_id or key")
        with request_deadline(self.client.clock.monotonic() + request.deadline_s):
            discovered = await discover_for(self.client, spec, namespace=spec.namespace or self.namespace)
            return await submit(self.client, spec, request, discovered=discovered, namespace=self.namespace)

    async def submission(self, submission_id: str, *, namespace: str | None = None) -> GangView | None:
        """Return the submission of this id: state, phase, times, and the reason if it failed. Sends one request.

        Returns None if there is no such submission.
        """
        from airflow_provider_gangjobs.ending.submissions import jobs_of
        from airflow_provider_gangjobs.gang.view import view_job
        from airflow_provider_gangjobs.jobs.requests import RetryingRequests

        requests = RetryingRequests(self.client, namespace or self.namespace)
        jobs = await jobs_of(requests, submission_id)
        return view_job(await requests.read_gang(jobs[0])) if jobs else None

    async def submissions(
        self,
        *,
        namespace: str | None = None,
        selector: str | None = None,
        limit: int = SUBMISSIONS_PER_PAGE,
        continue_token: str | None = None,
    ) -> SubmissionPage:
        """Return a page of a namespace's submissions, of tasks and of submission ids.

        Sends one request, and another one if a gang of the page has roles.

        :param selector: A label selector. By default all submissions are returned.
        :param continue_token: The token of the page before this one.

        Raises:
            Gone: the token has expired. Start again with the first page.
        """
        from airflow_provider_gangjobs.cluster.http.transport import decode_object
        from airflow_provider_gangjobs.gang.identity import ALL_GANGS
        from airflow_provider_gangjobs.gang.state.stored_gang import read_gang, read_job
        from airflow_provider_gangjobs.gang.view import view_job
        from airflow_provider_gangjobs.kube.resources import JOBS
        from airflow_provider_gangjobs.kube.well_known import LABEL_GANG_ROLE
        from airflow_provider_gangjobs.submission.submission import SubmissionPage

        where, selected = namespace or self.namespace, f"{ALL_GANGS},{selector}" if selector else ALL_GANGS
        raw = await self.client.list_page(
            JOBS, where, label_selector=selected, limit=limit, continue_token=continue_token
        )
        decoded = decode_object(f"list {JOBS.plural}", raw)
        jobs = decoded.get("items") or ()
        has_roles = any(read_job(job).record.roles for job in jobs)
        others = await self.client.list(JOBS, where, label_selector=LABEL_GANG_ROLE) if has_roles else ()
        gangs = tuple(view_job(read_gang(job, others)) for job in jobs)
        return SubmissionPage(gangs, (decoded.get("metadata") or {}).get("continue") or None)

    async def find_gangs(self, selection: GangSelection) -> dict[str, SelectedGang]:
        """Return the selected gangs by a key that stays the same while the gangs change.

        Sends one request for about 200 tasks, and another one if gangs that are not selected by name have roles.
        """
        from airflow_provider_gangjobs.gang.state.stored_gang import read_gangs
        from airflow_provider_gangjobs.jobs.requests import list_jobs, list_role_jobs

        jobs = await list_jobs(self.client, selection.namespace, selection.label_selectors)
        others = () if selection.names else await list_role_jobs(self.client, selection.namespace, jobs)
        return selection.find(read_gangs([*jobs, *others]))

    async def list_gangs(self, selection: GangSelection) -> list[GangRef]:
        """Return all attempts of the selected gangs. Sends one request for about 200 tasks."""
        from airflow_provider_gangjobs.gang.state.stored_gang import read_gangs
        from airflow_provider_gangjobs.jobs.requests import list_jobs

        jobs = await list_jobs(self.client, selection.namespace, selection.label_selectors)
        return [job.ref for job in selection.matching(read_gangs(jobs))]

    async def delete_submission(
        self,
        submission_id: str,
        *,
        job: bool = False,
        namespace: str | None = None,
        timeout_s: float = PODS_GONE_WITHIN_S,
    ) -> tuple[GangRef, ...]:
        """Delete the ledger, the files, the Service and the groups of a submission; with `job`, also its Jobs.

        A live gang is stopped first, and the call waits for its pods. Safe to repeat, also after an error. Returns the
        Jobs that the submission had.

        Raises:
            SubmissionFailed: the pods were not gone within `timeout_s` seconds, or the server refused a request.
        """
        from airflow_provider_gangjobs.ending.submissions import delete_submission

        return await delete_submission(
            self.client, submission_id, namespace=namespace or self.namespace, job=job, timeout_s=timeout_s
        )

    async def tidy(
        self,
        *,
        namespace: str | None = None,
        everywhere: bool = False,
        older_than: timedelta = HALF_SUBMITTED_FOR,
        dry_run: bool = False,
    ) -> CleanupReport:
        """Complete or remove the gangs whose submission stopped half-way. Safe to repeat and to run concurrently.

        :param everywhere: Clean up the whole cluster instead of one namespace.
        :param older_than: Leave gangs alone whose Job was created more recently than this.
        :param dry_run: Only report what would be done.
        """
        from airflow_provider_gangjobs.ending.submissions import clean_up_half_submitted

        where = None if everywhere else namespace or self.namespace
        now = self.client.server_clock.now
        return await clean_up_half_submitted(
            self.client, namespace=where, older_than=older_than, now=now, dry_run=dry_run
        )

    async def release_finalizers(self, *, namespace: str | None = None, gang: str | None = None) -> ReleaseReport:
        """Remove the provider's finalizer from the pods of a gang, of a namespace, or (with neither) of the cluster.

        For uninstalling. Outcomes that are not recorded yet are lost. Safe to repeat.
        """
        from airflow_provider_gangjobs.ending.release import release_everywhere

        return await release_everywhere(self.client, namespace=namespace, gang=gang)

    async def upload(self, files: Mapping[str, str | bytes], *, namespace: str | None = None) -> str:
        """Store files that many gangs share. Returns their content id, for `GangSpec(uploads=[...])`."""
        from airflow_provider_gangjobs.submission import uploads

        return await uploads.upload(self.client, files, namespace=namespace or self.namespace)

    async def uploads(self, *, namespace: str | None = None) -> list[Upload]:
        """Return all uploads of a namespace."""
        from airflow_provider_gangjobs.submission import uploads

        return await uploads.uploads(self.client, namespace=namespace or self.namespace)

    async def delete_upload(self, content_id: str, *, namespace: str | None = None) -> bool:
        """Delete an upload, even if gangs still use it. Returns false if the upload was gone."""
        from airflow_provider_gangjobs.submission import uploads

        return await uploads.delete_upload(self.client, content_id, namespace=namespace or self.namespace)

    # -- tracking --------------------------------------------------------------------------------------------

    async def outcomes(self, ref: GangRef) -> list[Outcome]:
        """Return every recorded outcome, by rank. The outcomes are available while the Job exists."""
        from airflow_provider_gangjobs.tracking.harvest.collect import read_outcomes

        return await read_outcomes(self.client, ref)

    async def logs(
        self,
        ref: GangRef,
        policy: Logs | str = Logs.RANK0_AND_FAILED,
        *,
        outcomes: Sequence[Outcome] = (),
        rank: int | None = None,
    ) -> list[RankLog]:
        """Return the last lines of the ranks' logs, as far as the nodes still have them.

        :param policy: Which ranks: `rank0+failed`, `all` or `none`.
        :param outcomes: The recorded outcomes, which show the failed ranks.
        :param rank: Only this rank, whatever the policy selects.
        """
        from airflow_provider_gangjobs.tracking.logs.last_lines import read_logs

        return await read_logs(self.client, ref, Logs(policy), outcomes=outcomes, rank=rank)

    async def is_live(self, ref: GangRef) -> bool:
        """Return whether the Job of exactly this uid exists and has not ended."""
        from airflow_provider_gangjobs.gang.state.phase import is_live
        from airflow_provider_gangjobs.jobs.requests import get_job

        gang = await get_job(self.client, ref)
        return gang is not None and gang.ref == ref and is_live(gang)

    # -- ends: the page of the package `ending` says which of them is used when ------------------------------

    async def delete(self, ref: GangRef, *, deleted_by: str = "") -> bool:
        """Delete the Job of exactly this uid and everything that the Job owns. Returns false if the Job was gone.

        The pods of the gang are released, also if the Job was gone. Outcomes that are not recorded yet are lost.

        :param deleted_by: Who deletes the gang on purpose. A task that waits for the gang then fails without a retry,
            and its error has this text. By default, the task does not know, and its retries run the gang again.
        """
        from airflow_provider_gangjobs.ending.delete import delete, finish_deletion, foreign_error
        from airflow_provider_gangjobs.jobs.requests import RetryingRequests

        requests = RetryingRequests(self.client, ref.namespace)
        deletion = await delete(requests, ref, deleted_by=deleted_by)
        if deletion.kept is not None:
            raise foreign_error(deletion.kept, "delete its Job")
        await finish_deletion(self.client, ref, deletion, release_held=True)
        return deletion.deleted is not None

    async def stop(self, ref: GangRef, *, reason: str) -> bool:
        """End the gang's pods and keep its Job with `reason`. Returns false if the gang has ended or is gone."""
        from airflow_provider_gangjobs.ending.delete import foreign_error
        from airflow_provider_gangjobs.ending.stop import PAUSES_S, stop
        from airflow_provider_gangjobs.gang.state.stopped import stopped_by_user
        from airflow_provider_gangjobs.jobs.requests import RetryingRequests, get_main_job

        gang = await get_main_job(self.client, ref)
        if gang is not None and gang.problem:
            raise foreign_error(gang, "stop its Job")
        requests = RetryingRequests(self.client, ref.namespace)
        return await stop(requests, ref, stopped_by_user(reason), pauses_s=PAUSES_S)


async def follow(
    config: ClusterConfig,
    ref: GangRef,
    *,
    until: FollowUntil = "ended",
    deadlines: Deadlines | None = None,
    report: Callable[[GangState], None] = lambda _: None,
    logs: LogReader | None = None,
    on_end: Callable[[SeenEnd], None] = lambda _: None,
) -> GangEvent:
    """Wait until a gang runs or has ended, and record its outcomes in the ledger meanwhile.

    :param until: What to wait for: `running` or `ended`.
    :param deadlines: How long the gang may be queued, assembling and running. By default there is no limit.
    :param report: Called with each new state of the gang.
    :param logs: Reads logs of pods that are being deleted, before the pods are released.
    :param on_end: Called with what was seen of the end of a gang that has ended by itself.
    """
    from airflow_provider_gangjobs.cluster.loop_local import CLIENT, import_in_thread

    await import_in_thread(*CLIENT, "airflow_provider_gangjobs.tracking.follow")
    from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
    from airflow_provider_gangjobs.tracking import follow as tracking

    limits = deadlines or Deadlines()
    options = tracking.FollowOptions(until=until, deadlines=limits, report=report, logs=logs, on_end=on_end)
    return await tracking.follow(config, ref, options)


log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_WITHIN_S: Final = 10.0
"""How long an interrupted coroutine, and the end of its thread, may take. A blocking call in a thread, such as an exec
plugin, may take longer, and must not keep an exception from its caller."""


def run(coroutine: Coroutine[object, object, T]) -> T:
    """Run one coroutine on an event loop of its own, as `EventLoopThread.run` does. Returns the coroutine's result."""
    with closing(EventLoopThread()) as thread:
        return thread.run(coroutine)


class EventLoopThread:
    """An event loop in a thread of its own. The thread starts with the first coroutine and ends with `close`."""

    def __init__(self) -> None:
        self.contexts = AsyncExitStack()
        """Contexts that coroutines on this loop enter, and that `close` exits on the loop."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._is_stuck = False
        self._calls: set[_Call[Any]] = set()

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the loop and block until the coroutine ends. Returns the coroutine's result.

        If an exception interrupts the wait, such as one that a signal handler raises, the coroutine is cancelled, its
        end is awaited for at most `STOP_WITHIN_S` seconds, and the exception is raised. Not safe to call from several
        threads.

        Raises:
            RuntimeError: the thread is closed.
            asyncio.CancelledError: `cancel` was called.
        """
        call = _Call(coroutine)
        self._calls.add(call)
        loop: asyncio.AbstractEventLoop | None = None
        try:
            loop = self._start()
            loop.call_soon_threadsafe(call.start)
            result = call.results.get()
        except BaseException:
            self._cancel(call)
            if loop is not None and not loop.is_closed() and not call.ended.wait(STOP_WITHIN_S):
                self._is_stuck = True
                log.warning("The interrupted requests to the cluster have not ended within %.0f s", STOP_WITHIN_S)
            raise
        finally:
            if call.task is None:
                coroutine.close()
            self._calls.discard(call)
        return result()

    def cancel(self, within_s: float) -> None:
        """Cancel the coroutines that run, and wait up to `within_s` seconds for their end.

        A signal handler may call this while the thread that it interrupts is in `run`.
        """
        calls = list(self._calls)
        for call in calls:
            self._cancel(call)
        for call in calls:
            call.ended.wait(within_s / len(calls))

    def close(self) -> None:
        """Cancel what still runs, exit `contexts`, and end the thread. Safe to repeat."""
        thread = self._thread
        if thread is None or thread.ident is None:
            return
        self._is_ready.wait()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(stop.set)
        if not self._is_stuck:
            thread.join(STOP_WITHIN_S)

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._thread is None:
            self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="gangjobs", daemon=True)
            self._thread.start()
        self._is_ready.wait()
        assert self._loop is not None
        return self._loop

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._is_ready.set()
        async with self.contexts:
            await self._stop.wait()
            running = [call.task for call in self._calls if call.task is not None]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _cancel(self, call: _Call[T]) -> None:
        call.is_cancelled = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call.cancel)


class _Call(Generic[T]):
    def __init__(self, coroutine: Coroutine[object, object, T]) -> None:
        self._coroutine = coroutine
        self.task: asyncio.Task[T] | None = None
        self.is_cancelled = False
        self.ended = threading.Event()
        # `SimpleQueue.get` is a single call in C, which a signal handler's exception cannot leave half done.
        self.results: SimpleQueue[Callable[[], T]] = SimpleQueue()

    def start(self) -> None:
        """Start the coroutine, in the context of the caller. Called on the loop."""
        self.task = asyncio.get_running_loop().create_task(self._coroutine)
        self.task.add_done_callback(self._finish)
        if self.is_cancelled:
            self.task.cancel()

    def cancel(self) -> None:
        """Cancel the coroutine. Called on the loop, possibly before `start` or after the end."""
        if self.task is not None:
            self.task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio logs an exception that nobody retrieves, as after an interrupted wait
        self.results.put(task.result)
        self.ended.set()


class GangSession:
    """The service of one cluster on an event loop in a thread of its own."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        connect: Callable[[ClusterConfig], AbstractAsyncContextManager[GangService]] = GangService.connect,
    ) -> None:
        self._config = config
        self._connect = connect
        self._thread = EventLoopThread()
        self._service: GangService | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client and end the thread."""
        self._thread.close()

    def call(self, action: Callable[[GangService], Awaitable[T]]) -> T:
        """Run `action` on the event loop, and block until it is done, as `EventLoopThread.run` does."""
        return self._thread.run(self._call(action))

    def cancel(self, within_s: float) -> None:
        """Cancel the calls that run, and wait up to `within_s` seconds for their end. For signal handlers."""
        self._thread.cancel(within_s)

    async def _call(self, action: Callable[[GangService], Awaitable[T]]) -> T:
        if self._service is None:
            self._service = await self._thread.contexts.enter_async_context(self._connect(self._config))
        return await action(self._service)

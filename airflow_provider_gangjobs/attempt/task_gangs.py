"""The gangs that one try of a task is responsible for: whether the try may still start one, and how the try ends them.

They are found in the cluster, by the task's key and the try's claim, so that a kill works in any process and at any
moment, also between a request and its answer. What a signal handler needs is kept here: the handler interrupts the main
thread, which may be talking to Airflow, so the handler must not ask Airflow for anything.

Airflow may end a try whose worker has stopped, and another try may have succeeded by the time the worker wakes up. A
submission that continues then creates a gang that nobody wants. So a try that began more than `CONFIRMED_FOR_S` seconds
ago asks Airflow directly before each write that starts a gang. The submission goes on after the answer, so a slow API
server delays the start and does not prevent it. A submission normally takes a second, and then asks nothing.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from airflow_provider_gangjobs.airflow_api.configuration import has_task_labels, installation_id
from airflow_provider_gangjobs.exceptions import GangJobError, SubmissionFailed
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.spec import OnFinish
from airflow_provider_gangjobs.gang.state.stopped import Stopped, Stopper
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.service.gangs import GangSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.exceptions import DeadlineExceeded, PreviousAttemptRunning
    from airflow_provider_gangjobs.gang.spec import GangSpec, Policies
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.submission.submission import (
        AdoptionRule,
        ConfirmTry,
        PreviousGangs,
        Submission,
        SubmissionRequest,
    )

WORKER_WAIT_S: Final = 10.0
"""For how long a worker waits before it defers the task: about as long as a deferral and a resumption take."""


def ref_of(previous: PreviousAttemptRunning) -> GangRef:
    """Return the gang whose pods run."""
    namespace, _, name = previous.ref.partition("/")
    return GangRef(namespace, name, previous.uid)


def deadline_error(event: Mapping[str, Any]) -> DeadlineExceeded:
    """Return the error of a task whose time limit has passed while it waited for the pods of an earlier attempt."""
    from airflow_provider_gangjobs.exceptions import DeadlineExceeded

    limited_by, pods = str(event.get("reason", "")), event.get("pods")
    left = "it is not known whether its pods have ended" if pods is None else f"{pods} of its pods had not ended"
    return DeadlineExceeded(
        ref=f"of the previous attempt ({event.get('gang')})",
        phase="still ending",
        seconds=None,
        waiting_for=f"After {event.get('waited_s')} s, {left}",
        advice=f"Shorten termination_grace, or raise {limited_by}",
        limited_by=limited_by,
    )


T = TypeVar("T")

KILL_TIMEOUT_S: Final = 3.5
CANCEL_TIMEOUT_S: Final = 0.5
"""Airflow kills the worker's process five seconds after it asked the worker to stop. Both together leave one second."""


class TaskGangs(Struct, kw_only=True, eq=False):
    """The gangs of one try of one task, and the cluster that they are in."""

    config: ClusterConfig
    must_exist: bool
    """Whether Airflow has the connection, so that the trigger must find it, too."""
    key: TaskKey
    claim: str
    namespace: str | None
    """The namespace of the gangs. By default the connection's namespace."""
    max_tries: int
    """`max_tries` of the task instance, which Airflow changes only when a user clears the task."""
    log: Logger
    labels: Mapping[str, str] = {}
    """The labels of the task for a gang that this try submits."""
    connect: Callable[[ClusterConfig], AbstractAsyncContextManager[GangService]] = GangService.connect
    kill_timeout_s: float = KILL_TIMEOUT_S
    """How long `kill` may take to delete the gangs, in seconds."""
    wait_for_previous_s: float = WORKER_WAIT_S
    """How long a submission waits in the worker for the pods of an earlier attempt, in seconds."""
    server_ahead_s: float = 0.0
    """How many seconds the API server's clock is ahead of the local clock, as the last call has shown."""
    server_software: str = ""
    """The software that the API server names in its responses."""
    _is_killed: bool = False
    _session: GangSession | None = None
    _client: Client | None = None
    """The client that was opened last."""

    @classmethod
    def of(cls, conn_id: str, ti: Any, namespace: str | None, log: Logger, *, retry_for_s: float = 0.0) -> TaskGangs:
        """Read the connection now, so that no later step has to. Retries for `retry_for_s` seconds.

        :param ti: The task instance of the context.
        """
        hook = GangJobHook(conn_id)
        config = hook.config(retry_for_s=retry_for_s)
        return cls.in_cluster(config, ti, namespace, log, must_exist=bool(hook.exists), max_tries=ti.max_tries)

    @classmethod
    def in_cluster(
        cls, config: ClusterConfig, ti: Any, namespace: str | None, log: Logger, *, must_exist: bool, max_tries: int
    ) -> TaskGangs:
        """Return the gangs of a try in the cluster of a connection that was read."""
        map_index = -1 if ti.map_index is None else ti.map_index
        key = TaskKey(ti.dag_id, ti.run_id, ti.task_id, map_index, installation_id())
        return cls(
            config=config,
            must_exist=must_exist,
            key=key,
            claim=str(ti.id),
            namespace=namespace,
            max_tries=max_tries,
            log=log,
            labels=key.labels(ti.try_number) if has_task_labels() else {},
        )

    def request(
        self,
        policies: Policies,
        rule: AdoptionRule,
        confirm: ConfirmTry,
        *,
        previous: PreviousGangs | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SubmissionRequest:
        """Return the request to submit a gang of this try.

        :param policies: What happens to the gang after its task has ended.
        :param env: The variables of this try for the ranks of a gang that is created.
        """
        from airflow_provider_gangjobs.gang.identity import Claim
        from airflow_provider_gangjobs.submission.submission import SubmissionRequest

        claim = Claim(self.claim, policies, self.max_tries, self.labels, env or {})
        return SubmissionRequest(key=self.key, claim=claim, rule=rule, confirm=confirm, previous=previous)

    def submit(self, spec: GangSpec, request: SubmissionRequest, guard: StartGuard, *, delete: bool) -> Submission:
        """Submit a gang of this try, which starts only if the try runs.

        :param delete: Whether to delete the gang of a try that Airflow has ended.

        Raises:
            SubmissionFailed: Airflow has ended the try, or does not say before the start whether the try runs.
        """
        from airflow_provider_gangjobs.submission.submission import UnconfirmedTry

        try:
            return self.call(lambda service: guard.submit(service, spec, request, self.log))
        except UnconfirmedTry as unconfirmed:
            if unconfirmed.has_ended and delete:
                self.end(OnFinish.DELETE, why=Stopped(Stopper.TASK, ENDED))
            cause, advice = (ENDED, ENDED_ADVICE) if unconfirmed.has_ended else (UNKNOWN, UNKNOWN_ADVICE)
            raise SubmissionFailed(f"task {self.key.dag_id}.{self.key.task_id}", STEP, cause, advice=advice) from None

    async def note_secrets(self, service: GangService, ref: GangRef, spec: GangSpec | None = None) -> bool | None:
        """Let the Job say where its gang has secrets, and return `TriggerArgs.secrets`.

        :param spec: The spec of the gang, if this process has rendered it. Without secrets it costs no request.
        """
        from airflow_provider_gangjobs.airflow_api.task_log import find_secrets, mask
        from airflow_provider_gangjobs.jobs.gang_secrets import has_secrets, write_places

        if spec is not None and not has_secrets(spec, mask):
            return False
        has_any = await write_places(service.client, ref, find_secrets)
        if has_any is None:
            self.log.warning("Where gang %s has secrets is not known, so only a worker shows its logs and its end", ref)
        return has_any

    @contextmanager
    def session(self) -> Iterator[GangSession]:
        """Send all requests in the block over one client: over the open one, or over one that the block closes."""
        if self._session is not None:
            yield self._session
            return
        with GangSession(self.config, connect=self._open_client) as session:
            self._session = session
            try:
                yield session
            finally:
                self._session = None

    @asynccontextmanager
    async def _open_client(self, config: ClusterConfig) -> AsyncIterator[GangService]:
        async with self.connect(config) as service:
            self._client = service.client
            yield service

    def call(self, action: Callable[[GangService], Awaitable[T]]) -> T:
        """Run coroutines of the service, and block until they are done.

        Raises:
            asyncio.CancelledError: `kill` was called.
        """
        if self._is_killed:
            raise asyncio.CancelledError("the task was killed")
        with self.session() as session:
            try:
                return session.call(action)
            finally:
                if self._client is not None:
                    self.server_ahead_s = self._client.server_clock.ahead_s or self.server_ahead_s
                    self.server_software = self._client.server_software or self.server_software

    def kill(self, why: str) -> None:
        """Delete the live gangs of this try. Takes at most `CANCEL_TIMEOUT_S` and `kill_timeout_s`. Never raises.

        A signal handler calls this at any moment, also between a request and its answer. First the requests of this
        try are cancelled, so that the try creates nothing after the kill. Then the gangs are deleted over a client of
        its own, whatever state the session is in.
        """
        self._is_killed = True
        session, self._session = self._session, None
        if session is not None:
            session.cancel(CANCEL_TIMEOUT_S)
        self.end(OnFinish.DELETE, why=Stopped(Stopper.TASK, why), timeout_s=self.kill_timeout_s)

    def is_live(self, ref: GangRef) -> bool | None:
        """Return whether this worker finds that the gang still runs. `None` if the cluster could not be read."""
        return self._read(lambda service: service.is_live(ref), f"whether gang {ref} runs")

    def live(self) -> list[StoredGang] | None:
        """Return the gangs of this try that still run. `None` if the cluster could not be read."""

        async def find(service: GangService) -> list[StoredGang]:
            from airflow_provider_gangjobs.ending.delete import live_gangs

            namespace = self.namespace or service.namespace
            return await live_gangs(service.client, self.key, self.claim, namespace=namespace)

        return self._read(find, "which gangs of the task run")

    def _read(self, action: Callable[[GangService], Awaitable[T]], what: str) -> T | None:
        from airflow_provider_gangjobs.cluster.errors import ClusterError

        try:
            return self.call(action)
        except ClusterError as error:
            self.log.warning("This worker cannot find out %s: %s", what, error)
            return None

    def end(self, on_finish: OnFinish, *, why: Stopped, timeout_s: float | None = None) -> None:
        """End the live gangs of this try: delete them if `on_finish` is `delete`, otherwise stop them.

        Gangs that have ended are kept. Never raises, because the caller is about to raise the error that matters.

        :param why: The reason, for the log and for the mark on a stopped Job.
        :param timeout_s: The limit of all requests, in seconds. `None` means no limit.
        """
        from airflow_provider_gangjobs.cluster.errors import ClusterError

        stopped = None if on_finish is OnFinish.DELETE else why
        ended: list[GangRef] = []

        def note(ref: GangRef) -> None:
            ended.append(ref)
            self.log.info("Gang %s is %s: %s", ref, "stopped" if stopped else "deleted", why.text)

        async def act(service: GangService) -> None:
            # Imported on the loop, because a signal handler may have interrupted an import of the main thread.
            from airflow_provider_gangjobs.ending.delete import end_live_gangs

            client, namespace = service.client, self.namespace or service.namespace
            async with asyncio.timeout(timeout_s):
                await end_live_gangs(client, self.key, self.claim, namespace=namespace, stopped=stopped, on_ended=note)

        try:
            with self.session() as session:
                session.call(act)
        except (ClusterError, GangJobError, TimeoutError) as error:
            what = (
                f"Some pods of gang {ended[0]} may still be held by their finalizer"
                if ended
                else "The gang could not be ended and may still run"
            )
            self.log.warning("%s: %s", what, str(error) or type(error).__name__)


CONFIRMED_FOR_S: Final = 30.0
"""How long a try may start gangs without asking. Airflow waits ten times as long for the heartbeat of a worker."""
STEP: Final = "start the gang"
ENDED: Final = "Airflow has ended this try while its worker was stopped or slow"
ENDED_ADVICE: Final = "No action is needed: a later try continues, or the task has ended"
UNKNOWN: Final = "Airflow does not say whether this try still runs, and the worker was stopped or slow"
UNKNOWN_ADVICE: Final = "Check that the worker reaches Airflow's API server. The next try starts the same gang"


def boot_time() -> float:
    """Return a monotonic time in seconds that counts while the machine sleeps, if the platform has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class StartGuard:
    """Knows when Airflow last said that the try runs, and asks again if that was too long ago."""

    def __init__(
        self,
        is_running: Callable[[], Awaitable[bool | None]],
        *,
        started: datetime | None,
        clocks: Sequence[Callable[[], float]] = (time.time, boot_time),
    ) -> None:
        """
        :param is_running: Asks Airflow whether this try runs. `None` means that Airflow could not be asked.
        :param started: When the try began. Airflow has confirmed the try then.
        :param clocks: Clocks in seconds, the wall clock first. The clock that shows the longest time counts, because a
            clock may be set back, and may stand still while the machine sleeps.
        """
        self._is_running = is_running
        self._clocks = clocks
        self._confirmed = [clock() for clock in clocks]
        if started is not None:
            self._confirmed[0] = min(self._confirmed[0], started.timestamp())

    def is_due(self) -> bool:
        """Return whether Airflow must be asked before a gang starts."""
        ages = (clock() - then for clock, then in zip(self._clocks, self._confirmed, strict=True))
        return max(ages) > CONFIRMED_FOR_S

    async def confirm(self, *, always: bool = False) -> None:
        """Return if the try runs. Asks Airflow if `is_due`, or in any case.

        Raises:
            UnconfirmedTry: the try has ended, or Airflow does not say whether the try runs.
        """
        if not always and not self.is_due():
            return
        from airflow_provider_gangjobs.submission.submission import UnconfirmedTry

        now = [clock() for clock in self._clocks]
        runs = await self._is_running()
        if not runs:
            raise UnconfirmedTry(has_ended=runs is False)
        self._confirmed = now

    async def submit(self, service: GangService, spec: GangSpec, request: SubmissionRequest, log: Logger) -> Submission:
        """Submit a gang, which starts only if the try runs.

        The submission asks directly before each write that starts the gang. It is asked once more at the end, because
        the process may have been stopped before the last request.

        Raises:
            UnconfirmedTry: Airflow has ended the try, or does not say before the start whether the try runs.
        """
        from airflow_provider_gangjobs.submission.submission import UnconfirmedTry

        submission = await service.submit(spec, request)
        try:
            await self.confirm()
        except UnconfirmedTry as unconfirmed:
            if unconfirmed.has_ended:
                raise
            log.warning("Airflow does not say whether this try still runs. The gang has started")
        return submission

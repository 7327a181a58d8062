"""GangJobHook: gangs for any Python task, through Airflow's `kubernetes` connection.

Importing this loads no client library; the first call does. Credentials go from the connection into the
client and nowhere else: they are in no log, no error, no trigger argument and no event.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow.sdk import BaseHook

from airflow_provider_gangjobs.exceptions import GangJobError
from airflow_provider_gangjobs.gang.spec import GangSpec, Logs, Reattach, Validate
from airflow_provider_gangjobs.hooks.airflow_exceptions import AirflowNotFoundException
from airflow_provider_gangjobs.hooks.connection import DEFAULT_CONN_ID, aread_extras, read_extras
from airflow_provider_gangjobs.hooks.event_loop import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
    from airflow_provider_gangjobs.gang.state.observation import Observation
    from airflow_provider_gangjobs.service import Gangs
    from airflow_provider_gangjobs.submission.capabilities import Abilities
    from airflow_provider_gangjobs.submission.cleanup import Tidied
    from airflow_provider_gangjobs.submission.operations import SubmissionPage
    from airflow_provider_gangjobs.submission.record import SubmissionRecord
    from airflow_provider_gangjobs.submission.submit import Submission
    from airflow_provider_gangjobs.submission.uploads import Upload
    from airflow_provider_gangjobs.tracking.follow import Until
    from airflow_provider_gangjobs.tracking.read.logs import RankLog
    from airflow_provider_gangjobs.tracking.release import ReleaseReport

T = TypeVar("T")

READ_PAUSE_BASE_S: Final = 1.0
READ_PAUSE_CAP_S: Final = 30.0
"""Between two reads of a connection that could not be read. A triggerer reads one for each of its gangs."""


class GangJobHook(BaseHook):
    """Submit gangs, look at them, and end them.

    The methods block. On an event loop use `async with hook.connect() as gangs`, which has them all as coroutines.

    :param kubernetes_conn_id: A connection of type `kubernetes`, with the extras that the cncf.kubernetes provider
        documents. If there is no `kubernetes_default`, the default kubeconfig or the pod's service account is used.
    :param must_exist: Never do without the connection. Airflow says that there is none also when it could not be
        read, and to look for a gang in another cluster is worse than not to look.
    """

    conn_name_attr = "kubernetes_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "kubernetes"
    hook_name = "Kubernetes gang jobs"

    def __init__(self, kubernetes_conn_id: str = DEFAULT_CONN_ID, *, must_exist: bool = False) -> None:
        super().__init__()
        self.kubernetes_conn_id = kubernetes_conn_id
        self.must_exist = must_exist
        self.exists: bool | None = None
        """Whether Airflow had the connection when it was read last."""

    def config(self, *, retry_for_s: float = 0.0) -> ClusterConfig:
        """Which cluster, and by which credentials.

        :param retry_for_s: How long to try again, in seconds, if the connection cannot be read or used. Airflow says
            that there is no such connection also when a secrets backend could not be asked.

        Raises:
            AirflowNotFoundException: there is no such connection.
            InvalidConnection: its extras contradict each other.
        """
        pauses = _pauses(retry_for_s)
        while True:
            try:
                return self._config(read_extras(self.kubernetes_conn_id))
            except Exception as error:
                time.sleep(self._pause_s(pauses, error))

    async def aconfig(self, *, retry_for_s: float = 0.0) -> ClusterConfig:
        """As `config`, on an event loop."""
        pauses = _pauses(retry_for_s)
        while True:
            try:
                return self._config(await aread_extras(self.kubernetes_conn_id))
            except Exception as error:
                await asyncio.sleep(self._pause_s(pauses, error))

    def _pause_s(self, pauses: Iterator[float], error: Exception) -> float:
        """The next pause in seconds; raises the error if there is none."""
        pause_s = next(pauses, None)
        if pause_s is None:
            raise error
        # Not the error's text: what a secrets backend raises may hold anything.
        self.log.warning(
            "Connection %r could not be read (%s); trying again in %.0f s",
            self.kubernetes_conn_id,
            type(error).__name__,
            pause_s,
        )
        return pause_s

    def _config(self, extras: dict[str, Any] | None) -> ClusterConfig:
        from airflow_provider_gangjobs.cluster.config import ClusterConfig

        self.exists = extras is not None
        if self.must_exist and extras is None:
            raise AirflowNotFoundException(
                f"Connection {self.kubernetes_conn_id!r} was there before, and cannot be read"
            )
        return ClusterConfig.from_extras(self.kubernetes_conn_id, extras or {})

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Gangs]:
        """The cluster's gangs, over one client that is closed with the block."""
        from airflow_provider_gangjobs.service import Gangs

        async with Gangs.of(await self.aconfig()) as gangs:
            yield gangs

    async def afollow(
        self,
        ref: GangRef,
        *,
        until: Until = "ended",
        deadlines: Deadlines | None = None,
        report: Callable[[Observation], None] = lambda _: None,
        config: ClusterConfig | None = None,
    ) -> GangEvent:
        """Wait until a gang runs, or has ended, and record its outcomes on the way. See `tracking.follow.follow`.

        All that wait on one event loop share their watches and connections.

        :param config: The cluster, if the connection was read already.
        """
        from airflow_provider_gangjobs.gang.state.deadlines import Deadlines

        follow = await _follow()
        return await follow(
            config or await self.aconfig(), ref, deadlines=deadlines or Deadlines(), until=until, report=report
        )

    def call(self, action: Callable[[Gangs], Awaitable[T]], *, config: ClusterConfig | None = None) -> T:
        """Run a coroutine over the cluster's gangs, and block until it is done."""
        return run(_call(config or self.config(), action))

    def submit(
        self,
        spec: GangSpec,
        *,
        trigger_id: str | None = None,
        key: TaskKey | None = None,
        claim: str = "",
        reattach: Reattach | str = Reattach.RUNNING_OR_SUCCEEDED,
        validate: Validate | str = Validate.CLIENT,
    ) -> Submission:
        """Create the gang of this id, or of this task; or adopt the one that is there.

        :param trigger_id: An id of the caller's choice. The same id with the same parameters is the same gang, however
            often and from wherever it is submitted, until the submission is deleted or has failed.
        :param key: Instead of an id, the task whose gang it is, with `claim` for who answers for it now.
        :param validate: `server` has the Job judged by a dry run before anything is created.

        Raises:
            InvalidGangSpec, GangUnsupported, SubmissionConflict, SubmissionFailed: nothing new is left running.
            ValueError: not exactly one of `trigger_id` and `key`.
        """
        if trigger_id is not None and key is None:
            return self.call(lambda gangs: gangs.submit_operation(spec, trigger_id, validate=Validate(validate)))
        if key is None or trigger_id is not None:
            raise ValueError("Give either trigger_id or key")
        return self.call(
            lambda gangs: gangs.submit(
                spec, key=key, claim=claim, reattach=Reattach(reattach), validate=Validate(validate)
            )
        )

    def submission(self, trigger_id: str, *, namespace: str | None = None) -> SubmissionRecord | None:
        """The submission of this id as it stands: state, phase, times, and the error if it failed. One request."""
        return self.call(lambda gangs: gangs.submission(trigger_id, namespace=namespace))

    def submissions(
        self,
        *,
        namespace: str | None = None,
        selector: str | None = None,
        limit: int = 100,
        continue_token: str | None = None,
    ) -> SubmissionPage:
        """A page of a namespace's submissions, of tasks and by chosen ids alike, that a label selector picks."""
        return self.call(
            lambda gangs: gangs.submissions(
                namespace=namespace, selector=selector, limit=limit, continue_token=continue_token
            )
        )

    def delete_submission(
        self, trigger_id: str, *, job: bool = False, namespace: str | None = None, timeout_s: float = 120
    ) -> tuple[GangRef, ...]:
        """Delete what belongs to a submission: ledger, files, Service, groups; the Job too if `job`.

        One that goes on is halted first, and its pods are waited for. Safe to repeat, also after an error.

        Raises:
            SubmissionFailed: its pods were not gone in `timeout_s`, or the server refused.
        """
        return self.call(
            lambda gangs: gangs.delete_submission(trigger_id, job=job, namespace=namespace, timeout_s=timeout_s)
        )

    def tidy(
        self,
        *,
        namespace: str | None = None,
        everywhere: bool = False,
        older_than: timedelta = timedelta(hours=1),
        dry_run: bool = False,
    ) -> Tidied:
        """Complete or remove gangs whose submission stopped half-way, `older_than` that. Safe at any time, and twice.

        Of the namespace, or `everywhere`. With `dry_run` nothing is changed.
        """
        return self.call(
            lambda gangs: gangs.tidy(namespace=namespace, everywhere=everywhere, older_than=older_than, dry_run=dry_run)
        )

    def upload(self, files: Mapping[str, str | bytes], *, namespace: str | None = None) -> str:
        """Store files that many gangs share, once; returns their content id, for `GangSpec(uploads=[...])`."""
        return self.call(lambda gangs: gangs.upload(files, namespace=namespace))

    def uploads(self, *, namespace: str | None = None) -> list[Upload]:
        """All uploads of a namespace."""
        return self.call(lambda gangs: gangs.uploads(namespace=namespace))

    def delete_upload(self, content_id: str, *, namespace: str | None = None) -> bool:
        """Delete an upload, used or not. False if it was gone."""
        return self.call(lambda gangs: gangs.delete_upload(content_id, namespace=namespace))

    def outcomes(self, ref: GangRef) -> list[Outcome]:
        """Every recorded outcome, by rank; also of a gang that has ended, while its Job exists."""
        return self.call(lambda gangs: gangs.outcomes(ref))

    def logs(self, ref: GangRef, policy: Logs | str = Logs.RANK0_AND_FAILED) -> list[RankLog]:
        """The tails of the ranks' logs, as far as their nodes still have them."""
        return self.call(lambda gangs: gangs.logs(ref, Logs(policy)))

    def capabilities(self) -> Abilities:
        """Release, dialects, fields that survive a dry run, and which gates are proven on, off, or cannot be proven."""
        return self.call(lambda gangs: gangs.abilities())

    def mark_delivered(self, ref: GangRef) -> bool:
        """Note that the outcome was taken: the task's next submission is a new attempt. False if the Job is gone."""
        return self.call(lambda gangs: gangs.mark_delivered(ref))

    def halt(self, ref: GangRef, *, reason: str) -> bool:
        """End the gang's pods and keep its Job to be read. False if the Job is gone."""
        return self.call(lambda gangs: gangs.halt(ref, reason=reason))

    def delete(self, ref: GangRef) -> bool:
        """Delete the Job of exactly this uid and all it owns. False if it was gone."""
        return self.call(lambda gangs: gangs.delete(ref))

    def release_finalizers(self, *, namespace: str | None = None, gang: str | None = None) -> ReleaseReport:
        """Free every pod that this provider's finalizer holds: of a gang, a namespace, or the whole cluster.

        For uninstalling. Outcomes that are not recorded yet are given up. Safe to repeat.
        """
        return self.call(lambda gangs: gangs.release_finalizers(namespace=namespace, gang=gang))

    def test_connection(self) -> tuple[bool, str]:
        """Whether the cluster answers, and what it says that it is."""
        from airflow_provider_gangjobs.cluster.errors import ClusterError

        try:
            version = self.call(lambda gangs: gangs.client.version())
        except (ClusterError, GangJobError) as error:
            return False, str(error)
        return True, f"Kubernetes {version.get('gitVersion', 'of unknown version')}"


def _pauses(for_s: float) -> Iterator[float]:
    """Pauses between reads of the connection, which together last about `for_s` seconds at most."""
    from airflow_provider_gangjobs.cluster.clock import Backoff, Clock

    backoff = Backoff(Clock(), base_s=READ_PAUSE_BASE_S, cap_s=READ_PAUSE_CAP_S)
    while (pause_s := backoff.next()) <= for_s:
        for_s -= pause_s
        yield pause_s


async def _follow() -> Callable[..., Awaitable[GangEvent]]:
    """`tracking.follow.follow`. The first time in a process this loads the client libraries, half a second or more of
    CPU, so it is done in a thread: other triggers go on meanwhile."""
    name = "airflow_provider_gangjobs.tracking.follow"
    found = getattr(sys.modules.get(name), "follow", None) or (await asyncio.to_thread(import_module, name)).follow
    follow: Callable[..., Awaitable[GangEvent]] = found
    return follow


async def _call(config: ClusterConfig, action: Callable[[Gangs], Awaitable[T]]) -> T:
    from airflow_provider_gangjobs.service import Gangs

    async with Gangs.of(config) as gangs:
        return await action(gangs)


__all__ = ["GangJobHook"]

"""JobSets that somebody else has created: how far one is, and how it has ended. Nothing in the cluster is changed.

A shared informer for each namespace shows the JobSets. Their Jobs and pods are listed once, when a JobSet has failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.discovery import read_api_group
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.informer import InformerClosedError, Notification, informers
from airflow_provider_gangjobs.cluster.resources import JOB_SETS, JOBS, PODS
from airflow_provider_gangjobs.exceptions import JobSetUnavailable
from airflow_provider_gangjobs.gang.job_set import describe_failure, describe_progress, jobs_of, read_job_set
from airflow_provider_gangjobs.gang.outcome.event import Status, build_event
from airflow_provider_gangjobs.gang.state.phase import PHASE_OF_VERDICT
from airflow_provider_gangjobs.gang.state.verdict import Verdict, VerdictKind, judge
from airflow_provider_gangjobs.kube.names import LABEL_JOB_SET
from airflow_provider_gangjobs.kube.views import JobSetView, JobView, PodView, view
from airflow_provider_gangjobs.tracking.retry_until_answered import ClusterRefused, retry_until_answered
from airflow_provider_gangjobs.tracking.watch.selection_watch import InformerWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.resources import Resource
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent


def name_of(seen: JobSetView) -> str | None:
    """Return the name of a JobSet. An informer indexes JobSets by it."""
    return seen.metadata.name


async def check_served(client: Client, ref: GangRef) -> None:
    """Check that the cluster serves JobSets in the version that is known. If this is unknown, nothing is raised.

    Raises:
        JobSetUnavailable: the cluster does not serve them.
        ClusterError: no request could be sent.
    """
    group = await read_api_group(client, JOB_SETS.group)
    if group.unknown or JOB_SETS.plural in group.versions.get(JOB_SETS.version, ()):
        return
    versions = ", ".join(sorted(group.versions))
    what = f"serves {JOB_SETS.group} only in {versions}" if versions else f"does not serve {JOB_SETS.group}"
    cause = f"The cluster {what}, and the provider reads {JOB_SETS.api_version}"
    raise JobSetUnavailable(str(ref), cause, is_served=False)


async def look_at_job_set(client: Client, ref: GangRef) -> tuple[GangRef, GangEvent | None, str]:
    """Read a JobSet once. Return its reference, its event if it has ended, and a line for people.

    :param ref: The JobSet. Without a uid, it is the JobSet that has the name now, and may be created later.

    Raises:
        JobSetUnavailable: the cluster serves no JobSets.
        ClusterError: the JobSet could not be read.
    """
    seen = await _read(client, ref)
    if seen is None:
        await check_served(client, ref)
    elif not ref.uid:
        ref = replace(ref, uid=seen.metadata.uid)
    verdict = _judge(seen, ref)
    event = None if verdict is None else await _event(client, ref, verdict)
    return ref, event, describe_progress(seen, str(ref))


async def follow_job_set(client: Client, ref: GangRef, report: Callable[[str], None]) -> GangEvent:
    """Wait until a JobSet has ended, and return the event. Safe to cancel at any time and to run twice at once.

    :param ref: The JobSet. Without a uid, it is the first JobSet with the name that is seen.
    :param report: Called with a line for people at each change.

    Raises:
        JobSetUnavailable: the cluster serves no JobSets, or has refused for some minutes to show them.
    """
    try:
        await retry_until_answered(lambda: check_served(client, ref), clock=client.clock)
        while True:
            watch = _JobSetWatch(client, ref, report)
            try:
                return await watch.run()
            except InformerClosedError:
                ref = watch.ref
            finally:
                watch.close()
    except ClusterRefused as refused:
        raise JobSetUnavailable(str(ref), str(refused)) from refused
    except NotFound as error:
        raise JobSetUnavailable(str(ref), str(error), is_served=False) from error


class _JobSetWatch(InformerWatch[JobSetView]):
    """One wait on the shared informer."""

    def __init__(self, client: Client, ref: GangRef, report: Callable[[str], None]) -> None:
        self.ref = ref
        self._report = report
        self._line = ""
        self._last: JobSetView | None = None
        """The last view of the JobSet, if it does not exist any more."""
        informer = informers().acquire(client, JOB_SETS, ref.namespace, decode=JobSetView, index=name_of)
        super().__init__(client, informer, [ref.name], Notification())

    @property
    def _listed(self) -> tuple[Resource, str, str | None]:
        return JOB_SETS, self.ref.namespace, None

    async def run(self) -> GangEvent:
        """Return the event at the end of the JobSet."""
        await self.sync()
        while True:
            seen = self._seen
            if seen is not None and not self.ref.uid:
                self.ref = replace(self.ref, uid=seen.metadata.uid)
            if _judge(seen, self.ref) is not None and (verdict := await self._confirm()) is not None:
                return await _event(self._client, self.ref, verdict)
            self._tell(describe_progress(seen, str(self.ref)))
            await self.changed()

    @property
    def _seen(self) -> JobSetView | None:
        """The JobSet; another JobSet of the same name if the JobSet does not exist; or `None`."""
        (subscription,) = self._subscriptions
        by_uid = subscription.peek()
        return by_uid.get(self.ref.uid) or next(iter(by_uid.values()), None)

    async def _confirm(self) -> Verdict | None:
        """Read the JobSet once more. If it is gone, the last view of the watch may show that it had ended before."""
        (subscription,) = self._subscriptions
        self._last = subscription.take_deleted().get(self.ref.uid) or self._last
        seen = await retry_until_answered(lambda: _read(self._client, self.ref), clock=self._client.clock)
        verdict = _judge(seen, self.ref)
        is_gone = verdict is not None and not verdict.job_is_there
        before = _judge(self._last, self.ref) if is_gone and self._last is not None else None
        return before if before is not None and before.job_is_there else verdict

    def _tell(self, line: str) -> None:
        if line != self._line:
            self._line = line
            self._report(line)


def _judge(seen: JobSetView | None, ref: GangRef) -> Verdict | None:
    """Return how the JobSet has ended; `None` if it has not ended, or does not exist yet."""
    if seen is None and not ref.uid:
        return None
    return judge(None if seen is None else read_job_set(seen), ref)


async def _read(client: Client, ref: GangRef) -> JobSetView | None:
    try:
        return view(JobSetView, await client.get(JOB_SETS, ref.name, ref.namespace))
    except NotFound:
        return None


async def _event(client: Client, ref: GangRef, verdict: Verdict) -> GangEvent:
    message, remedy = verdict.message, ""
    if verdict.kind is VerdictKind.FAILED:
        message, remedy = await _explain(client, ref, message)
    return build_event(
        ref,
        Status(verdict.kind.value),
        PHASE_OF_VERDICT[verdict.kind],
        reason=verdict.reason,
        message=message,
        remedy=remedy,
        since=verdict.at,
        other_uid=verdict.other_uid,
    )


async def _explain(client: Client, ref: GangRef, message: str) -> tuple[str, str]:
    """Return why a JobSet failed, and what to do.

    :param message: The message of the JobSet's condition, for a JobSet whose Jobs do not say why.
    """
    selector = f"{LABEL_JOB_SET}={ref.name}"
    try:
        jobs = [view(JobView, job) for job in await client.list(JOBS, ref.namespace, label_selector=selector)]
        pods = [view(PodView, pod) for pod in await client.list(PODS, ref.namespace, label_selector=selector)]
    except ClusterError as error:
        return f"{message}. Its Jobs and pods could not be read: {error}", ""
    found, remedy = describe_failure(jobs_of(ref.uid, jobs), pods)
    return found or message, remedy


__all__ = ["check_served", "follow_job_set", "look_at_job_set", "name_of"]

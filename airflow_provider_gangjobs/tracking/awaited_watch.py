"""Watches of what somebody waits for: selected gangs, and JobSets that somebody else has created. Nothing is changed.

Gangs that are selected by name use the informer that all followers of the namespace share. A sweep removes gangs that
have ended from that informer, so the names that the informer does not have are listed once when a watch begins. Gangs
that are selected by task or trigger id share one further informer, and each label selector has its own. One informer
for each namespace shows the JobSets. Their Jobs and pods are listed once, when a JobSet has failed.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.informer import Informer, InformerClosedError, Notification, informers
from airflow_provider_gangjobs.cluster.informer.store import HasMetadata
from airflow_provider_gangjobs.cluster.resources import JOB_SETS, JOBS, PODS
from airflow_provider_gangjobs.cluster.served_resources import read_api_group
from airflow_provider_gangjobs.exceptions import JobSetUnavailable
from airflow_provider_gangjobs.gang.awaited import describe_failure, describe_progress, jobs_of, read_job_set
from airflow_provider_gangjobs.gang.outcome.event import Status, build_event
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gangs
from airflow_provider_gangjobs.gang.state.phase import PHASE_OF_VERDICT, Verdict, VerdictKind, judge
from airflow_provider_gangjobs.jobs.requests import ClusterRefused, retry_until_answered
from airflow_provider_gangjobs.kube.views import JobSetView, JobView, PodView, view
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG, LABEL_JOB_SET
from airflow_provider_gangjobs.tracking.gang_watch import gang_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.resources import Resource
    from airflow_provider_gangjobs.gang.awaited import GangSelection, SelectedGang
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent


V = TypeVar("V", bound=HasMetadata)

SYNC_WITHIN_S: Final = 30.0
"""When the informer has not synced for this long, the same request is sent to learn why."""
STALE_S: Final = 600.0
"""The same for an informer that was synced and has received nothing for this long."""


class InformerWatch(Generic[V]):
    """Some keys of a shared informer. `close` must be called at the end."""

    def __init__(
        self,
        client: Client,
        informer: Informer[V],
        keys: Iterable[str],
        notification: Notification,
        listed: tuple[Resource, str, str | None],
    ) -> None:
        """
        :param informer: The handle is released by `close`.
        :param notification: Notified when an object of the keys changes.
        :param listed: The resource, namespace and label selector of a list that needs the permissions of the informer.
        """
        self._client = client
        self._informer = informer
        self._notification = notification
        self._listed = listed
        self._subscriptions = [informer.subscribe(key, notification) for key in keys]

    def close(self) -> None:
        """End the subscriptions. Safe to repeat."""
        self._informer.release()

    async def sync(self) -> None:
        """Wait for the first list, so that an object that is not found does not exist.

        Raises:
            ClusterRefused: the server refuses to list the objects.
            NotFound: the server does not serve the resource.
            InformerClosedError: the informer has ended.
        """
        while not await self._informer.synced(SYNC_WITHIN_S):
            await self._check_access()

    async def changed(self, within_s: float | None = None) -> None:
        """Wait until an object has changed, somebody else has notified, or `within_s` seconds have passed.

        Raises:
            ClusterRefused: the informer has received nothing for a long time, and the server refuses to list.
            NotFound: the server does not serve the resource any more.
            InformerClosedError: the informer has ended.
        """
        while not await self._notification.wait(STALE_S if within_s is None else within_s):
            self._check_open()
            if self._informer.staleness_s >= STALE_S and self._informer.problem:
                await self._check_access()
            if within_s is not None:
                return
        self._check_open()

    def _check_open(self) -> None:
        for subscription in self._subscriptions:
            subscription.check()

    async def _check_access(self) -> None:
        resource, namespace, selector = self._listed
        await retry_until_answered(
            lambda: self._client.list(resource, namespace, label_selector=selector), clock=self._client.clock
        )


def task_of(seen: JobView) -> str | None:
    """Return the digest of the task or trigger id that a Job belongs to. An informer indexes Jobs by it."""
    return seen.metadata.labels.task


def every(_: JobView) -> str | None:
    """Return one key for all Jobs of an informer."""
    return ""


class SelectionWatch(InformerWatch[JobView]):
    """What an informer shows of the selected gangs. `close` must be called at the end."""

    def __init__(self, client: Client, selection: GangSelection, notification: Notification) -> None:
        """
        :param notification: Notified when a Job of the selection changes.
        """
        self._selection = selection
        index: Callable[[JobView], str | None]
        if selection.selector:
            (labels,) = selection.label_selectors
            index, keys = every, [""]
        elif selection.digests:
            index, labels, keys = task_of, LABEL_GANG, [digest for each in selection.digests for digest in each]
        else:
            index, labels, keys = gang_of, LABEL_GANG, list(selection.names or ())
        informer: Informer[JobView] = informers().acquire(
            client, JOBS, selection.namespace, labels, decode=JobView, index=index
        )
        listed = JOBS, selection.namespace, next(iter(selection.label_selectors), None)
        super().__init__(client, informer, keys, notification, listed)
        self._listed_jobs: dict[str, JobView] = {}
        """Jobs by uid that the informer did not have when the watch began. The informer has those that change."""

    async def sync(self) -> None:
        """Wait for the first list of the informer, and list the names once that the informer does not have.

        Raises:
            ClusterRefused: the server refuses to list the Jobs.
            InformerClosedError: the informer has ended.
        """
        await super().sync()
        if self._selection.names is None:
            return
        # The watch has subscribed to the names, so no sweep removes them from the informer from now on.
        missing = [subscription.key for subscription in self._subscriptions if not subscription.peek()]
        if not missing:
            return
        for selector in dataclasses.replace(self._selection, names=dict.fromkeys(missing, "")).label_selectors:
            await retry_until_answered(partial(self._list, selector), clock=self._client.clock)

    async def _list(self, selector: str) -> None:
        async for jobs in self._client.list_views(JobView, JOBS, self._selection.namespace, label_selector=selector):
            self._listed_jobs |= {job.metadata.uid: job for job in jobs}

    def find(self) -> dict[str, SelectedGang]:
        """Return the selected gangs; see `GangSelection.find`."""
        for subscription in self._subscriptions:
            for uid in subscription.take_deleted():
                self._listed_jobs.pop(uid, None)
        return self._selection.find(read_gangs((self._listed_jobs | self._seen).values()))

    @property
    def _seen(self) -> dict[str, JobView]:
        return {uid: job for subscription in self._subscriptions for uid, job in subscription.peek().items()}


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
        super().__init__(client, informer, [ref.name], Notification(), (JOB_SETS, ref.namespace, None))

    async def run(self) -> GangEvent:
        """Return the event at the end of the JobSet."""
        await self.sync()
        while True:
            seen = self._seen
            if seen is not None and not self.ref.uid:
                self.ref = replace(self.ref, uid=seen.metadata.uid)
            if _judge(seen, self.ref) is not None and (verdict := await self._confirm()) is not None:
                return await _event(self._client, self.ref, verdict)
            line = describe_progress(seen, str(self.ref))
            if line != self._line:
                self._line = line
                self._report(line)
            await self.changed()

    @property
    def _seen(self) -> JobSetView | None:
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


def _judge(seen: JobSetView | None, ref: GangRef) -> Verdict | None:
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

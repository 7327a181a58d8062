"""Release pods: remove the harvest finalizer from them, with one patch for each pod and many patches at once.

The pod's uid is a precondition of the patch, so a new pod of the same name is not touched. A pod that does not exist
counts as released. Nothing is recorded here: the harvest records outcomes before it calls `release`, and outcomes that
no ledger has are lost by the other functions, which choose the pods for `release`:

| function | pods |
|---|---|
| `release_gang` | those of a Job now: nobody follows its gang, which is over |
| `drain_pods` | those of a Job until it gets no other pod, because its gang was just deleted or stopped |
| `count_running` | those of an earlier attempt, for whose end the next one waits, if its Job is gone or going |
| `release_everywhere` | those of a namespace or of a cluster, to uninstall the provider |
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.cluster.clock import Backoff
from airflow_provider_gangjobs.cluster.errors import ClusterError, Conflict, Invalid, NotFound
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.state.pods import has_ended, is_held, is_tracked
from airflow_provider_gangjobs.jobs.requests import get_main_job, list_pods
from airflow_provider_gangjobs.kube.resources import PODS
from airflow_provider_gangjobs.kube.views import PodView
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang

log = logging.getLogger(__name__)

PATCHES_IN_FLIGHT_MAX: Final = 16
"""Of one gang. Each uses a TLS connection, whose handshake costs both sides as much as ten patches. With 16 in flight
a server that answers in 30 ms takes 500 patches a second."""
LOOP_IN_FLIGHT_MAX: Final = 64
"""Of all gangs of a loop, out of the hundred connections that a client may open. When a thousand gangs end at once, the
one request that each event waits for must not wait behind releases that nobody waits for."""
FAILURES_SHOWN_MAX: Final = 10
DRAIN_WITHIN_S: Final = 60.0
"""A kill has two minutes, and a Job controller with the default limits creates 20 pods a second."""
DRAIN_PAUSE_BASE_S: Final = 0.2
DRAIN_PAUSE_CAP_S: Final = 5.0
"""The list of a gang of 5,000 pods is 30 MB."""
QUIET_S: Final = 10.0
"""The Job controller creates 500 pods in one go, at intervals far below a second."""


async def release(
    client: Client,
    pods: Sequence[PodView],
    done: Callable[[PodView, ClusterError | None], None] = lambda pod, error: None,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
) -> ReleaseReport:
    """Release pods. A pod that fails does not stop the others.

    :param done: Called with each pod when it is released, or with the error.
    :param is_stopped: No further release is started when this returns true.
    """
    left: Iterator[PodView] = takewhile(lambda _: not is_stopped(), pods)
    of_all_gangs, report = loop_local(_in_flight), ReleaseReport(len(pods))

    async def release_next() -> None:
        for pod in left:
            error: ClusterError | None = None
            try:
                async with of_all_gangs:
                    await _release_pod(client, pod)
            except ClusterError as failed:
                error = failed
            report.count(pod, error)
            done(pod, error)

    async with asyncio.TaskGroup() as group:
        for number in range(min(PATCHES_IN_FLIGHT_MAX, len(pods))):
            group.create_task(release_next(), name=f"release-{number}")
    return report


def _in_flight() -> asyncio.Semaphore:
    return asyncio.Semaphore(LOOP_IN_FLIGHT_MAX)


async def _release_pod(client: Client, pod: PodView) -> None:
    """Remove the finalizer from this pod, unless the pod does not exist. Safe to repeat.

    Raises:
        ClusterError: The pod may still be held.
    """
    if not is_held(pod):
        return
    meta = pod.metadata
    try:
        await client.patch(
            PODS,
            meta.name,
            meta.namespace,
            release_patch(meta.uid),
            patch_type="strategic-merge",
            returns_metadata=True,
        )
    except NotFound:
        return
    except (Conflict, Invalid):
        # Either another pod has this name now, or the server stopped retrying because of concurrent writers.
        if await _is_there(client, pod):
            raise


def release_patch(uid: str) -> dict[str, Any]:
    """Return a strategic merge patch that removes only the harvest finalizer, from the pod of this uid."""
    return {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER_HARVEST]}}


async def _is_there(client: Client, pod: PodView) -> bool:
    try:
        there = await client.get(PODS, pod.metadata.name, pod.metadata.namespace)
    except NotFound:
        return False
    return bool(there["metadata"]["uid"] == pod.metadata.uid)


class ReleaseReport(Struct):
    """Result of a release."""

    pods: int = 0
    """Number of pods that were given or listed."""
    released: int = 0
    failed: int = 0
    """Number of pods that may still be held."""
    failures: list[str] = []
    """`namespace/name: error` of the first `FAILURES_SHOWN_MAX` failures."""

    def count(self, pod: PodView, error: ClusterError | None) -> None:
        """Count a pod that was released, or that could not be released because of an error."""
        if error is None:
            self.released += 1
            return
        self.failed += 1
        if len(self.failures) < FAILURES_SHOWN_MAX:
            self.failures.append(f"{pod.metadata.namespace}/{pod.metadata.name}: {error}")


async def release_gang(client: Client, ref: GangRef) -> tuple[list[PodView], ReleaseReport]:
    """Release the pods of a Job that exist now, also those that run. Return the pods as they were, and the result.

    Raises:
        ClusterError: The pods could not be listed.
    """
    pods = await list_pods(client, ref)
    return pods, await release(client, [pod for pod in pods if is_held(pod)])


async def release_everywhere(client: Client, *, namespace: str | None = None, gang: str | None = None) -> ReleaseReport:
    """Release the pods of a namespace, or of the whole cluster. Running pods are released too.

    The function is safe to repeat, to run at any time, and to run several times at once. If a pod cannot be released,
    the function continues with the other pods.

    :param namespace: Release pods of this namespace only; `None` for all namespaces.
    :param gang: Release pods of the gang with this Job name only. It needs `namespace`.

    Raises:
        ClusterError: The pods could not be listed.
        ValueError: `gang` is given without `namespace`.
    """
    if gang is not None and namespace is None:
        raise ValueError(f"gang {gang!r}: a namespace is needed")
    total = ReleaseReport()
    # In a namespace or cluster, pods are selected by the finalizer, because users may have removed labels.
    pages = client.list_views(PodView, PODS, namespace, label_selector=None if gang is None else gang_selector(gang))
    async with aclosing(pages):
        async for page in pages:
            total.pods += len(page)
            await release(client, [pod for pod in page if is_held(pod)], total.count)
    return total


async def drain_pods(client: Client, ref: GangRef, ended: StoredGang | None) -> bool:
    """Release the pods of a gang that was deleted or stopped, until no pod is held and no other pod is to be expected.

    The Job controller works on one Job in one thread. When it removes its own finalizer from the pods of a deleted Job,
    it knows that the Job is deleted, so it creates no other pod. Without pods to tell this from, the function waits
    until no new pod has appeared for `QUIET_S`. The function is safe to repeat and to run several times at once. After
    an error of the API server, the function tries again.

    :param ended: The gang as it was before; `None` if its Job was gone. If the Job controller could not create pods
        then, each pod is released once.
    :return: False if pods may still be held after `DRAIN_WITHIN_S`. The Job of a gang that was deleted in the
        foreground then stays, and the next submission of its task, or `gangjobs release`, releases the pods.
    """
    may_get_pods = ended is not None and _may_get_pods(ended)
    roles = [role.name for role in ended.record.roles] if ended is not None else []
    clock = client.clock
    began = quiet_since = clock.monotonic()
    backoff = Backoff(clock, base_s=DRAIN_PAUSE_BASE_S, cap_s=DRAIN_PAUSE_CAP_S)
    # The roles, by None for a gang of one Job, whose deletion the Job controller has not noticed yet.
    unnoticed: set[str | None] = {*roles} or {None}
    while True:
        try:
            pods, report = await release_gang(client, ref)
        except ClusterError as error:
            log.info("Gang %s: its pods could not be listed to release them: %s", ref, error)
        else:
            tracked = {pod.metadata.labels.gang_role if roles else None for pod in pods if is_tracked(pod)}
            unnoticed -= {pod.metadata.labels.gang_role if roles else None for pod in pods} - tracked
            if not report.failed and not (may_get_pods and unnoticed):
                return True
            now = clock.monotonic()
            quiet_since = now if report.pods else quiet_since
            if not report.pods and now - quiet_since >= QUIET_S:
                return True
        pause_s = backoff.next()
        if clock.monotonic() + pause_s - began > DRAIN_WITHIN_S:
            log.warning("Gang %s: some of its pods may still be held by the finalizer %s", ref, FINALIZER_HARVEST)
            return False
        await clock.sleep(pause_s)


def _may_get_pods(gang: StoredGang) -> bool:
    """Return whether the Job controller may be about to create pods of a gang that was ended in this version.

    The Jobs of the other roles of a gang are started before the main Job.
    """
    return not gang.is_ended and (not gang.is_suspended or bool(gang.record.roles))


async def count_running(client: Client, ref: GangRef) -> int:
    """Return how many pods of a gang that is over have not ended.

    If the Job is gone or is being deleted, the held pods are released: nobody records their outcomes any more.

    Raises:
        ClusterError: The Job or the pods could not be read.
    """
    job = await get_main_job(client, ref)
    if job is None or job.is_being_deleted:
        pods, _ = await release_gang(client, ref)
    else:
        pods = await list_pods(client, ref)
    return sum(not has_ended(pod) for pod in pods)

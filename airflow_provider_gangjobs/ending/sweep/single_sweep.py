"""One sweep without Airflow, for the command line: what may be done without the states of the tasks.

Held pods of gangs that are over, and of Jobs that are gone, are released whatever Airflow says. A live gang that no
Lease names is ended only if the caller asks for it with an age: its task may still be deferred, for example while all
triggerers are down, and a worker that waits itself (`deferrable=False`) has no Lease.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.ending.sweep.actions import VANISHED, SweepActions, SweptGang
from airflow_provider_gangjobs.ending.sweep.leases import read_leases
from airflow_provider_gangjobs.ending.sweep.namespace_view import ListedView, held_by_gang
from airflow_provider_gangjobs.gang.state.gang_jobs import read_gangs
from airflow_provider_gangjobs.gang.state.ownership import SweepAction, SweepDecision, SweepFacts, TaskEnd, decide_sweep
from airflow_provider_gangjobs.gang.state.pods import deletion_requested_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from datetime import datetime, timedelta

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import PodView


@dataclass(frozen=True)
class _Planned:
    ref: GangRef
    decision: SweepDecision
    installation: str
    job: StoredGang | None = None
    facts: SweepFacts | None = None
    pods: Sequence[PodView] = ()
    """The held pods of a Job that is gone."""


async def sweep_once(
    client: Client,
    namespace: str | None,
    *,
    follow: Callable[[GangRef], Awaitable[object]],
    older_than: timedelta,
    end_unowned: timedelta | None = None,
    dry_run: bool = False,
) -> list[SweptGang]:
    """Sweep all installations of a namespace, or of the cluster, once. Safe to repeat and to run concurrently.

    :param follow: Follows a gang that is over, which records the outcomes of its pods and releases them.
    :param older_than: Pods are released if their gang has been over, or their Job gone, for this long.
    :param end_unowned: End live gangs that are older than this and that no Lease has named for this long. By default no
        live gang is ended.
    :param dry_run: Only return what would be done, and also the gangs that would be left, each with its reason.

    Raises:
        ClusterError: the gangs or the Leases could not be listed.
    """
    view = await ListedView.read(client, namespace)
    leases = await read_leases(client, namespace) if end_unowned is not None else []
    now = client.server_clock.now()

    def is_followed(ref: GangRef) -> bool:
        valid = (lease for lease in leases if end_unowned and lease.is_valid(now, within=end_unowned))
        return any(lease.names(ref) for lease in valid)

    planned = list(_plan(view, now, is_followed, older_than=older_than, end_unowned=end_unowned))
    if dry_run:
        return [SweptGang(one.ref, one.decision, one.installation) for one in planned]

    actions = SweepActions(client, follow=follow, is_followed=lambda ref: False, clock=client.clock)
    done = []
    for one in planned:
        if one.job is None or one.facts is None:
            done.append(await actions.release_vanished(one.ref, one.pods))
        elif one.decision.action is not SweepAction.LEAVE:
            done.append(await actions.act(one.job, one.facts, one.decision))
    return [swept for swept in done if swept is not None]


def _plan(
    view: ListedView,
    now: datetime,
    is_followed: Callable[[GangRef], bool],
    *,
    older_than: timedelta,
    end_unowned: timedelta | None,
) -> Iterator[_Planned]:
    for gang in view.gangs():
        held = held_by_gang(view.pods(gang))
        for job in read_gangs(view.jobs(gang)):
            facts = SweepFacts(
                installation=job.installation,
                unowned_for=None if is_followed(job.ref) else now - (job.ended_at or job.created_at or now),
                held_pods=len(held.pop(job.ref, ())),
                task=TaskEnd.UNKNOWN if end_unowned is None else TaskEnd.ASSUMED,
                grace=older_than if job.is_over or end_unowned is None else end_unowned,
            )
            yield _Planned(job.ref, decide_sweep(job, facts), job.installation, job, facts)
        for ref, pods in held.items():
            gone_for = now - max(_last_sign(pod, now) for pod in pods)
            if gone_for >= older_than:
                yield _Planned(ref, VANISHED, pods[0].metadata.labels.installation or "", pods=pods)


def _last_sign(pod: PodView, now: datetime) -> datetime:
    """Return when the pod was deleted, as happens soon after its Job, or else when it was created."""
    return deletion_requested_at(pod.metadata) or pod.metadata.creation_timestamp or now


__all__ = ["sweep_once"]

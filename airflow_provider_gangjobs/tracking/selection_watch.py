"""Selection watch: the selected gangs of a namespace, as the shared informers of Jobs show them.

Gangs that are selected by name use the informer that all followers of the namespace share. Gangs that are selected by
task or trigger id share one further informer, and each label selector has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.informer import Informer, Notification, informers
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.labels import LABEL_GANG
from airflow_provider_gangjobs.gang.state.roles import read_gangs
from airflow_provider_gangjobs.kube.views import JobView
from airflow_provider_gangjobs.tracking.gang_watch import gang_of
from airflow_provider_gangjobs.tracking.informer_watch import InformerWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.resources import Resource
    from airflow_provider_gangjobs.gang.awaited_gangs import GangSelection, SelectedGang


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
        super().__init__(client, informer, keys, notification)

    def find(self) -> dict[str, SelectedGang]:
        """Return the selected gangs; see `GangSelection.find`."""
        views = (view for subscription in self._subscriptions for view in subscription.peek().values())
        return self._selection.find(read_gangs(views))

    @property
    def _listed(self) -> tuple[Resource, str, str | None]:
        return JOBS, self._selection.namespace, next(iter(self._selection.label_selectors), None)


__all__ = ["SelectionWatch"]

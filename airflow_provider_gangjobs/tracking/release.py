"""Release: frees every pod that our finalizer holds, with nothing else of ours alive.

For uninstalling, and for pods whose gang nobody follows any more. It lists and patches pods and
needs no other permission. It records nothing: outcomes that are not in a ledger yet are given up.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.gang.selectors import gang_selector
from airflow_provider_gangjobs.gang.state.pods import is_held, owner_uid
from airflow_provider_gangjobs.kube.views import PodView
from airflow_provider_gangjobs.tracking.harvest.finalizer import release_all

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.errors import ClusterError

FAILURES_SHOWN_MAX: Final = 10


@dataclass
class ReleaseReport:
    """What a release came to."""

    pods: int = 0
    """Pods looked at."""
    released: int = 0
    failed: int = 0
    """Pods that may still be held."""
    failures: list[str] = field(default_factory=list)
    """`namespace/name: error` of the first few of them."""


async def release_pods(
    client: Client, *, namespace: str | None = None, gang: str | None = None, job_uid: str | None = None
) -> ReleaseReport:
    """Free the pods of one gang, of a namespace, or (with neither) of the cluster; running ones too.

    With `job_uid`, only those of exactly this Job: the name of one that was deleted may be another's by now.
    Safe to repeat and to run at any time, by several at once. One pod that fails does not stop the others.

    Raises:
        ClusterError: the pods could not be listed.
        ValueError: a gang without its namespace.
    """
    if gang is not None and namespace is None:
        raise ValueError(f"gang {gang!r}: a namespace is needed")
    total = ReleaseReport()
    # In a namespace or cluster the finalizer is the truth; labels may have been edited away.
    pages = client.list_views(PodView, PODS, namespace, label_selector=gang_selector(gang) if gang else None)
    async with aclosing(pages):
        async for page in pages:
            total.pods += len(page)
            ours = [pod for pod in page if is_held(pod) and job_uid in (None, owner_uid(pod))]
            await _release_page(client, ours, total)
    return total


async def _release_page(client: Client, pods: list[PodView], total: ReleaseReport) -> None:
    def tell(pod: PodView, error: ClusterError | None) -> None:
        if error is None:
            total.released += 1
            return
        total.failed += 1
        if len(total.failures) < FAILURES_SHOWN_MAX:
            total.failures.append(f"{pod.metadata.namespace}/{pod.metadata.name}: {error}")

    await release_all(client, pods, tell)

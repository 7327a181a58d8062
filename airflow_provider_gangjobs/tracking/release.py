"""Release: removes the harvest finalizer from pods, without recording their outcomes.

The function is for uninstalling the provider, and for pods of a gang that no triggerer follows. It needs only the
permissions to list and patch pods. Outcomes that are not in a ledger are lost.
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
    """Result of a release."""

    pods: int = 0
    """Number of pods that were listed."""
    released: int = 0
    failed: int = 0
    """Number of pods that may still be held."""
    failures: list[str] = field(default_factory=list)
    """`namespace/name: error` of the first `FAILURES_SHOWN_MAX` failures."""


async def release_pods(
    client: Client, *, namespace: str | None = None, gang: str | None = None, job_uid: str | None = None
) -> ReleaseReport:
    """Release the pods of one gang, of a namespace, or of the whole cluster. Running pods are released too.

    The function is safe to repeat, to run at any time, and to run several times at once. If a pod cannot be released,
    the function continues with the other pods.

    :param namespace: Release pods of this namespace only; `None` for all namespaces.
    :param gang: Release pods of the gang with this Job name only. It needs `namespace`.
    :param job_uid: Release pods of the Job with this UID only. Another Job may have the name of a deleted Job.

    Raises:
        ClusterError: The pods could not be listed.
        ValueError: `gang` is given without `namespace`.
    """
    if gang is not None and namespace is None:
        raise ValueError(f"gang {gang!r}: a namespace is needed")
    total = ReleaseReport()
    # In a namespace or cluster, pods are selected by the finalizer, because users may have removed labels.
    pages = client.list_views(PodView, PODS, namespace, label_selector=gang_selector(gang) if gang else None)
    async with aclosing(pages):
        async for page in pages:
            total.pods += len(page)
            held = [pod for pod in page if is_held(pod) and job_uid in (None, owner_uid(pod))]
            await _release_page(client, held, total)
    return total


async def _release_page(client: Client, pods: list[PodView], total: ReleaseReport) -> None:
    def count(pod: PodView, error: ClusterError | None) -> None:
        if error is None:
            total.released += 1
            return
        total.failed += 1
        if len(total.failures) < FAILURES_SHOWN_MAX:
            total.failures.append(f"{pod.metadata.namespace}/{pod.metadata.name}: {error}")

    await release_all(client, pods, count)

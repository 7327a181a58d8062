"""Access: which requests the API server would allow, asked by a review, which denies nothing and leaves no denial in an
audit log. Every authenticated user may ask, by the built-in role system:basic-user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.resources import Resource

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.client import Client

REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)


async def is_allowed(client: Client, verb: str, resource: Resource, namespace: str | None = None) -> bool | None:
    """Return whether the client may send a request, or `None` if this is unknown.

    A server without reviews, such as the sandbox, has no rights and allows everything.

    :param namespace: The namespace of the objects. By default all namespaces.
    """
    wanted = {"verb": verb, "group": resource.group, "resource": resource.plural}
    spec = {"resourceAttributes": wanted if namespace is None else {**wanted, "namespace": namespace}}
    try:
        review = await client.create(REVIEWS, {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "spec": spec})
    except NotFound:
        return True
    except ClusterError:
        return None
    return bool((review.get("status") or {}).get("allowed"))


__all__ = ["is_allowed"]

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
    try:
        return await review(client, verb, resource.group, resource.plural, namespace)
    except NotFound:
        return True
    except ClusterError:
        return None


async def review(client: Client, verb: str, group: str, plural: str, namespace: str | None) -> bool:
    """Return whether the API server says that it would allow a request.

    :param plural: The resource, with its subresource if there is one: `pods/log`.
    :param namespace: The namespace of the objects. `None` for all namespaces.

    Raises:
        ClusterError: the review was refused or not answered. `NotFound` if the server has no reviews.
    """
    resource, _, subresource = plural.partition("/")
    asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    spec = {"resourceAttributes": {**asked, "namespace": namespace or ""}}
    stored = await client.create(REVIEWS, {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "spec": spec})
    return bool((stored.get("status") or {}).get("allowed"))


__all__ = ["is_allowed", "review"]

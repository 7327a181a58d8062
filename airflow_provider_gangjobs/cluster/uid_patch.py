"""A patch of exactly one object: the object of a name that has the expected uid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_gangjobs.cluster.errors import Conflict, Invalid, NotFound, is_of_another_uid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.resources import Resource


class PatchingClient(Protocol):
    """The method of `cluster.client.Client` that sends a merge patch."""

    async def patch(self, resource: Resource, name: str, namespace: str | None, body: Mapping[str, Any]) -> Any:
        """Merge-patch an object."""


async def patch_uid(
    client: PatchingClient, resource: Resource, name: str, namespace: str | None, uid: str, body: Mapping[str, Any]
) -> bool:
    """Merge-patch the object of exactly this uid with one request.

    :param body: The merge patch, without a uid.
    :return: False if the object is gone, or if another object has its name.

    Raises:
        Conflict: Others changed the object at the same time.
        ClusterError: The request failed. The patch may have been applied.
    """
    metadata = {**body.get("metadata", {}), "uid": uid}
    try:
        await client.patch(resource, name, namespace, {**body, "metadata": metadata})
    except NotFound:
        return False
    except (Conflict, Invalid) as error:
        if is_of_another_uid(error):
            return False
        raise
    return True

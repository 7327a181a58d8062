"""What the rest of the provider asks of a client, so that another client can take its place, and conditional writes.

The functions write with preconditions: they apply only to the object that the caller has read, or only to the version
of it. Each sends one request and does not retry it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_gangjobs.cluster.errors import Conflict, Invalid, NotFound, is_of_another_uid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from airflow_provider_gangjobs.cluster.client import PatchType, PropagationPolicy
    from airflow_provider_gangjobs.cluster.clock import Clock
    from airflow_provider_gangjobs.cluster.resources import Resource
    from airflow_provider_gangjobs.kube.views import Meta, Object

    Objects = list[Object]


class ClientProtocol(Protocol):
    """Some methods of `cluster.client.Client`. Each of them raises `ClusterError` if the request fails."""

    clock: Clock

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Return one object.

        Raises:
            NotFound: the object does not exist.
        """

    async def get_raw(self, path: str, *, retry_for_s: float | None = None) -> Object:
        """Return the JSON document at `path`, such as a discovery document."""

    async def list(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str | None = None
    ) -> Objects:
        """Return all objects that match the label selector."""

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        limit: int,
        continue_token: str | None = None,
    ) -> bytes:
        """Return one page of a list as JSON text."""

    async def create(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """Create an object. Returns the object as the server stored it, or would store it."""

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: Mapping[str, Any] | Objects,
        *,
        patch_type: PatchType = ...,
    ) -> Object:
        """Patch an object. Returns the object as the server stored it. By default the patch is a merge patch."""

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation_policy: PropagationPolicy = ...,
    ) -> None:
        """Delete an object. By default what the object owns is deleted in the background.

        :param uid: Delete the object only if it has this uid.
        :param resource_version: Delete the object only if it is in this version.
        """


async def patch_uid(
    client: ClientProtocol, resource: Resource, name: str, namespace: str | None, uid: str, body: Mapping[str, Any]
) -> bool:
    """Merge-patch the object of exactly this uid.

    :param body: The merge patch, without a uid.
    :return: False if the object is gone, or if another object has its name.

    Raises:
        Conflict: Others changed the object at the same time.
        ClusterError: The request failed. The patch may have been applied.
    """
    return await _is_applied(client.patch(resource, name, namespace, _with_metadata(body, uid=uid)))


async def patch_version(
    client: ClientProtocol, resource: Resource, metadata: Mapping[str, Any], body: Mapping[str, Any]
) -> Any:
    """Merge-patch an object in the version that was read. Return the object as the server stored it.

    :param metadata: The metadata that was read.
    :param body: The merge patch, without a uid and without a resourceVersion.

    Raises:
        Conflict: The object has changed.
        NotFound: The object does not exist.
        ClusterError: The request failed. The patch may have been applied.
    """
    seen = _with_metadata(body, uid=metadata["uid"], resourceVersion=metadata["resourceVersion"])
    return await client.patch(resource, metadata["name"], metadata["namespace"], seen)


async def patch_unchanged(
    client: ClientProtocol, resource: Resource, metadata: Mapping[str, Any], body: Mapping[str, Any]
) -> bool:
    """Merge-patch an object as `patch_version` does. Return false if the object has changed or is gone.

    Raises:
        ClusterError: The request failed. The patch may have been applied.
    """
    try:
        return await _is_applied(patch_version(client, resource, metadata, body))
    except Conflict:
        return False


async def delete_uid(client: ClientProtocol, resource: Resource, name: str, namespace: str | None, uid: str) -> bool:
    """Delete the object of exactly this uid, and in the background what it owns.

    :return: False if the object is gone, or if another object has its name.

    Raises:
        ClusterError: The request failed. The object may be deleted.
    """
    return await _is_applied(client.delete(resource, name, namespace, uid=uid))


def version_of(metadata: Meta) -> dict[str, str]:
    """Return the metadata that names an object in the version that was read, as `patch_version` needs them."""
    return {
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
    }


async def _is_applied(write: Awaitable[object]) -> bool:
    """Send a write, and return false if its object is gone or another object has the name."""
    try:
        await write
    except NotFound:
        return False
    except (Conflict, Invalid) as error:
        if is_of_another_uid(error):
            return False
        raise
    return True


def _with_metadata(body: Mapping[str, Any], **expected: str) -> dict[str, Any]:
    return {**body, "metadata": {**body.get("metadata", {}), **expected}}

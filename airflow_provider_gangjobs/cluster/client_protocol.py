"""The methods of the client that the creation and the end of a gang use, so that another client can take its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import PatchType, PropagationPolicy
    from airflow_provider_gangjobs.cluster.resources import Resource
    from airflow_provider_gangjobs.kube.views import Object

    Objects = list[Object]


class ClientProtocol(Protocol):
    """Some methods of `cluster.client.Client`. Each of them raises `ClusterError` if the request fails."""

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


__all__ = ["ClientProtocol"]

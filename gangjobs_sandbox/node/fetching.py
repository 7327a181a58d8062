"""Fetches from the API server what a pod needs before the pod can start: ConfigMaps, Secrets, and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.node.client import ApiClient, UnreachableError, core_path
from gangjobs_sandbox.node.sources import Reference, SourceMissingError, Sources
from gangjobs_sandbox.node.volumes import token_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["fetch_sources", "fetch_tokens"]

_PLURALS = {"configmap": "configmaps", "secret": "secrets"}
_NOT_FOUND = 404
_TOKEN_S = 3600


async def fetch_sources(client: ApiClient, namespace: str, references: Iterable[Reference]) -> Sources:
    """Fetch the referenced objects that exist.

    Raises:
        SourceMissingError: the server does not answer, or refuses for another reason than "not found".
    """
    found: dict[Reference, Mapping[str, Any]] = {}
    for kind, name in sorted(references):
        try:
            found[kind, name] = await client.get(core_path(_PLURALS[kind], name, namespace=namespace))
        except StatusError as error:
            if error.code != _NOT_FOUND:
                raise SourceMissingError(f"{kind} {namespace}/{name}: {error}") from error
        except UnreachableError as error:
            raise SourceMissingError(str(error)) from error
    return Sources(namespace, found)


async def fetch_tokens(client: ApiClient, pod: Mapping[str, Any]) -> dict[str, str]:
    """Request the service account tokens of the pod's volumes, by audience. The tokens are bound to the pod.

    Raises:
        SourceMissingError: the server issues no token.
    """
    metadata, account = pod["metadata"], pod["spec"].get("serviceAccountName") or "default"
    bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
    path = core_path("serviceaccounts", account, namespace=metadata["namespace"], subresource="token")
    tokens: dict[str, str] = {}
    for wanted in token_requests(pod["spec"]):
        audience = wanted.get("audience") or ""
        request = {"expirationSeconds": wanted.get("expirationSeconds", _TOKEN_S), "boundObjectRef": bound}
        request |= {"audiences": [audience]} if audience else {}
        body = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": request}
        try:
            tokens[audience] = (await client.create(path, body))["status"]["token"]
        except (StatusError, UnreachableError) as error:
            raise SourceMissingError(f"no token for service account {account}: {error}") from error
    return tokens

"""Provides volumes as folders below the folder of the pod, and fetches their content from the API server.

The content is written once, when the pod starts. A later change of a ConfigMap does not change the volume.
`SourceMissingError` is raised for a source that may still appear, and `UnsupportedVolumeError` for a volume that the
sandbox cannot provide. A pod whose emptyDir exceeds its size limit is evicted, with the rule and the message of
`emptyDirLimitEviction` (pkg/kubelet/eviction/eviction_manager.go).
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery import quantity
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.node.client import ApiClient, UnreachableError, core_path
from gangjobs_sandbox.node.downward_api import PodFacts, field_value, resource_value
from gangjobs_sandbox.node.sources import Kind, Reference, SourceMissingError, Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gangjobs_sandbox.node.pod_folder import PodFolder

__all__ = [
    "GRACE_EVICTED_S",
    "File",
    "UnsupportedVolumeError",
    "VolumeContext",
    "fetch_sources",
    "fetch_tokens",
    "place_volume",
    "token_requests",
    "wait_for_excess",
]


_DEFAULT_MODE = 0o644
_SUPPORTED = ("emptyDir", "configMap", "secret", "downwardAPI", "projected", "hostPath")


_PLURALS = {"configmap": "configmaps", "secret": "secrets"}
_NOT_FOUND = 404
_TOKEN_S = 3600
GRACE_EVICTED_S = 1.0
_BLOCK_BYTES = 512
"""The unit of `st_blocks`."""


class UnsupportedVolumeError(Exception):
    """The node cannot provide this volume. The message names the volume and the reason."""


@dataclass(frozen=True)
class File:
    """One file of a volume."""

    content: bytes
    mode: int = _DEFAULT_MODE


@dataclass(frozen=True)
class VolumeContext:
    """The inputs for the content of a pod's volumes. `tokens` are by audience."""

    facts: PodFacts
    sources: Sources
    tokens: Mapping[str, str]


Contents = dict[str, File]


def place_volume(volume: Mapping[str, Any], folder: str, context: VolumeContext) -> str:
    """Create the volume and return its path on the host."""
    if host_path := volume.get("hostPath"):
        return _host_path(host_path)
    contents = _contents(volume, context)
    os.makedirs(folder, exist_ok=True)
    for path, file in contents.items():
        _write(os.path.join(folder, path), file)
    return folder


def token_requests(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the service account tokens that the pod's volumes project."""
    sources = (part for volume in spec.get("volumes") or () for part in _parts(volume))
    return [part["serviceAccountToken"] for part in sources if part.get("serviceAccountToken")]


def _parts(volume: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (volume.get("projected") or {}).get("sources") or ()


def _contents(volume: Mapping[str, Any], context: VolumeContext) -> Contents:
    for kind, contents in _KINDS.items():
        if volume.get(kind) is not None:
            source = volume[kind]
            return contents(source, context, source.get("defaultMode", _DEFAULT_MODE))
    kind = next((key for key in volume if key != "name"), "unknown")
    known = ", ".join(_SUPPORTED)
    raise UnsupportedVolumeError(
        f'volume "{volume["name"]}" is of type {kind}, which this node cannot provide; use one of {known}'
    )


def _empty_dir(source: Mapping[str, Any], context: VolumeContext, mode: int) -> Contents:
    return {}


def _config_map(source: Mapping[str, Any], context: VolumeContext, mode: int) -> Contents:
    return _keyed(source, "configmap", source.get("name", ""), context, mode)


def _secret(source: Mapping[str, Any], context: VolumeContext, mode: int) -> Contents:
    # A projected Secret has the field `name`, and a Secret volume has the field `secretName`.
    return _keyed(source, "secret", source.get("secretName") or source.get("name", ""), context, mode)


def _keyed(source: Mapping[str, Any], kind: Kind, name: str, context: VolumeContext, mode: int) -> Contents:
    reference: Reference = (kind, name)
    optional = bool(source.get("optional"))
    data = context.sources.data(reference, optional=optional)
    if not source.get("items"):
        return {key: File(value, mode) for key, value in data.items()}
    contents: Contents = {}
    for item in source["items"]:
        if item["key"] in data:
            contents[item["path"]] = File(data[item["key"]], item.get("mode", mode))
        elif not optional:
            raise SourceMissingError(f"references non-existent {kind.replace('map', ' map')} key: {item['key']}")
    return contents


def _downward_api(source: Mapping[str, Any], context: VolumeContext, mode: int) -> Contents:
    contents: Contents = {}
    for item in source.get("items") or ():
        try:
            if reference := item.get("fieldRef"):
                text = field_value(context.facts, reference["fieldPath"])
            else:
                text = resource_value(context.facts, item["resourceFieldRef"], {})
        except ValueError as error:
            raise SourceMissingError(str(error)) from error
        contents[item["path"]] = File(text.encode(), item.get("mode", mode))
    return contents


def _projected(source: Mapping[str, Any], context: VolumeContext, mode: int) -> Contents:
    contents: Contents = {}
    for part in source.get("sources") or ():
        if token := part.get("serviceAccountToken"):
            text = context.tokens.get(token.get("audience") or "")
            if text is None:
                raise SourceMissingError("the API server gave no service account token")
            contents[token["path"]] = File(text.encode(), mode)
            continue
        kind = next((name for name in ("configMap", "secret", "downwardAPI") if part.get(name)), None)
        if kind is None:
            raise UnsupportedVolumeError(f"projected volume source {', '.join(part)} cannot be provided by this node")
        contents.update(_KINDS[kind](part[kind], context, mode))
    return contents


_KINDS: dict[str, Callable[[Mapping[str, Any], VolumeContext, int], Contents]] = {
    "emptyDir": _empty_dir,
    "configMap": _config_map,
    "secret": _secret,
    "downwardAPI": _downward_api,
    "projected": _projected,
}


def _host_path(source: Mapping[str, Any]) -> str:
    path, kind = str(source["path"]), source.get("type") or ""
    if kind == "DirectoryOrCreate":
        os.makedirs(path, exist_ok=True)
    elif kind == "FileOrCreate" and not os.path.exists(path):
        open(path, "ab").close()
    wanted: dict[str, Callable[[str], bool]] = {
        "Directory": os.path.isdir,
        "DirectoryOrCreate": os.path.isdir,
        "File": os.path.isfile,
        "FileOrCreate": os.path.isfile,
    }
    if not wanted.get(kind, os.path.exists)(path):
        noun = "a directory" if kind.startswith("Directory") else "a file" if kind.startswith("File") else "there"
        raise SourceMissingError(f"hostPath type check failed: {path} is not {noun}")
    return path


def _write(path: str, file: File) -> None:
    """Replace the file atomically, so that a retry after a crash finds no partial file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = f"{path}.part"
    with open(partial, "wb") as target:
        target.write(file.content)
        os.fchmod(target.fileno(), file.mode)
    os.replace(partial, path)


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


async def wait_for_excess(spec: Mapping[str, Any], folder: PodFolder, *, interval_s: float) -> str:
    """Wait until a volume of the pod exceeds its limit. Returns the message of the eviction."""
    limits = _limits(spec)
    while limits:
        await asyncio.sleep(interval_s)
        for name, limit in limits.items():
            if await asyncio.to_thread(_used_bytes, folder.volume(name)) > quantity.parse(limit):
                return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    return await asyncio.Future()


def _limits(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the limit of each volume that has one. The kernel enforces the limits of volumes in memory."""
    sources = {volume["name"]: volume.get("emptyDir") or {} for volume in spec.get("volumes") or ()}
    return {
        name: str(source["sizeLimit"])
        for name, source in sources.items()
        if source.get("sizeLimit") and source.get("medium") != "Memory" and quantity.parse(source["sizeLimit"]) > 0
    }


def _used_bytes(path: str) -> int:
    """Return the disk space that a folder takes. Files may disappear meanwhile."""
    used = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                used += os.lstat(os.path.join(folder, name)).st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                continue
    return used

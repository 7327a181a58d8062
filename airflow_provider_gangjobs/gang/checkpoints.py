"""Where the ranks of a gang keep their checkpoints: the forms of the parameter `checkpoints`, and what the pods get.

Each task of a run has a folder below the place (`TaskKey.folder`), which all of its attempts share. A claim or a volume
is mounted with the sub-path of the place, and the first program of a rank makes the folder. The kubelet would make it
for root.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import Object

VOLUME: Final = "gang-checkpoints"
MOUNT_PATH: Final = "/gang/checkpoints"
ENV_DIR: Final = "GANG_CHECKPOINT_DIR"
ENV_URL: Final = "GANG_CHECKPOINT_URL"
ENV_KEEP: Final = "GANG_KEEP_CHECKPOINTS"
"""`0` if the supervisor of rank 0 removes the folder when all ranks have succeeded."""
CHECKPOINT_ENV: Final = frozenset({ENV_DIR, ENV_URL, ENV_KEEP})
REMEDY: Final = (
    'Give "pvc://CLAIM/PATH", "volume://NAME/PATH", an absolute path on a volume of the pods, or the URL of an object'
    " store"
)
_CLAIM: Final = "pvc"
_VOLUME: Final = "volume"
_LOCAL: Final = ("file", "local")


class CheckpointPlace(Struct, frozen=True):
    """The place that `checkpoints` names. One of the fields `claim`, `volume`, `folder` and `url` has a value."""

    claim: str = ""
    """Name of a PersistentVolumeClaim."""
    volume: str = ""
    """Name of a volume of the pods, which is not mounted yet."""
    path: str = ""
    """The sub-path of the claim or the volume; empty for its root."""
    folder: str = ""
    """A path on a volume that the pods mount."""
    url: str = ""
    """A folder of an object store."""


def to_text(given: Any) -> Any:
    """Return a mapping with `claim` or `volume`, and `path`, as text, and any other value unchanged."""
    if isinstance(given, Mapping):
        for key, protocol in (("claim", _CLAIM), ("volume", _VOLUME)):
            if set(given) in ({key}, {key, "path"}) and all(isinstance(value, str) for value in given.values()):
                return f"{protocol}://{given[key]}/{given.get('path', '')}".rstrip("/")
    return given


def place_of(text: Any) -> CheckpointPlace:
    """Return the place that a text names.

    Raises:
        ValueError: the text names no place. The message says what is wrong.
    """
    if not isinstance(text, str) or not text:
        raise ValueError(f"is {text!r:.80}, which names no place")
    protocol, mark, rest = text.partition("://")
    if not mark or protocol in _LOCAL:
        folder = rest if mark else text
        if not os.path.isabs(folder) or ".." in PurePosixPath(folder).parts:
            raise ValueError(f"is {text!r:.80}, a relative path")
        if not folder.strip("/"):
            raise ValueError(f"is {text!r:.80}, which names no place")
        return CheckpointPlace(folder=folder.rstrip("/"))
    name, _, path = rest.strip("/").partition("/")
    if not name:
        raise ValueError(f"is {text!r:.80}, which names no place")
    if protocol not in (_CLAIM, _VOLUME):
        return CheckpointPlace(url=text.rstrip("/"))
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"is {text!r:.80}, whose path leads out of the volume")
    return CheckpointPlace(claim=name, path=path) if protocol == _CLAIM else CheckpointPlace(volume=name, path=path)


def is_object_store(given: Any) -> bool:
    """Return whether the parameter names an object store, which a worker can check before the gang is submitted."""
    try:
        return bool(place_of(to_text(given)).url)
    except ValueError:
        return False


def with_checkpoints(pod: Object, place: CheckpointPlace, folder: str, *, keep: bool) -> Object:
    """Return the spec of a pod whose main container, the first one, knows its folder for checkpoints.

    :param folder: The path of the folder below the place.
    :param keep: Whether the folder stays after success.
    """
    main, *others = pod["containers"]
    main, volumes = {**main}, [*pod.get("volumes", [])]
    root = place.url or place.folder or MOUNT_PATH
    variables = {ENV_URL if place.url else ENV_DIR: f"{root}/{folder}"}
    if not keep:
        variables[ENV_KEEP] = "0"
    if place.claim:
        volumes.append({"name": VOLUME, "persistentVolumeClaim": {"claimName": place.claim}})
    if root == MOUNT_PATH:
        mount = {"name": place.volume or VOLUME, "mountPath": MOUNT_PATH}
        mounts = [*main.get("volumeMounts", []), mount | ({"subPath": place.path} if place.path else {})]
        main["volumeMounts"] = mounts
    main["env"] = [*({"name": name, "value": value} for name, value in variables.items()), *main["env"]]
    return {**pod, **({"volumes": volumes} if volumes else {}), "containers": [main, *others]}

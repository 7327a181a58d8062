"""Where the ranks of a gang keep their checkpoints: the forms of the parameter `checkpoints`, and what the pods get.

Each task of a run has a folder below the place (`folder_of`), which all of its attempts share. A claim or a volume is
mounted with the sub-path of the place, and the first program of a rank makes the folder. The kubelet would make it for
root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.kube.views import Object

VOLUME: Final = "gang-checkpoints"
MOUNT_PATH: Final = "/gang/checkpoints"
ENV_DIR: Final = "GANG_CHECKPOINT_DIR"
ENV_URL: Final = "GANG_CHECKPOINT_URL"
CHECKPOINT_ENV: Final = frozenset({ENV_DIR, ENV_URL})
REMEDY: Final = (
    'Give "pvc://CLAIM/PATH", "volume://NAME/PATH", an absolute path on a volume of the pods, or the URL of an object'
    " store"
)
_CLAIM: Final = "pvc"
_VOLUME: Final = "volume"
_LOCAL: Final = ("file", "local")
NAME_BYTES_MAX: Final = 255
"""Longest name of a folder in most file systems."""
PLACE_CHARACTERS_MAX: Final = 512
SHOWN_BYTES_MAX: Final = 64
"""How much of each id is in the path of a folder. A key of S3 has at most 1,024 bytes, with the place and the file."""


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
    if (longest := max(len(name.encode()) for name in text.split("/"))) > NAME_BYTES_MAX:
        raise ValueError(f"is {text!r:.80}, with a name of {longest} bytes, and a name has at most {NAME_BYTES_MAX}")
    if len(text) > PLACE_CHARACTERS_MAX:
        raise ValueError(f"is {text!r:.80}, of {len(text)} characters, and at most {PLACE_CHARACTERS_MAX} are possible")
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


def folder_of(names: Sequence[str], digest: str) -> str:
    """Return the path of a folder below the place: `<dag id>/<run id>/<task id>/installation-<id>-<digest>`.

    The digest alone decides whose folder it is, so ids may be cut. No folder is in the folder of another key.

    :param names: The `path` of a key.
    """
    shown = [name.encode()[:SHOWN_BYTES_MAX].decode(errors="ignore") for name in names]
    return f"{'/'.join(shown)}-{digest}"


def digest_in(job: Object) -> str:
    """Return the digest in the folder that a Job gives its ranks; empty if it gives none."""
    env = job["spec"]["template"]["spec"]["containers"][0].get("env") or ()
    folders = (item.get("value") or "" for item in env if item["name"] in CHECKPOINT_ENV)
    return next((found[1] for found in map(_DIGEST.search, folders) if found), "")


_DIGEST: Final = re.compile(r"-([a-z2-7]+)\Z")


def is_object_store(given: Any) -> bool:
    """Return whether the parameter names an object store, which a worker can check before the gang is submitted."""
    try:
        return bool(place_of(to_text(given)).url)
    except ValueError:
        return False


def with_checkpoints(pod: Object, place: CheckpointPlace, folder: str) -> Object:
    """Return the spec of a pod whose main container, the first one, knows its folder for checkpoints.

    Both variables are set, because `envFrom` could give the other one a value: the folder may be removed.

    :param folder: The path of the folder below the place.
    """
    main, *others = pod["containers"]
    main, volumes = {**main}, [*pod.get("volumes", [])]
    root = place.url or place.folder or MOUNT_PATH
    path = f"{root}/{folder}"
    variables = {ENV_DIR: "", ENV_URL: path} if place.url else {ENV_DIR: path, ENV_URL: ""}
    if place.claim:
        volumes.append({"name": VOLUME, "persistentVolumeClaim": {"claimName": place.claim}})
    if root == MOUNT_PATH:
        mount = {"name": place.volume or VOLUME, "mountPath": MOUNT_PATH}
        mounts = [*main.get("volumeMounts", []), mount | ({"subPath": place.path} if place.path else {})]
        main["volumeMounts"] = mounts
    main["env"] = [*({"name": name, "value": value} for name, value in variables.items()), *main["env"]]
    return {**pod, **({"volumes": volumes} if volumes else {}), "containers": [main, *others]}

"""Files of ranks: files of one submission, and uploads that many submissions share.

Both are stored in immutable ConfigMaps, which the kubelet does not watch, and are mounted read-only in every container.
The Job owns the files of its submission. The name of an upload is the digest of its content, and it stays until it is
deleted.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.identity import DIGEST_LENGTH
from airflow_provider_gangjobs.kube.well_known import ENV_FILES, FILES_PATH, LABEL_GANG, LABEL_PURPOSE, ObjectPurpose

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILES_VOLUME: Final = "gang-files"
FILES_MODE: Final = 0o555
"""Files are readable and executable."""
FILES_BYTES_MAX: Final = 900 * 1024
"""A ConfigMap holds 1 MiB, which includes names and metadata."""
UPLOADS_MAX: Final = 16
"""Uploads of one gang. Each upload costs one request before the submission, and every node reads every upload."""
FILES_ENV: Final = [{"name": ENV_FILES, "value": FILES_PATH}]
_CONTENT_ID: Final = re.compile(rf"gang-upload-[a-z2-7]{{{DIGEST_LENGTH}}}")


def content_id_of(files: Mapping[str, str | bytes]) -> str:
    """Return the name of the ConfigMap that holds exactly these files. Texts are hashed as UTF-8."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        for part in (name.encode(), content.encode() if isinstance(content, str) else content):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
    return "gang-upload-" + base64.b32encode(digest.digest()).decode().lower()[:DIGEST_LENGTH]


def is_content_id(text: str) -> bool:
    return _CONTENT_ID.fullmatch(text) is not None


def config_map_name(job: str) -> str:
    return f"{job}-files"


def config_map_of(
    files: Mapping[str, str | bytes], *, job: str, namespace: str, owner: dict[str, Any]
) -> dict[str, Any]:
    """Render the ConfigMap of a submission's files, owned by the Job."""
    labels = {LABEL_GANG: job, LABEL_PURPOSE: ObjectPurpose.FILES.value}
    metadata = {"name": config_map_name(job), "namespace": namespace, "labels": labels, "ownerReferences": [owner]}
    return _config_map(metadata, files)


def upload_of(files: Mapping[str, str | bytes], *, namespace: str) -> dict[str, Any]:
    """Render the ConfigMap of an upload, which has no owner."""
    labels = {LABEL_PURPOSE: ObjectPurpose.UPLOAD.value}
    return _config_map({"name": content_id_of(files), "namespace": namespace, "labels": labels}, files)


def files_in(config_map: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files in a ConfigMap: name -> content."""
    texts = {name: text.encode() for name, text in (config_map.get("data") or {}).items()}
    return texts | {name: base64.b64decode(text) for name, text in (config_map.get("binaryData") or {}).items()}


def _config_map(metadata: dict[str, Any], files: Mapping[str, str | bytes]) -> dict[str, Any]:
    texts = {name: content for name, content in files.items() if isinstance(content, str)}
    binary = {name: base64.b64encode(c).decode() for name, c in files.items() if isinstance(c, bytes)}
    contents = {"data": texts} if not binary else {"data": texts, "binaryData": binary}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, **contents}


def volume_of(uploads: Sequence[str], *, job: str, has_own: bool) -> dict[str, Any]:
    """Render the pods' volume. The submission's own files come last, so they win over uploads of the same name.

    :param has_own: Whether the submission has files of its own.
    """
    names = [*uploads, *([config_map_name(job)] if has_own else [])]
    if not uploads:
        return {"name": FILES_VOLUME, "configMap": {"name": names[0], "defaultMode": FILES_MODE}}
    sources = [{"configMap": {"name": name}} for name in names]
    return {"name": FILES_VOLUME, "projected": {"sources": sources, "defaultMode": FILES_MODE}}


def files_mount() -> dict[str, Any]:
    return {"name": FILES_VOLUME, "mountPath": FILES_PATH, "readOnly": True}

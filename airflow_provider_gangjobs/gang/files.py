"""Files that travel with a submission: one ConfigMap owned by the Job, mounted read-only in every container.

It goes with the Job, whoever deletes that. It is immutable, so the kubelet need not watch it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.labels import ENV_FILES, FILES_PATH, LABEL_GANG, LABEL_ROLE, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES_VOLUME: Final = "gang-files"
FILES_BYTES_MAX: Final = 900 * 1024
"""A ConfigMap holds 1 MiB, names and metadata included."""
FILES_ENV: Final = [{"name": ENV_FILES, "value": FILES_PATH}]


def config_map_name(job: str) -> str:
    """Name of the ConfigMap that holds a Job's files."""
    return f"{job}-files"


def config_map_of(files: Mapping[str, str], *, job: str, namespace: str, owner: dict[str, Any]) -> dict[str, Any]:
    """The ConfigMap, owned by the Job."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(job),
            "namespace": namespace,
            "labels": {LABEL_GANG: job, LABEL_ROLE: Role.FILES.value},
            "ownerReferences": [owner],
        },
        "immutable": True,
        "data": dict(files),
    }


def files_volume(job: str) -> dict[str, Any]:
    """The pods' volume. Files can be run as programs."""
    return {"name": FILES_VOLUME, "configMap": {"name": config_map_name(job), "defaultMode": 0o555}}


def files_mount() -> dict[str, Any]:
    """Where every container finds them."""
    return {"name": FILES_VOLUME, "mountPath": FILES_PATH, "readOnly": True}

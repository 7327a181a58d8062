"""A Job for dry runs. The server never stores it."""

from __future__ import annotations

from typing import Any, Final

PROBE: Final = "gangjobs-probe"
"""Name of the Job, and of the objects of its group."""
PROBE_SIZE: Final = 2
"""Number of its ranks."""


def probe_job(namespace: str) -> dict[str, Any]:
    """Return an Indexed Job whose pods can be a gang."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": PROBE}]}
    spec = {
        "suspend": True,
        "completionMode": "Indexed",
        "completions": PROBE_SIZE,
        "parallelism": PROBE_SIZE,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    metadata = {"name": PROBE, "namespace": namespace}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}

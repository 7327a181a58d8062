"""Replicated Jobs of the JobSets of tests."""

from __future__ import annotations

from typing import Any

ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"


def role(name: str, script: str, *, workers: int = 1, replicas: int = 1) -> dict[str, Any]:
    """A replicated Job whose pods run a shell script, which finds the number of restarts in `$ATTEMPT`."""
    field = {"fieldRef": {"fieldPath": f"metadata.labels['{ATTEMPT_LABEL}']"}}
    container = {
        "name": "main",
        "image": "i",
        "command": ["sh", "-c", script],
        "env": [{"name": "ATTEMPT", "valueFrom": field}],
        "resources": {"requests": {"cpu": "100m"}},
    }
    spec = {
        "parallelism": workers,
        "completions": workers,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}

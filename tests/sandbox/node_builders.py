"""Builders of pods and their parts, with defaults."""

from __future__ import annotations

import itertools
from typing import Any

from gangjobs_sandbox.node.downward_api import PodFacts

_numbers = itertools.count(1)


def container(*command: str, name: str = "main", **fields: Any) -> dict[str, Any]:
    """Build a container that runs a command."""
    return {"name": name, "image": "example/image:1", "command": list(command), **fields}


def pod(*containers: dict[str, Any], name: str = "train-0", **fields: Any) -> dict[str, Any]:
    """Build a pod as the API server stores it. `fields` go to its metadata or its spec, by their name."""
    metadata_fields = {"labels", "annotations", "namespace", "uid", "finalizers"}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}-{next(_numbers)}"}
    metadata |= {key: value for key, value in fields.items() if key in metadata_fields}
    spec = {"containers": list(containers) or [container("true")], "restartPolicy": "Never"}
    spec |= {key: value for key, value in fields.items() if key not in metadata_fields}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def facts(of: dict[str, Any] | None = None, **allocatable: Any) -> PodFacts:
    return PodFacts(of or pod(), "127.64.0.9", "127.0.0.1", allocatable)

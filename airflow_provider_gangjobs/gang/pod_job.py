"""The Job of a gang whose user gives one Pod: the file of a Pod, or a model of the official Python client. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def job_of_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Job of one Indexed pod by a Pod or a pod template.

    The name and the namespace of a Pod are not those of its Job, so only its labels and annotations are used.
    """
    given_metadata = pod.get("metadata") or {}
    metadata = {name: given_metadata[name] for name in ("labels", "annotations") if given_metadata.get(name)}
    # The default of a pod is Always, which a Job refuses.
    template = {"metadata": metadata, "spec": {"restartPolicy": "Never", **(pod.get("spec") or {})}}
    job = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": job}


__all__ = ["job_of_pod"]

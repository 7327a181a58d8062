"""The defaults of a pod spec, for pods and for the template of a Job (`pkg/apis/core/v1/defaults.go`).

Fields whose feature gate is off are dropped without an error, as `DropDisabledFields` of the API server does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.releases import POD_LINK

if TYPE_CHECKING:
    from gangjobs_sandbox.releases import Release
    from gangjobs_sandbox.store import Object

__all__ = ["default_pod_spec", "default_requests", "drop_from_job", "drop_from_pod"]


_SPEC: dict[str, Any] = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "terminationGracePeriodSeconds": 30,
    "schedulerName": "default-scheduler",
}
_CONTAINER: dict[str, Any] = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_PROBE: dict[str, Any] = {
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_MODE = 0o644
_MODE_VOLUMES = ("configMap", "secret", "downwardAPI", "projected")


def default_pod_spec(spec: Object) -> None:
    """Set the defaults of a pod spec in place."""
    for field, value in _SPEC.items():
        spec.setdefault(field, value)
    spec.setdefault("securityContext", {})
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        _default_container(container)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def default_requests(spec: Object) -> None:
    """Set missing requests of a pod (not of a template) to the limits."""
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container["resources"]
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}


def _default_container(container: Object) -> None:
    for field, value in _CONTAINER.items():
        container.setdefault(field, value)
    container.setdefault("imagePullPolicy", _pull_policy(container.get("image") or ""))
    container.setdefault("resources", {})
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        if reference := (variable.get("valueFrom") or {}).get("fieldRef"):
            reference.setdefault("apiVersion", "v1")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            container[probe] = {**_PROBE, **(container[probe] or {})}


def _pull_policy(image: str) -> str:
    """Return Always for the tag `:latest` and for a missing tag, because such an image may have changed."""
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in {"", "latest"} else "IfNotPresent"


def _default_volume(volume: Object) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
    for kind in _MODE_VOLUMES:
        if isinstance(volume.get(kind), dict):
            volume[kind].setdefault("defaultMode", _MODE)


def drop_from_pod(spec: Object, release: Release) -> None:
    """Remove the group link from a pod spec, if the release does not have it."""
    if not release.has_pod_groups:
        spec.pop(POD_LINK, None)


def drop_from_job(spec: Object, release: Release) -> None:
    """Remove the group link from the pod template of a Job, if the release does not have it.

    If the gate `WorkloadWithJob` is off, also remove `scheduling`.
    """
    drop_from_pod(spec["template"]["spec"], release)
    if not release.job_scheduling:
        spec.pop("scheduling", None)

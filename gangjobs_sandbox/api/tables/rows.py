"""The columns and rows of each resource, as `kubectl get` prints them (`pkg/printers/internalversion`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.api.tables.pod_rows import UNKNOWN, between, pod_cells, since
from gangjobs_sandbox.clock import timestamp
from gangjobs_sandbox.resources import (
    CONFIGMAPS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PODGROUPS,
    PODS,
    PRIORITYCLASSES,
    SECRETS,
    SERVICES,
    Resource,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from gangjobs_sandbox.store import Object

__all__ = ["Layout", "layout_of"]

_NONE = "<none>"
_NODE_ROLE = "node-role.kubernetes.io/"


@dataclass(frozen=True)
class Layout:
    """The columns of a table (`!` marks the columns of `-o wide`), and the cells of an object."""

    columns: tuple[str, ...]
    cells: Callable[[Object, datetime], list[Any]]

    def definitions(self) -> list[dict[str, Any]]:
        """Return the `columnDefinitions` of the table."""
        found = []
        for column in self.columns:
            name = column.removeprefix("!")
            found.append(
                {
                    "name": name,
                    "type": "integer" if name == "Value" else "string",
                    "format": "name" if name == "Name" else "",
                    "description": "",
                    "priority": 1 if column.startswith("!") else 0,
                }
            )
        return found


def layout_of(resource: Resource) -> Layout:
    """Return the layout of the resource. The default layout has name and age."""
    return _LAYOUTS.get(resource, _PLAIN)


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _age(obj: Object, now: datetime) -> str:
    return since(obj["metadata"].get("creationTimestamp"), now)


def _conditions(obj: Object) -> dict[str, Mapping[str, Any]]:
    return {c["type"]: c for c in (obj.get("status") or {}).get("conditions") or ()}


def _plain(obj: Object, now: datetime) -> list[Any]:
    return [_name(obj), _age(obj, now)]


def _job(job: Object, now: datetime) -> list[Any]:
    spec, status = job.get("spec") or {}, job.get("status") or {}
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
    started = status.get("startTime")
    duration = between(started, status.get("completionTime") or timestamp(now)) if started else ""
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return [
        _name(job),
        _job_status(job),
        _completions(spec, status),
        duration,
        _age(job, now),
        ",".join(c.get("name", "") for c in containers),
        ",".join(c.get("image", "") for c in containers),
        _pairs(labels),
    ]


def _job_status(job: Object) -> str:
    conditions = {name for name, c in _conditions(job).items() if c.get("status") == "True"}
    for name in ("Complete", "Failed"):
        if name in conditions:
            return name
    if "deletionTimestamp" in job["metadata"]:
        return "Terminating"
    return next((n for n in ("Suspended", "FailureTarget", "SuccessCriteriaMet") if n in conditions), "Running")


def _completions(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    succeeded, parallelism = status.get("succeeded", 0), spec.get("parallelism", 0)
    if spec.get("completions") is not None:
        return f"{succeeded}/{spec['completions']}"
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or _NONE


def _node(node: Object, now: datetime) -> list[Any]:
    status = node.get("status") or {}
    ready = _conditions(node).get("Ready")
    states = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if (node.get("spec") or {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    labels = node["metadata"].get("labels") or {}
    roles = sorted(key.removeprefix(_NODE_ROLE) for key in labels if key.startswith(_NODE_ROLE))
    info = status.get("nodeInfo") or {}
    addresses = {a["type"]: a["address"] for a in status.get("addresses") or ()}
    return [
        _name(node),
        ",".join(states),
        ",".join(roles) or _NONE,
        _age(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", _NONE),
        addresses.get("ExternalIP", _NONE),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _service(service: Object, now: datetime) -> list[Any]:
    spec = service.get("spec") or {}
    ports = [f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in spec.get("ports") or ()]
    return [
        _name(service),
        spec.get("type", ""),
        spec.get("clusterIP") or _NONE,
        _NONE,
        ",".join(ports) or _NONE,
        _age(service, now),
        _pairs(spec.get("selector") or {}),
    ]


def _event(event: Object, now: datetime) -> list[Any]:
    involved, source = event.get("involvedObject") or {}, event.get("source") or {}
    series = event.get("series") or {}
    first = event.get("firstTimestamp") or event.get("eventTime")
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or first
    where = ", ".join(filter(None, (source.get("component") or event.get("reportingComponent"), source.get("host"))))
    return [
        since(last, now),
        event.get("type", ""),
        event.get("reason", ""),
        "/".join(filter(None, (str(involved.get("kind", "")).lower(), involved.get("name")))),
        involved.get("fieldPath", ""),
        where,
        str(event.get("message", "")).strip(),
        since(first, now),
        str(series.get("count") or event.get("count") or 1),
        _name(event),
    ]


def _namespace(namespace: Object, now: datetime) -> list[Any]:
    return [_name(namespace), (namespace.get("status") or {}).get("phase", ""), _age(namespace, now)]


def _data_count(obj: Object) -> str:
    return str(len(obj.get("data") or {}) + len(obj.get("binaryData") or {}))


def _secret(secret: Object, now: datetime) -> list[Any]:
    return [_name(secret), secret.get("type", ""), _data_count(secret), _age(secret, now)]


def _config_map(config_map: Object, now: datetime) -> list[Any]:
    return [_name(config_map), _data_count(config_map), _age(config_map, now)]


def _priority_class(obj: Object, now: datetime) -> list[Any]:
    policy = obj.get("preemptionPolicy", "")
    return [_name(obj), obj.get("value", 0), bool(obj.get("globalDefault")), _age(obj, now), policy]


def _lease(lease: Object, now: datetime) -> list[Any]:
    return [_name(lease), (lease.get("spec") or {}).get("holderIdentity", ""), _age(lease, now)]


def _pod_group(group: Object, now: datetime) -> list[Any]:
    spec, conditions = group.get("spec") or {}, _conditions(group)
    policy = "Gang" if (spec.get("schedulingPolicy") or {}).get("gang") is not None else "Basic"
    placed = conditions.get("PodGroupInitiallyScheduled") or conditions.get("PodGroupScheduled")
    status = "Pending"
    if placed is not None:
        status = "Scheduled" if placed.get("status") == "True" else "Unschedulable"
    if (disrupted := conditions.get("DisruptionTarget")) is not None:
        status = disrupted.get("reason", status)
    reference = spec.get("workloadRef") or (spec.get("podGroupTemplateRef") or {}).get("workload") or {}
    return [_name(group), policy, reference.get("workloadName") or _NONE, status, _age(group, now)]


_PLAIN = Layout(("Name", "Age"), _plain)
_LAYOUTS: Mapping[Resource, Layout] = {
    PODS: Layout(
        ("Name", "Ready", "Status", "Restarts", "Age", "!IP", "!Node", "!Nominated Node", "!Readiness Gates"), pod_cells
    ),
    JOBS: Layout(("Name", "Status", "Completions", "Duration", "Age", "!Containers", "!Images", "!Selector"), _job),
    NODES: Layout(
        (
            "Name",
            "Status",
            "Roles",
            "Age",
            "Version",
            "!Internal-IP",
            "!External-IP",
            "!OS-Image",
            "!Kernel-Version",
            "!Container-Runtime",
        ),
        _node,
    ),
    SERVICES: Layout(("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "!Selector"), _service),
    EVENTS: Layout(
        (
            "Last Seen",
            "Type",
            "Reason",
            "Object",
            "!Subobject",
            "!Source",
            "Message",
            "!First Seen",
            "!Count",
            "!Name",
        ),
        _event,
    ),
    NAMESPACES: Layout(("Name", "Status", "Age"), _namespace),
    SECRETS: Layout(("Name", "Type", "Data", "Age"), _secret),
    CONFIGMAPS: Layout(("Name", "Data", "Age"), _config_map),
    PRIORITYCLASSES: Layout(("Name", "Value", "Global-Default", "Age", "PreemptionPolicy"), _priority_class),
    LEASES: Layout(("Name", "Holder", "Age"), _lease),
    PODGROUPS: Layout(("Name", "Policy", "Workload", "Status", "Age"), _pod_group),
}

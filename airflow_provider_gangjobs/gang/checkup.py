"""The rules of a check-up of a cluster: what was read goes in, and findings for people come out. Pure.

A finding is `ok`, a `problem` with its remedy, or `unknown` with the reason why nothing can be said. What could not be
read is unknown, and never ok.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.gang.queues import QueueFacts, held_reason
from airflow_provider_gangjobs.kube.resources import (
    JOB_SET_GROUP,
    KUEUE_GROUP,
    KUEUE_VISIBILITY_GROUP,
    SCHEDULING_GROUP,
)
from airflow_provider_gangjobs.kube.text import pluralize

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Iterable, Mapping, Sequence


class Health(StrEnum):
    """What a finding says."""

    OK = "ok"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


class Finding(Struct, frozen=True):
    """The result of one check."""

    check: str
    health: Health
    what: str
    remedy: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(check, Health.OK, what)


def problem(check: str, what: str, remedy: str) -> Finding:
    return Finding(check, Health.PROBLEM, what, remedy)


def unknown(check: str, why: str, remedy: str = "") -> Finding:
    return Finding(check, Health.UNKNOWN, why, remedy)


# -- rights --------------------------------------------------------------------------------------------------------


class Right(Struct, frozen=True):
    """Verbs on one resource, which one of the documented Roles grants."""

    role: str
    """The file of the Role in the documentation, without its folder and suffix."""
    group: str
    resource: str
    verbs: tuple[str, ...]
    purpose: str
    optional: bool = False
    """Gangs run without it."""

    @property
    def in_all_namespaces(self) -> bool:
        """The rules of a namespace do not show these rights, so each is asked for."""
        return self.role == CAPACITY

    def missing_verbs(self, rules: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Return the verbs that no rule of a SelfSubjectRulesReview grants for all objects."""
        return tuple(verb for verb in self.verbs if not any(self._is_granted(verb, rule) for rule in rules))

    def _is_granted(self, verb: str, rule: Mapping[str, Any]) -> bool:
        wanted = ("verbs", verb), ("apiGroups", self.group), ("resources", self.resource)
        return not rule.get("resourceNames") and all(
            not {value, "*"}.isdisjoint(rule.get(field) or ()) for field, value in wanted
        )


BASE: Final = "rbac"
KUEUE: Final = "rbac-kueue"
CAPACITY: Final = "rbac-capacity"
_VOLCANO: Final = "rbac-volcano"
_PLUGIN: Final = "rbac-coscheduling"
_DROP: Final = "delete a submission and keep its Job"
_QUEUE_OBJECTS: Final = "admissionchecks clusterqueues resourceflavors topologies workloadpriorityclasses"
_REQUIRED: Final = (
    (BASE, "batch", "jobs", "create get list watch patch delete", "run gangs"),
    (BASE, "", "pods", "get list watch patch", "wait for ranks and release their pods"),
    (BASE, "", "pods/log", "get", "copy the logs of the ranks"),
    (BASE, "", "services", "create get", "name the ranks"),
    (BASE, "", "configmaps", "create get list patch", "store files and outcomes"),
    (BASE, "", "events", "list", "say why pods are refused"),
    (BASE, SCHEDULING_GROUP, "workloads", "create get list", "schedule gangs"),
    (BASE, SCHEDULING_GROUP, "podgroups", "create get list watch", "schedule gangs"),
    (KUEUE, KUEUE_GROUP, "workloads", "list watch patch", "say why a gang waits in its queue"),
    (KUEUE, KUEUE_GROUP, "localqueues", "list", "refuse a queue that does not exist"),
    (_VOLCANO, "scheduling.volcano.sh", "podgroups", "create get list watch delete", "run gangs that Volcano places"),
    (_PLUGIN, "scheduling.x-k8s.io", "podgroups", "create get delete", "run gangs that the coscheduling plugin places"),
)
_OPTIONAL: Final = (
    (BASE, "", "namespaces", "get", "name the folders of checkpoints"),
    (BASE, "", "services", "delete", _DROP),
    (BASE, "", "configmaps", "delete", _DROP),
    (BASE, SCHEDULING_GROUP, "workloads", "delete", _DROP),
    (BASE, SCHEDULING_GROUP, "podgroups", "delete", _DROP),
    (KUEUE, JOB_SET_GROUP, "jobsets", "create get list patch delete", "run gangs with roles in a queue"),
    (KUEUE, KUEUE_VISIBILITY_GROUP, "localqueues/pendingworkloads", "get", "say at which position a gang waits"),
    *((KUEUE, KUEUE_GROUP, one, "get", "check a queue before a gang is submitted") for one in _QUEUE_OBJECTS.split()),
    (CAPACITY, "", "nodes", "list", "say how much is free"),
    (CAPACITY, "", "pods", "list", "say how much is free"),
    (CAPACITY, "", "persistentvolumeclaims", "get", "name a claim that does not exist"),
)
RIGHTS: Final = tuple(
    Right(role, group, resource, tuple(verbs.split()), purpose, optional)
    for rows, optional in ((_REQUIRED, False), (_OPTIONAL, True))
    for role, group, resource, verbs, purpose in rows
)
"""The rights of the documented Roles. A test compares them with the files."""


def wanted_rights(groups: Collection[str]) -> tuple[Right, ...]:
    """Return the rights that are of use in a cluster that serves these API groups."""
    return tuple(right for right in RIGHTS if right.role in {BASE, CAPACITY} or right.group in groups)


def judge_rights(missing: Mapping[Right, Sequence[str]], wanted: Iterable[Right], namespace: str) -> list[Finding]:
    """Return one finding for each Role, and one for the optional rights of each that are missing.

    :param missing: The verbs that are missing, by right.
    """
    findings = []
    for role in dict.fromkeys(right.role for right in wanted):
        for optional in (False, True):
            lacking = [right for right in missing if right.role == role and right.optional is optional]
            check = f"{'optional ' if optional else ''}rights of {role}.yaml"
            if optional and lacking:
                findings.append(ok(check, f"not given, and gangs run without: {_describe(lacking, missing)}"))
            elif not optional and lacking:
                command = " --".join(("gangjobs rbac", *role.split("-")[1:]))
                remedy = f"{command} | kubectl -n {namespace} apply -f -, and bind the Role as the output says"
                findings.append(problem(check, f"missing: {_describe(lacking, missing)}", remedy))
            elif not optional:
                findings.append(ok(check, "all given"))
    return findings


def _describe(rights: Iterable[Right], missing: Mapping[Right, Sequence[str]]) -> str:
    parts = []
    for right in rights:
        resource = f"{right.resource}.{right.group}" if right.group else right.resource
        parts.append(f"{', '.join(missing[right])} {resource} (to {right.purpose})")
    return "; ".join(parts)


# -- the control plane ---------------------------------------------------------------------------------------------

SKEW_MAX_S: Final = 30.0
"""Deadlines count by the clock of the API server, and tokens are refused by clocks that differ by minutes."""
CONTROLLER_SILENT_S: Final = 60.0
"""The Job controller writes the status of a new Job within a second."""


def judge_skew(ahead_s: float | None) -> Finding:
    """Judge how far the clock of the API server is ahead of that of this machine; `None` if it is unknown."""
    check = "clocks"
    if ahead_s is None:
        return unknown(check, "the API server sends no Date")
    side = "ahead of" if ahead_s > 0 else "behind"
    what = f"the clock of the API server is {abs(ahead_s):.0f} s {side} the clock of this machine"
    if abs(ahead_s) > SKEW_MAX_S:
        return problem(check, what, "Let both use NTP: tokens and times in logs depend on the clocks")
    return ok(check, what)


def judge_workload_api(holds_gangs: bool | None, dialects: Sequence[str], evidence: str, release: str) -> Finding:
    """Judge whether the API server can store a gang."""
    check = "Workload API"
    if holds_gangs:
        return ok(check, f"Kubernetes {release} stores gangs ({', '.join(dialects)})")
    if holds_gangs is None:
        return unknown(check, evidence)
    remedy = (
        "Enable the feature gate GenericWorkload (before 1.37 also GangScheduling) and scheduling.k8s.io in a beta or "
        "alpha version, in API server, controller manager and scheduler, or use another gang_scheduler"
    )
    return problem(check, f"Kubernetes {release} cannot store a gang: {evidence}", remedy)


def judge_schedulers(served: Mapping[str, str], named: str | None) -> Finding:
    """Judge the schedulers beside the default one.

    :param served: Why each scheduler cannot be used, by name; empty if it can.
    :param named: The scheduler that the connection names.
    """
    check = "schedulers"
    if named in served and served[str(named)]:
        remedy = "Install this scheduler, or correct the extra gang_scheduler of the connection"
        return problem(check, f"the connection names {named}: {served[str(named)]}", remedy)
    usable = [name for name, reason in served.items() if not reason]
    return ok(check, f"also installed: {', '.join(usable)}" if usable else "only the default scheduler")


def judge_controller(silent: Sequence[str]) -> Finding:
    """Judge the Job controller by the Jobs that it has not looked at for `CONTROLLER_SILENT_S`."""
    check = "Job controller"
    if not silent:
        return ok(check, "no Job waits for it")
    shown = ", ".join(silent[:3])
    what = f"{pluralize(len(silent), 'Job')} without a status for {CONTROLLER_SILENT_S:.0f} s ({shown})"
    return problem(check, what, "Check that kube-controller-manager runs")


# -- queues --------------------------------------------------------------------------------------------------------

_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse_go_duration(text: str) -> float | None:
    """Return the seconds of a duration as Kueue's configuration has it, such as `1h30m`; `None` for another text."""
    parts = re.findall(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s)", text)
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


PODS_READY_BY_DEFAULT_SINCE: Final = (0, 19)
"""The release of Kueue from which on `waitForPodsReady` is on unless its configuration turns it off."""
_TURNS_OFF: Final = "DisableWaitForPodsReady"
"""The feature gate of these releases that turns it off."""


def judge_pods_ready(configuration: Mapping[str, Any], image: str, assemble_timeout_s: float | None) -> Finding:
    """Judge Kueue's `waitForPodsReady` against the time that a task leaves its gang to assemble.

    :param image: The image of Kueue's manager; empty if it is not known.
    """
    check = "waitForPodsReady of Kueue"
    is_on = _waits_for_pods_ready(configuration, image)
    if is_on is None:
        since = ".".join(map(str, PODS_READY_BY_DEFAULT_SINCE))
        what = f"is not in its configuration: it is on since Kueue {since}, and the image {image!r} names no release"
        return unknown(check, what)
    if not is_on:
        return ok(check, "is off: a gang that does not assemble keeps its quota until its assemble_timeout")
    default = "5m" if _is_v1beta1(configuration) else "30m"
    timeout = str((configuration.get("waitForPodsReady") or {}).get("timeout") or default)
    seconds = parse_go_duration(timeout)
    if seconds is None:
        return unknown(check, f"the timeout {timeout!r} is no duration")
    if assemble_timeout_s is not None and seconds < assemble_timeout_s:
        what = (
            f"Kueue stops a gang that is not ready after {timeout}, before assemble_timeout ({assemble_timeout_s:g} s)"
        )
        return problem(check, what, f"Set assemble_timeout to less than {timeout}, or raise timeout in Kueue")
    return ok(check, f"Kueue stops a gang that is not ready after {timeout}")


def _waits_for_pods_ready(configuration: Mapping[str, Any], image: str) -> bool | None:
    """Return whether Kueue stops gangs that are not ready in time; `None` if that depends on an unknown release."""
    wait = configuration.get("waitForPodsReady")
    if _is_v1beta1(configuration):
        return bool(wait and wait.get("enable"))
    if (configuration.get("featureGates") or {}).get(_TURNS_OFF):
        return False
    if wait is not None:
        return True
    release = re.search(r":v?(\d+)\.(\d+)", image)
    return None if release is None else (int(release[1]), int(release[2])) >= PODS_READY_BY_DEFAULT_SINCE


def _is_v1beta1(configuration: Mapping[str, Any]) -> bool:
    return str(configuration.get("apiVersion")).endswith("/v1beta1")


def judge_queues(queues: Sequence[Mapping[str, Any]], named: str | None, namespace: str) -> Finding:
    """Judge the LocalQueues of the namespace.

    :param named: The queue that the connection or the command names.
    """
    check = "queues"
    names = [str(queue["metadata"]["name"]) for queue in queues]
    if named is not None and named not in names:
        known = f"the namespace has {', '.join(names)}" if names else "the namespace has none"
        remedy = "Create the LocalQueue, or correct queue_name"
        return problem(check, f"{named} is no LocalQueue of namespace {namespace}: {known}", remedy)
    facts = QueueFacts({name: queue for name, queue in zip(names, queues, strict=True) if named in (None, name)})
    held = next(filter(None, (held_reason(name, facts) for name in facts.local_queues or ())), None)
    if held is not None:
        return problem(check, held, "Ask the administrator of the queue to release it")
    return ok(check, f"{', '.join(names)} can take gangs" if names else "Kueue has no queue in this namespace")


# -- leftovers -----------------------------------------------------------------------------------------------------


def judge_half_submitted(names: Sequence[str]) -> Finding:
    """Judge the gangs whose submission stopped half-way."""
    check = "half-submitted gangs"
    if not names:
        return ok(check, "none")
    return problem(check, f"{pluralize(len(names), 'gang')} ({', '.join(names[:3])})", "Run gangjobs tidy")


def judge_held_pods(pods: Sequence[str]) -> Finding:
    """Judge the pods that the finalizer of the provider holds although their Job is gone."""
    check = "held pods"
    if not pods:
        return ok(check, "none of a gang that is gone")
    what = f"{pluralize(len(pods), 'pod')} of gangs that are gone ({', '.join(pods[:3])})"
    return problem(check, what, "Run gangjobs release --gang JOB for each of these Jobs")


def judge_installations(gangs: Counter[str]) -> Finding:
    """Judge the Airflow installations whose gangs are in the namespace.

    :param gangs: The number of gangs by the id of their installation; an empty id is that of no id.
    """
    check = "installations"
    if gangs[""] and len(gangs) > 1:
        what = f"{pluralize(gangs[''], 'gang')} of no installation id beside gangs of {_names(gangs)}"
        return problem(check, what, "Give each Airflow an id of its own: [gangjobs] installation_id")
    return ok(check, f"gangs of {_names(gangs)}" if +gangs else "no gangs")


def _names(gangs: Counter[str]) -> str:
    return ", ".join(sorted(name or "no installation" for name in gangs if name or len(gangs) == 1))

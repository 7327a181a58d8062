"""The task that stands for a workload of a file: its pods, its parameters, and what was changed on the way.

A kind has a module that describes the workload as Jobs. `gang.py` then makes the parameters of the task from them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from airflow_provider_gangjobs.convert.secrets import without_secrets
from airflow_provider_gangjobs.gang.render.user_manifest import iter_scalars
from airflow_provider_gangjobs.gang.spec import DURATION_MAX_S
from airflow_provider_gangjobs.kube.text import cut_end, pluralize, to_printable_line
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_gangjobs.convert.documents import Document

NOTE_CHARACTERS_MAX: Final = 1000
"""A value of a file may be in a note, however long the value is."""
TTL_MIN_S: Final = 3600
"""A shorter time to live would delete a Job whose results Airflow has not read after an outage."""


_RETRIES: Final = "the first failure ends the gang, and retries start it again"
_TOGETHER: Final = "all pods start together: let a program wait for the others"
_HISTORY: Final = "Airflow keeps the history of the runs"
_CURES: Final = {
    "backoffLimit": _RETRIES,
    "cleanPodPolicy": "all pods end with the gang",
    "coordinator": "rank 0 of the first role is $(MASTER_ADDR)",
    "dependsOn": _TOGETHER,
    "elasticPolicy": f"a gang has a fixed number of ranks: {_RETRIES}",
    "failedJobsHistoryLimit": _HISTORY,
    "failurePolicy": _RETRIES,
    "initializer": "let a task before this one fetch the data, or an init container in pod_overrides",
    "maxRetry": _RETRIES,
    "minAvailable": "all pods of a gang with roles start together",
    "mpiImplementation": "the gang sets the variables of all of them",
    "plugins": "each rank has MASTER_ADDR and WORLD_SIZE, and finds its own number as docs/roles.md says",
    "podTemplateOverrides": "give pod_overrides",
    "policies": "the gang succeeds when all its pods have, and fails with the first failure",
    "runtimePatches": "give pod_overrides",
    "sshAuthMountPath": "the key is in the Secret of ssh_secret",
    "startingDeadlineSeconds": "Airflow starts a late run as soon as it can, and no run of the past",
    "startupPolicy": _TOGETHER,
    "successPolicy": "the gang succeeds when all roles have: let the programs of the others end, too",
    "successfulJobsHistoryLimit": _HISTORY,
    "suspend": "the task starts when its DAG runs",
    "volumeClaimPolicies": "create these claims beforehand, each of which all pods share",
    "volumes": "give the claims as volumes",
}
"""What to do about the fields of all kinds that have no counterpart."""


class Code(str):
    """Python code that is the value of a parameter of a DAG."""

    __slots__ = ()


class Part(Struct, frozen=True):
    """One Job of a workload. The name of a rank in the file is `PREFIX-RANKSUFFIX.SERVICE`."""

    name: str
    spec: dict[str, Any]
    host_prefix: str = ""
    host_suffix: str = ""

    @property
    def size(self) -> int:
        size: int = self.spec.get("completions", self.spec.get("parallelism", 1))
        return size


def pods(size: int, template: Any) -> dict[str, Any]:
    """Return the spec of a Job whose pods all run at once."""
    shape = {"completions": size, "parallelism": size, "completionMode": "Indexed", "backoffLimit": 0}
    return {**shape, "template": template}


def merged(parts: Sequence[Part]) -> list[Part]:
    """Return one part with all pods if their templates are the same, or else the parts."""
    first, *others = parts
    template, size = first.spec["template"], sum(part.size for part in parts)
    if not others or any(part.spec["template"] != template for part in others):
        return [*parts]
    return [Part(first.name, pods(size, template), first.host_prefix, first.host_suffix)]


def with_variables(given: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the variables of both, and the given one of each name."""
    names = {item["name"] for item in given}
    return [*given, *(item for item in others if item["name"] not in names)]


@dataclass
class Task:
    """A task of the DAG, and what a person has to know about its conversion."""

    document: Document
    parts: list[Part]
    service: str = ""
    """The Service in the host names of the file."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """The parameters of `GangJobOperator`, and those of `BaseOperator`."""
    dag: dict[str, Any] = field(default_factory=dict)
    """The parameters of the DAG, if the object is a CronJob."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    """What was changed, dropped, or could not be decided: the parameter at which the comment stands, or none, and the
    text."""
    number: int = 1
    """The number of the task among those with the same name."""
    secret_variables: list[str] = field(default_factory=list)
    """The variables whose values a person puts into a Secret."""
    has_rendezvous: bool = False
    """The ranks have the Service and the variables of the gang."""

    @property
    def task_id(self) -> str:
        name = re.sub(r"[^\w.-]+", "_", self.document.name, flags=re.ASCII) or str(self.document.data["kind"]).lower()
        return f"{name}_{self.number}" if self.number > 1 else name

    @property
    def in_namespace(self) -> str:
        """The option of `kubectl` for the namespace of the object, if it has one."""
        namespace = self.document.data.get("metadata", {}).get("namespace")
        return f" -n {namespace}" if namespace else ""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def is_gang(self) -> bool:
        """Several pods are placed together."""
        return self.size > 1 and "gang" not in self.parameters

    @property
    def is_queued(self) -> bool:
        """Kueue decides when the pods may run."""
        metadata = self.document.data.get("metadata", {})
        return any(LABEL_KUEUE_QUEUE in (metadata.get(kind) or ()) for kind in ("labels", "annotations"))

    def note(self, text: str, parameter: str = "") -> None:
        """Add a comment, on one line without control characters."""
        noted = (parameter, cut_end(to_printable_line(without_secrets(text, "${}".format)), NOTE_CHARACTERS_MAX))
        if noted not in self.notes:
            self.notes.append(noted)

    def leave_out(self, fields: Mapping[str, Any]) -> None:
        """Name the fields that are set and have no counterpart, with what to do about them."""
        for name in (name for name, value in fields.items() if value not in (False, {}, [])):
            line, cure = self.document.line_of(f"{name}:"), _CURES.get(name, "a gang has no counterpart")
            self.note(f"{name} (line {line}) is left out: {cure}")

    def warn_about(self, pattern: str, cure: str) -> None:
        """Name what a program of the file reads and the gang does not have."""
        for _, text in iter_scalars([part.spec for part in self.parts], ""):
            if isinstance(text, str) and (found := re.search(pattern, text)):
                self.note(f"Line {self.document.line_of(found[0])} has {found[0]}: {cure}")

    def take_limits(self, spec: dict[str, Any]) -> None:
        """Move the time limits and the retries of an object into parameters."""
        if self.is_queued or not spec.get("suspend"):
            spec.pop("suspend", None)
        backoff, limit = spec.pop("backoffLimit", 0), spec.pop("activeDeadlineSeconds", None)
        ttl = spec.pop("ttlSecondsAfterFinished", None)
        if backoff:
            self.parameters["retries"] = backoff
            self.note(
                f"Airflow retries the task {pluralize(backoff, 'time')}, with pods of its own, in place of Kubernetes",
                "retries",
            )
        if limit is not None and not 0 < limit <= DURATION_MAX_S:
            self.note(
                f"activeDeadlineSeconds was {limit}, and is left out: run_timeout is above 0, and ten years at most"
            )
        elif limit:
            self.parameters["run_timeout"] = timedelta(seconds=int(limit))
            text = f"activeDeadlineSeconds was {limit}, and counted the wait for nodes, which assemble_timeout limits"
            self.note(text, "run_timeout")
        if ttl is not None and TTL_MIN_S <= ttl <= DURATION_MAX_S:
            self.parameters["ttl_after_finished"] = timedelta(seconds=int(ttl))
        elif ttl is not None:
            self.note(f"ttlSecondsAfterFinished was {ttl}: the task deletes its Job after it has read the results")

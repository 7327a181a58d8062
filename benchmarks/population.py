"""The pods of one very large gang, or of many gangs, as a real API server sends them.

The JSON of a pod is made when it is requested. Each pod has its own name, uid, version, node, times and result, and is
as large as a real pod: it has managedFields, a spec with volumes and tolerations, and the annotations of network
plugins.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow_provider_gangjobs.gang.labels import FINALIZER_HARVEST, LABEL_ATTEMPT, LABEL_GANG

NAMESPACE: Final = "research"
NODES: Final = 2000
STARTS_OVER_S: Final = 300
ENDS_OVER_S: Final = 600
BEGAN: Final = datetime(2026, 8, 1, 12, tzinfo=UTC)
_CREATION: Final = "2026-08-01T11:59:07Z"

Json = dict[str, Any]


def uid_of(index: int) -> str:
    return f"{index:08x}-6c1b-4a8e-9a51-{index * 7919:012x}"


def gang_name(gang: int) -> str:
    return f"train-{gang:06x}-0"


def job_uid(gang: int) -> str:
    return f"{gang:08x}-6c1b-4a8e-9a51-0c7f1f0b7d3e"


def index_of(name: str) -> int:
    """Return the number of a pod, from its name."""
    return int(name.rsplit("-", 1)[1])


def gang_of_name(name: str) -> int:
    """Return the number of a gang, from the name of its Job."""
    return int(name.split("-")[1], 16)


GANG: Final = gang_name(0)
JOB_UID: Final = job_uid(0)


@dataclass(frozen=True)
class Population:
    """A number of pods in gangs of equal size. One pod in `held_every` still has the finalizer of the provider."""

    pods: int
    held_every: int = 1
    gangs: int = 1

    @property
    def size(self) -> int:
        """The number of pods of each gang."""
        return self.pods // self.gangs

    def name_of(self, index: int) -> str:
        return f"{gang_name(index // self.size)}-{index % self.size}-{index:05d}"

    def is_held(self, index: int) -> bool:
        return index % self.held_every == 0

    def running(self, index: int, version: int) -> bytes:
        return self._filled(_RUNNING, index, version, held=self.is_held(index))

    def ended(self, index: int, version: int, *, held: bool | None = None) -> bytes:
        """Return a pod that succeeded with a result. Without `held`, the pod has no finalizer."""
        return self._filled(_ENDED, index, version, held=self.is_held(index) if held is None else held)

    def job(self, gang: int, version: int, *, complete: bool) -> Json:
        at = _time(BEGAN + timedelta(seconds=STARTS_OVER_S + ENDS_OVER_S))
        began = {"active": self.size, "ready": self.size, "startTime": _time(BEGAN)}
        ended = {
            "startTime": _time(BEGAN),
            "succeeded": self.size,
            "completedIndexes": f"0-{self.size - 1}",
            "completionTime": at,
            "conditions": [
                {"type": kind, "status": "True", "reason": "CompletionsReached", "lastTransitionTime": at}
                for kind in ("SuccessCriteriaMet", "Complete")
            ],
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": gang_name(gang),
                "namespace": NAMESPACE,
                "uid": job_uid(gang),
                "generation": 2,
                "resourceVersion": str(version),
                "creationTimestamp": _CREATION,
                "labels": {LABEL_GANG: gang_name(gang), LABEL_ATTEMPT: "0"},
            },
            "spec": {"parallelism": self.size, "completions": self.size, "completionMode": "Indexed"},
            "status": ended if complete else began,
        }

    def _filled(self, template: bytes, index: int, version: int, *, held: bool) -> bytes:
        finalizers = [FINALIZER_HARVEST] if held else []
        start = BEGAN + timedelta(seconds=index % STARTS_OVER_S)
        end = BEGAN + timedelta(seconds=STARTS_OVER_S + index * 31 % ENDS_OVER_S)
        values = {
            b"@index": str(index % self.size),
            b"@name": self.name_of(index),
            b"@gang": gang_name(index // self.size),
            b"@job_uid": job_uid(index // self.size),
            b"@uid": uid_of(index),
            b"@version": str(version),
            b"@node": f"ip-10-{index % NODES // 250}-{index % NODES % 250}.eu-central-1.compute.internal",
            b'"@finalizers"': json.dumps(finalizers),
            b"@start": _time(start),
            b"@end": _time(end),
        }
        for placeholder, value in values.items():
            template = template.replace(placeholder, value.encode())
        return template


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _template(phase: str, state: Json, *, ready: bool) -> bytes:
    labels = {
        LABEL_GANG: "@gang",
        LABEL_ATTEMPT: "0",
        "batch.kubernetes.io/controller-uid": "@job_uid",
        "batch.kubernetes.io/job-completion-index": "@index",
        "batch.kubernetes.io/job-name": "@gang",
        "controller-uid": "@job_uid",
        "job-name": "@gang",
        "team": "research",
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "@gang", "uid": "@job_uid", "controller": True}
    meta = {
        "name": "@name",
        "generateName": "@gang-@index-",
        "namespace": NAMESPACE,
        "uid": "@uid",
        "resourceVersion": "@version",
        "creationTimestamp": _CREATION,
        "labels": labels,
        "annotations": {
            "batch.kubernetes.io/job-completion-index": "@index",
            "kubectl.kubernetes.io/default-container": "main",
            "cni.projectcalico.org/containerID": "@uid" * 2,
            "k8s.v1.cni.cncf.io/network-status": '[{"name": "k8s-pod-network", "ips": ["10.1.@index"]}]',
        },
        "ownerReferences": [owner | {"blockOwnerDeletion": True}],
        "finalizers": "@finalizers",
        "managedFields": [
            {"manager": manager, "operation": "Update", "fieldsV1": {f"f:field{n}": {"f:sub": {}} for n in range(40)}}
            for manager in ("kube-controller-manager", "kube-scheduler", "kubelet")
        ],
    }
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _spec(), "status": _status(phase, state, ready)}
    ).encode()


def _spec() -> Json:
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "command": ["python", "train.py"],
        "env": [{"name": f"SETTING_{number}", "value": "x" * 20} for number in range(10)],
        "resources": {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    keys = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    return {
        "nodeName": "@node",
        "restartPolicy": "Never",
        "containers": [container],
        "tolerations": [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in keys],
        "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
    }


def _status(phase: str, state: Json, ready: bool) -> Json:
    truth = {True: "True", False: "False"}
    always = ("Initialized", "PodScheduled")
    kinds = (*always, "PodReadyToStartContainers", "Ready", "ContainersReady")
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "imageID": "registry.example/train@sha256:" + "0" * 64,
        "containerID": "containerd://@uid",
        "ready": ready,
        "restartCount": 0,
        "lastState": {},
        "state": state,
    }
    return {
        "phase": phase,
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "startTime": "@start",
        "qosClass": "Burstable",
        "conditions": [
            {"type": kind, "status": truth[ready or kind in always], "lastTransitionTime": "@start"} for kind in kinds
        ],
        "containerStatuses": [container],
    }


_RESULT: Final = '{"rank": @index, "loss": 0.0@index, "steps": 120000, "checkpoint": "s3://runs/@name"}'
_RUNNING: Final = _template("Running", {"running": {"startedAt": "@start"}}, ready=True)
_ENDED: Final = _template(
    "Succeeded",
    {
        "terminated": {
            "exitCode": 0,
            "reason": "Completed",
            "message": _RESULT,
            "startedAt": "@start",
            "finishedAt": "@end",
            "containerID": "containerd://@uid",
        }
    },
    ready=False,
)

"""A field that the API server refuses is named where the user wrote it, with the field that the user may have meant."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.client import models

from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.validation.refused_fields import FIELDS, refused_fields

SIDECAR = {"name": "proxy", "image": "proxy:1"}
MANIFEST = """
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containerz: []
"""


def strict(*paths: str) -> str:
    fields = ", ".join(f'unknown field "{path}"' for path in paths)
    return f'Job in version "v1" cannot be handled as a Job: strict decoding error: {fields}'


@pytest.mark.parametrize(
    ("path", "given", "place", "similar"),
    [
        pytest.param(
            "spec.template.initContainers",
            {"pod_overrides": {"initContainers": []}},
            "pod_overrides.initContainers",
            "spec.initContainers",
            id="one level too high",
        ),
        pytest.param(
            "spec.template.spec.initContainer",
            {"pod_overrides": {"spec": {"initContainer": []}}},
            "pod_overrides.spec.initContainer",
            "initContainers",
            id="a typo",
        ),
        pytest.param(
            "spec.template.spec.init_containers",
            {"pod_overrides": {"spec": {"init_containers": []}}},
            "pod_overrides.spec.init_containers",
            "initContainers",
            id="the name in Python",
        ),
        pytest.param(
            "spec.template.spec.image",
            {"pod_overrides": {"spec": {"image": "i"}}},
            "pod_overrides.spec.image",
            "spec.containers[0].image",
            id="one level too low is named by its path",
        ),
        pytest.param(
            "spec.template.spec.containers[1].imagePulPolicy",
            {"pod_overrides": {"spec": {"containers": [{**SIDECAR, "imagePulPolicy": "Never"}]}}},
            "pod_overrides.spec.containers[0].imagePulPolicy",
            "imagePullPolicy",
            id="an item of a merged list",
        ),
        pytest.param(
            "spec.template.spec.initContainers[0].volumeMount",
            {"pod_overrides": {"spec": {"initContainers": [{**SIDECAR, "volumeMount": []}]}}},
            "pod_overrides.spec.initContainers[0].volumeMount",
            "volumeMounts",
            id="an init container",
        ),
        pytest.param(
            "spec.template.spec.volumes[0].configmap",
            {"volumes": [{"name": "v", "configmap": {"name": "c"}}]},
            "volumes[0].configmap",
            "configMap",
            id="a named parameter",
        ),
        pytest.param(
            "spec.template.spec.tolerations[0].effects",
            {"tolerations": [{"effects": "NoSchedule"}]},
            "tolerations[0].effects",
            "effect",
            id="a named parameter of the pod",
        ),
        pytest.param(
            "spec.template.spec.containers[0].env[3].valueFrom.secretRef",
            {"env": {"A": "a", "B": {"valueFrom": {"secretRef": {"name": "s"}}}}},
            "env.B.valueFrom.secretRef",
            "secretKeyRef",
            id="a variable of a mapping",
        ),
        pytest.param(
            "spec.template.spec.containerz",
            {"manifest": MANIFEST},
            "manifest.spec.template.spec.containerz",
            "containers",
            id="a manifest",
        ),
        pytest.param(
            "spec.template.nodeSelector",
            {"roles": {"head": {"pod_overrides": {"nodeSelector": {}}}}},
            "roles.head.pod_overrides.nodeSelector",
            "spec.nodeSelector",
            id="a role",
        ),
        pytest.param(
            "spec.replicatedJobs[1].template.spec.template.spec.hostnetwork",
            {"roles": {"head": {}, "worker": {"pod_overrides": {"spec": {"hostnetwork": True}}}}},
            "roles.worker.pod_overrides.spec.hostnetwork",
            "hostNetwork",
            id="a role in a queue",
        ),
    ],
)
def test_unknown_field_is_told_at_its_place(path: str, given: dict[str, Any], place: str, similar: str) -> None:
    (problem,) = refused_fields(strict(path), (), GangSpec(**given))

    assert (problem.path, problem.remedy) == (place, f"Did you mean {similar}?")


def test_field_that_resembles_nothing_has_no_suggestion() -> None:
    spec = GangSpec(pod_overrides={"spec": {"xyzzy": 1}})
    (problem,) = refused_fields(strict("spec.template.spec.xyzzy"), (), spec)

    assert problem.path == "pod_overrides.spec.xyzzy"
    assert problem.remedy.startswith("Remove it")


def test_all_unknown_fields_are_told() -> None:
    spec = GangSpec(pod_overrides={"spec": {"hostPid": True, "dnspolicy": "Default"}})
    found = refused_fields(strict("spec.template.spec.hostPid", "spec.template.spec.dnspolicy"), (), spec)

    assert [problem.remedy for problem in found] == ["Did you mean hostPID?", "Did you mean dnsPolicy?"]


TWO_CONTAINERS = [{"name": "main", "ports": [{"containerPort": 80}]}, {"name": "side", "ports": [{"containerPort": 0}]}]


def job_of(*containers: dict[str, Any]) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": containers}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


@pytest.mark.parametrize(
    ("given", "field", "wanted", "parameters", "told"),
    [
        pytest.param(
            "string",
            "PodSpec.spec.template.spec.hostNetwork",
            "bool",
            {"pod_overrides": {"spec": {"hostNetwork": "yes"}}},
            "pod_overrides.spec.hostNetwork: is of type string. Give true or false.",
            id="overrides",
        ),
        pytest.param(
            "number",
            "SecretEnvSource.spec.template.spec.containers.envFrom.secretRef.LocalObjectReference.name",
            "string",
            {"env_from": [{"secretRef": {"name": "a"}}, {"secretRef": {"name": 5}}]},
            "env_from[1].secretRef.name: is of type number. Give text.",
            id="a named parameter, whose container has no index",
        ),
        pytest.param(
            "string",
            "SecretKeySelector.spec.template.spec.containers.env.valueFrom.secretKeyRef.optional",
            "bool",
            {"env": {"A": "a", "B": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": "no"}}}}},
            "env.B.valueFrom.secretKeyRef.optional: is of type string. Give true or false.",
            id="a variable",
        ),
        pytest.param(
            "number 1.5",
            "PodSecurityContext.spec.template.spec.securityContext.runAsUser",
            "int64",
            {"security_context": {"runAsUser": 1.5}},
            "security_context.runAsUser: is of type number. Give a whole number of 64 bits.",
            id="a number that does not fit",
        ),
        pytest.param(
            "number",
            "Capabilities.spec.template.spec.containers.securityContext.capabilities.add",
            "v1.Capability",
            {"manifest": job_of({"name": "a", "securityContext": {"capabilities": {"add": ["SYS_PTRACE", 3]}}})},
            "manifest.spec.template.spec.containers[0].securityContext.capabilities.add[1]: is of type number."
            " Give a v1.Capability of Kubernetes.",
            id="an item of a list",
        ),
        pytest.param(
            "bool",
            "LabelSelector.spec.template.spec.topologySpreadConstraints.labelSelector.matchLabels",
            "string",
            {
                "pod_overrides": {
                    "spec": {"topologySpreadConstraints": [{"labelSelector": {"matchLabels": {"a": True}}}]}
                }
            },
            "pod_overrides.spec.topologySpreadConstraints[0].labelSelector.matchLabels.a: is of type bool. Give text.",
            id="an item of a mapping",
        ),
    ],
)
def test_value_of_a_wrong_type_is_told_at_its_place(
    given: str, field: str, wanted: str, parameters: dict[str, Any], told: str
) -> None:
    message = (
        f'Job in version "v1" cannot be handled as a Job: json: cannot unmarshal {given} into Go struct field '
        f"{field} of type {wanted}"
    )
    (problem,) = refused_fields(message, (), GangSpec(**parameters))

    assert str(problem) == told


@pytest.mark.parametrize(
    ("field", "parameters", "place"),
    [
        pytest.param(
            "spec.template.spec.containers[1].ports[0].containerPort",
            {"manifest": job_of(*TWO_CONTAINERS)},
            "manifest.spec.template.spec.containers[1].ports[0].containerPort",
            id="the second container of a manifest",
        ),
        pytest.param(
            "spec.template.spec.containers[2].ports[0].containerPort",
            {"manifest": job_of({"name": "rank"}), "pod_overrides": {"spec": {"containers": TWO_CONTAINERS}}},
            "pod_overrides.spec.containers[1].ports[0].containerPort",
            id="a container that overrides add",
        ),
        pytest.param(
            "spec.template.spec.volumes[1].configMap.defaultMode",
            {"volumes": [{"name": name, "configMap": {"defaultMode": 0o1777}} for name in "ab"]},
            "volumes[1].configMap.defaultMode",
            id="the second volume",
        ),
    ],
)
def test_item_is_told_at_its_own_place(field: str, parameters: dict[str, Any], place: str) -> None:
    (problem,) = refused_fields("invalid", [{"field": field, "message": "no"}], GangSpec(**parameters))

    assert problem.path == place


def test_invalid_value_is_told_at_its_place() -> None:
    causes = [{"reason": "FieldValueInvalid", "field": "spec.template.spec.tolerations[0].operator", "message": "no"}]

    (problem,) = refused_fields("invalid", causes, GangSpec(tolerations=[{"operator": "Is"}]))

    assert (problem.path, problem.what) == ("tolerations[0].operator", "no")


def test_field_that_the_user_did_not_write_keeps_its_path() -> None:
    causes = [{"field": "spec.template.spec.containers[0].image", "message": "Required value"}]

    (problem,) = refused_fields("invalid", causes, GangSpec())

    assert problem.path == "spec.template.spec.containers[0].image"


def test_other_refusals_name_no_field() -> None:
    assert refused_fields('admission webhook "a" denied the request: no', (), GangSpec()) == ()


KINDS = {
    "spec": "V1JobSpec",
    "spec.template": "V1PodTemplateSpec",
    "spec.template.spec": "V1PodSpec",
    "spec.template.spec.affinity": "V1Affinity",
    "spec.template.spec.containers[]": "V1Container",
    "spec.template.spec.containers[].env[]": "V1EnvVar",
    "spec.template.spec.containers[].env[].valueFrom": "V1EnvVarSource",
    "spec.template.spec.containers[].envFrom[]": "V1EnvFromSource",
    "spec.template.spec.containers[].ports[]": "V1ContainerPort",
    "spec.template.spec.containers[].resources": "V1ResourceRequirements",
    "spec.template.spec.containers[].securityContext": "V1SecurityContext",
    "spec.template.spec.containers[].volumeMounts[]": "V1VolumeMount",
    "spec.template.spec.securityContext": "V1PodSecurityContext",
    "spec.template.spec.tolerations[]": "V1Toleration",
    "spec.template.spec.volumes[]": "V1Volume",
}


@pytest.mark.parametrize(("path", "kind"), KINDS.items())
def test_known_fields_are_those_of_the_official_client(path: str, kind: str) -> None:
    assert set(getattr(models, kind).attribute_map.values()) <= set(FIELDS[path].split())
    assert {name for name in FIELDS if "metadata" not in name} - KINDS.keys() == {""}

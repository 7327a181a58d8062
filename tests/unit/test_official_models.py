"""Models of the official Python client are accepted wherever a parameter takes a dict."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client as k8s

from airflow_provider_gangjobs.gang.client_models import LISTS, MODELS, convert_parameter
from airflow_provider_gangjobs.gang.identity import Claim, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.render.job_manifest import render_job
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

ATTEMPT = build_attempt(TaskKey("dag", "run", "train"), Claim("claim"), namespace="team", number=0)
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data-1"}}
TOLERATION = {"key": "gpu", "operator": "Exists"}
CONTAINER = {"name": "main", "image": "trainer:1"}

EQUAL = [
    ("env", [k8s.V1EnvVar(name="A", value="1")], [{"name": "A", "value": "1"}]),
    (
        "env",
        {"KEY": k8s.V1EnvVarSource(secret_key_ref=k8s.V1SecretKeySelector(name="s", key="k"))},
        {"KEY": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}},
    ),
    (
        "env_from",
        [k8s.V1EnvFromSource(config_map_ref=k8s.V1ConfigMapEnvSource(name="settings"))],
        [{"configMapRef": {"name": "settings"}}],
    ),
    ("resources", k8s.V1ResourceRequirements(requests={"cpu": "4"}), {"requests": {"cpu": "4"}}),
    (
        "volumes",
        [
            k8s.V1Volume(
                name="data",
                persistent_volume_claim=k8s.V1PersistentVolumeClaimVolumeSource(claim_name="data-1"),
            )
        ],
        [CLAIM],
    ),
    ("volumes", [{"name": "data", "emptyDir": k8s.V1EmptyDirVolumeSource()}], [{"name": "data", "emptyDir": {}}]),
    ("volume_mounts", (k8s.V1VolumeMount(name="data", mount_path="/data"),), [{"name": "data", "mountPath": "/data"}]),
    ("tolerations", [k8s.V1Toleration(key="gpu", operator="Exists"), TOLERATION], [TOLERATION, TOLERATION]),
    ("image_pull_secrets", [k8s.V1LocalObjectReference(name="registry"), "other"], ["registry", "other"]),
    ("image_pull_secrets", [{"name": "registry"}, "other"], ["registry", "other"]),
    ("security_context", k8s.V1PodSecurityContext(run_as_user=1000), {"runAsUser": 1000}),
    (
        "affinity",
        k8s.V1Affinity(node_affinity=k8s.V1NodeAffinity()),
        {"nodeAffinity": {}},
    ),
    (
        "pod_overrides",
        k8s.V1PodSpec(containers=[k8s.V1Container(name="main")]),
        {"spec": {"containers": [{"name": "main"}]}},
    ),
    (
        "pod_overrides",
        k8s.V1Pod(metadata=k8s.V1ObjectMeta(labels={"a": "b"}), spec=k8s.V1PodSpec(containers=[])),
        {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}},
    ),
    (
        "pod_overrides",
        {"spec": {"tolerations": [k8s.V1Toleration(key="gpu", operator="Exists")]}},
        {"spec": {"tolerations": [TOLERATION]}},
    ),
]


@pytest.mark.parametrize(("parameter", "model", "plain"), EQUAL, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(EQUAL)])
def test_spec_with_models_is_the_spec_with_dicts(parameter: str, model: Any, plain: Any) -> None:
    given, expected = (GangSpec(image="trainer:1", **{parameter: value}) for value in (model, plain))

    assert given == expected
    assert given.hash == expected.hash


@pytest.mark.parametrize("kind", [k8s.V1Pod, k8s.V1PodTemplateSpec])
def test_model_of_a_pod_is_the_manifest_of_a_gang(kind: Any) -> None:
    pod = kind(
        metadata=k8s.V1ObjectMeta(name="ignored", labels={"team": "vision"}),
        spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base", image="trainer:2")]),
    )
    spec = GangSpec(manifest=pod, workers=3, command=["train"])

    assert validate(spec) == ()
    job = render_job(spec, ATTEMPT, PlacementDecision(Placement.BASIC, "off"), None)
    template = job["spec"]["template"]
    assert (job["spec"]["completions"], template["spec"]["restartPolicy"]) == (3, "Never")
    assert template["metadata"]["labels"]["team"] == "vision"
    (container,) = template["spec"]["containers"]
    assert (container["name"], container["image"], container["command"]) == ("base", "trainer:2", ["train"])
    assert "ignored" not in job["metadata"]["name"]


def test_whole_job_may_be_a_model() -> None:
    template = k8s.V1PodTemplateSpec(spec=k8s.V1PodSpec(containers=[k8s.V1Container(**CONTAINER)]))
    spec = GangSpec(manifest=k8s.V1Job(spec=k8s.V1JobSpec(template=template)), workers=3)

    assert validate(spec) == ()
    job = render_job(spec, ATTEMPT, PlacementDecision(Placement.BASIC, "off"), None)
    assert job["spec"]["parallelism"] == 3
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "trainer:1"


WRONG = [
    ("volumes", [k8s.V1VolumeMount(name="data", mount_path="/data")], "V1VolumeMount", "V1Volume"),
    ("env", [k8s.V1EnvFromSource()], "V1EnvFromSource", "V1EnvVar"),
    ("resources", k8s.V1Affinity(), "V1Affinity", "V1ResourceRequirements"),
    ("security_context", k8s.V1SecurityContext(), "V1SecurityContext", "V1PodSecurityContext"),
    ("manifest", k8s.V1PodSpec(containers=[]), "V1PodSpec", "V1Job"),
    ("pod_overrides", k8s.V1Container(name="main"), "V1Container", "V1PodTemplateSpec"),
    ("image_pull_secrets", [k8s.V1SecretReference(name="s")], "V1SecretReference", "V1LocalObjectReference"),
]


@pytest.mark.parametrize(("parameter", "value", "given", "wanted"), WRONG, ids=[f"{w[0]}-{w[2]}" for w in WRONG])
def test_model_of_a_wrong_kind_is_refused_with_both_kinds(parameter: str, value: Any, given: str, wanted: str) -> None:
    problems = validate(GangSpec(image="trainer:1", **{parameter: value}))

    messages = [str(problem) for problem in problems if problem.path.startswith(parameter)]
    assert any(f"a {given}" in message and wanted in message for message in messages), problems
    assert len(messages) == 1


ITEMS = {
    "env": k8s.V1EnvVar(name="A"),
    "env_from": k8s.V1EnvFromSource(),
    "tolerations": k8s.V1Toleration(),
    "volumes": k8s.V1Volume(name="a"),
    "volume_mounts": k8s.V1VolumeMount(name="a", mount_path="/a"),
    "image_pull_secrets": k8s.V1LocalObjectReference(),
}


@pytest.mark.parametrize("parameter", sorted(LISTS))
def test_model_in_the_place_of_a_list_is_refused(parameter: str) -> None:
    kind = type(ITEMS[parameter]).__name__
    (problem,) = validate(GangSpec(image="trainer:1", **{parameter: ITEMS[parameter]}))

    assert str(problem) == f"{parameter}: is a {kind}. Give a list, whose items are {kind} or dict."


def test_model_is_converted_at_any_depth_and_in_any_place() -> None:
    overrides = {"spec": {"newField": [k8s.V1Toleration(key="gpu")]}}
    assert GangSpec(image="i", pod_overrides=overrides).pod_overrides == {"spec": {"newField": [{"key": "gpu"}]}}


def test_container_of_the_overrides_that_is_not_the_one_of_the_ranks_is_named() -> None:
    overrides = k8s.V1PodSpec(containers=[k8s.V1Container(name="base")])
    (problem,) = validate(GangSpec(image="trainer:1", pod_overrides=overrides))
    assert "name the container main if you mean that of the rank" in str(problem)


@pytest.mark.parametrize("parameter", MODELS)
@pytest.mark.parametrize("value", [None, "text", {"a": [1]}, [{"a": "b"}], ()], ids=str)
def test_value_without_models_stays_the_same_object(parameter: str, value: Any) -> None:
    assert convert_parameter(parameter, value) is value


def test_templates_in_models_are_rendered() -> None:
    task = GangJobOperator(
        task_id="train",
        image="trainer:1",
        env=[k8s.V1EnvVar(name="DAY", value="{{ day }}")],
        volumes=[k8s.V1Volume(name="data", host_path=k8s.V1HostPathVolumeSource(path="/data/{{ day }}"))],
    )

    task.render_template_fields({"day": "2026-01-31"})  # type: ignore[arg-type]

    assert task.env == [{"name": "DAY", "value": "2026-01-31"}]
    assert task.volumes == [{"name": "data", "hostPath": {"path": "/data/2026-01-31"}}]

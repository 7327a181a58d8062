"""The Job that is rendered from a spec."""

import copy
import json

import pytest

from airflow_provider_gangjobs.gang.identity import Claim, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.render.job_manifest import render_files, render_job, render_service
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.render.user_manifest import requested_name, requested_namespace
from airflow_provider_gangjobs.gang.schedulers.workload_api import find_dialect
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous

KEY = TaskKey("etl", "run", "train")
ATTEMPT = build_attempt(KEY, Claim("ti-1"), namespace="ml", number=1)
GANG = PlacementDecision(Placement.GANG, "v1beta1")
OFF = PlacementDecision(Placement.OFF)

MANIFEST = """
apiVersion: batch/v1
kind: Job
metadata:
  name: brought
  namespace: team
  labels: {team: vision}
  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: o, uid: u}]
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  ttlSecondsAfterFinished: 60
  podFailurePolicy: {rules: []}
  template:
    metadata:
      labels: {app: trainer}
      finalizers: [example.org/keep]
    spec:
      nodeSelector: {zone: a}
      initContainers:
      - {name: prepare, image: "tool:1"}
      containers:
      - name: trainer
        image: trainer:1
        args: ["--slow"]
        env:
        - {name: A, value: "1"}
        - {name: B, value: "2"}
        volumeMounts: [{name: data, mountPath: /data}]
      - {name: sidecar, image: "side:1", terminationMessagePath: /tmp/end}
      volumes: [{name: data, emptyDir: {}}]
"""


def job_of(spec, decision=OFF):
    return render_job(spec, ATTEMPT, decision, find_dialect(decision.detail))


def pod_of(spec):
    return job_of(spec)["spec"]["template"]["spec"]


def env_of(container):
    return {item["name"]: item.get("value") for item in container["env"]}


def test_four_workers_are_an_indexed_job_that_waits():
    spec = job_of(GangSpec(image="trainer:1", workers=4), GANG)["spec"]
    del spec["template"]
    assert spec == {
        "suspend": True,
        "parallelism": 4,
        "completions": 4,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": 7 * 24 * 3600,
    }


def test_job_has_the_labels_of_its_task():
    spec = GangSpec(image="trainer:1", workers=4, labels={"team": "vision"})
    metadata = job_of(spec, GANG)["metadata"]
    ours = {
        "gangjobs.airflow/gang": ATTEMPT.name,
        "gangjobs.airflow/task": KEY.digest,
        "gangjobs.airflow/attempt": "1",
    }
    assert metadata["labels"] == {"team": "vision", **ours}
    assert metadata["annotations"] == {
        "gangjobs.airflow/trigger-id": ATTEMPT.submission_id,
        "gangjobs.airflow/spec-hash": spec.hash,
        "gangjobs.airflow/spec-fields": json.dumps(spec.field_digests, separators=(",", ":"), sort_keys=True),
        "gangjobs.airflow/claim": "ti-1",
        "gangjobs.airflow/gang": "gang:v1beta1",
        "gangjobs.airflow/task": KEY.to_json(),
    }
    assert (metadata["name"], metadata["namespace"]) == (ATTEMPT.name, "ml")


def test_pods_are_held_and_labelled():
    metadata = job_of(GangSpec(image="trainer:1", labels={"team": "vision"}))["spec"]["template"]["metadata"]
    assert metadata["finalizers"] == ["gangjobs.airflow/harvest"]
    assert metadata["labels"]["gangjobs.airflow/gang"] == ATTEMPT.name
    assert metadata["labels"]["team"] == "vision"
    assert metadata["annotations"] == {"kubectl.kubernetes.io/default-container": "main"}


def test_pods_are_linked_only_in_a_gang():
    spec = GangSpec(image="trainer:1", workers=4)
    link = {"podGroupName": ATTEMPT.name}
    assert job_of(spec, GANG)["spec"]["template"]["spec"]["schedulingGroup"] == link
    assert "schedulingGroup" not in pod_of(spec)


def test_named_parameters_make_the_container():
    spec = GangSpec(
        image="trainer:1",
        command=["python"],
        args=["train.py"],
        env={"A": "1", "S": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}},
        resources={"cpu": 2, "nvidia.com/gpu": 1},
        working_dir="/work",
        rendezvous=False,
    )
    (container,) = pod_of(spec)["containers"]
    amounts = {"cpu": "2", "nvidia.com/gpu": "1"}
    assert container == {
        "name": "main",
        "image": "trainer:1",
        "command": ["python"],
        "args": ["train.py"],
        "workingDir": "/work",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": amounts, "limits": amounts},
        "env": [
            {"name": "GANG_RESULT_PATH", "value": "/dev/termination-log"},
            {"name": "GANG_ATTEMPT", "value": "1"},
            {"name": "GANG_SIZE", "value": "1"},
            {"name": "A", "value": "1"},
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
    }


def test_named_parameters_make_the_pod():
    spec = GangSpec(
        image="a",
        priority_class="high",
        service_account="robot",
        node_selector={"gpu": "yes"},
        tolerations=[{"operator": "Exists"}],
        image_pull_secrets=["registry"],
        termination_grace_s=5,
        security_context={"runAsUser": 1000},
    )
    pod = pod_of(spec)
    del pod["containers"]
    assert pod == {
        "priorityClassName": "high",
        "serviceAccountName": "robot",
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "terminationGracePeriodSeconds": 5,
        "securityContext": {"runAsUser": 1000},
        "restartPolicy": "Never",
    }


def test_requests_and_limits_may_differ():
    resources = {"requests": {"cpu": 1}, "limits": {"cpu": "2"}}
    (container,) = pod_of(GangSpec(image="a", resources=resources))["containers"]
    assert container["resources"] == {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}


def test_manifest_is_kept_where_nothing_overrides_it():
    job = job_of(GangSpec(manifest=MANIFEST))
    assert job["metadata"]["labels"]["team"] == "vision"
    assert job["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}]
    assert (job["spec"]["parallelism"], job["spec"]["ttlSecondsAfterFinished"]) == (2, 60)
    assert job["spec"]["podFailurePolicy"] == {"rules": []}
    template = job["spec"]["template"]
    assert template["metadata"]["finalizers"] == ["example.org/keep", "gangjobs.airflow/harvest"]
    assert template["metadata"]["labels"]["app"] == "trainer"
    assert template["spec"]["nodeSelector"] == {"zone": "a"}


def test_parameters_override_the_manifests_first_container():
    spec = GangSpec(
        manifest=MANIFEST,
        image="trainer:2",
        workers=8,
        env={"B": "3", "C": "4"},
        volumes=[{"name": "data", "emptyDir": {"medium": "Memory"}}, {"name": "more", "emptyDir": {}}],
        volume_mounts=[{"name": "more", "mountPath": "/more"}],
    )
    job = job_of(spec)
    pod = job["spec"]["template"]["spec"]
    trainer, sidecar = pod["containers"]
    assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (8, 8)
    assert (trainer["image"], sidecar["image"]) == ("trainer:2", "side:1")
    assert [item["name"] for item in trainer["env"]][-3:] == ["A", "B", "C"]
    assert env_of(trainer)["B"] == "3"
    assert [mount["mountPath"] for mount in trainer["volumeMounts"]] == ["/data", "/more"]
    assert pod["volumes"] == [{"name": "data", "emptyDir": {"medium": "Memory"}}, {"name": "more", "emptyDir": {}}]


def test_new_command_drops_the_manifests_args():
    trainer = pod_of(GangSpec(manifest=MANIFEST, command=["true"]))["containers"][0]
    assert trainer["command"] == ["true"]
    assert "args" not in trainer


def test_overrides_are_merged_by_name_and_null_removes():
    overrides = {
        "metadata": {"labels": {"extra": "1"}},
        "spec": {
            "nodeSelector": None,
            "containers": [{"name": "sidecar", "image": "side:2"}],
            "volumes": [{"name": "data", "$patch": "delete"}],
        },
    }
    template = job_of(GangSpec(manifest=MANIFEST, pod_overrides=overrides, rendezvous=False))["spec"]["template"]
    assert template["metadata"]["labels"]["extra"] == "1"
    assert "nodeSelector" not in template["spec"]
    assert [container["image"] for container in template["spec"]["containers"]] == ["trainer:1", "side:2"]
    assert template["spec"]["volumes"] == []


def test_every_container_knows_the_gang():
    spec = GangSpec(manifest=MANIFEST, files={"a.txt": "x"})
    pod = pod_of(spec)
    for container in [*pod["initContainers"], *pod["containers"]]:
        known = {"GANG_ATTEMPT": "1", "GANG_SIZE": "2", "WORLD_SIZE": "2"}
        assert known.items() <= env_of(container).items()
        assert env_of(container)["GANG_FILES"] == "/gang/files"
        assert container["volumeMounts"][-1] == {"name": "gang-files", "mountPath": "/gang/files", "readOnly": True}
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_result_path_is_the_containers_own():
    trainer, sidecar = pod_of(GangSpec(manifest=MANIFEST))["containers"]
    assert env_of(trainer)["GANG_RESULT_PATH"] == "/dev/termination-log"
    assert env_of(sidecar)["GANG_RESULT_PATH"] == "/tmp/end"


def test_variables_of_the_user_can_refer_to_those_of_the_provider():
    (container,) = pod_of(GangSpec(image="a", workers=2, env={"ME": "rank $(RANK)"}))["containers"]
    names = [item["name"] for item in container["env"]]
    assert names.index("RANK") < names.index("ME")


def test_files_are_a_config_map_of_the_job():
    spec = GangSpec(image="a", files={"train.py": "pass\n"})
    config_map = render_files(spec, ATTEMPT, "job-uid")
    assert config_map is not None
    assert (config_map["data"], config_map["immutable"]) == ({"train.py": "pass\n"}, True)
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    (volume,) = pod_of(spec)["volumes"]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    assert render_files(GangSpec(image="a"), ATTEMPT, "job-uid") is None


def test_service_is_named_like_the_pods_subdomain():
    spec = GangSpec(image="a", workers=2, rendezvous=Rendezvous(7))
    service = render_service(spec, ATTEMPT, "job-uid")
    assert service is not None
    pod = pod_of(spec)
    assert service["metadata"]["name"] == pod["subdomain"] == ATTEMPT.name
    assert env_of(pod["containers"][0])["MASTER_ADDR"] == f"{ATTEMPT.name}-0.{ATTEMPT.name}"


def test_subdomain_of_the_user_is_replaced_by_the_service_of_the_gang():
    spec = GangSpec(image="a", workers=2, pod_overrides={"spec": {"subdomain": "peers"}})
    assert render_service(spec, ATTEMPT, "job-uid") is not None
    assert pod_of(spec)["subdomain"] == ATTEMPT.name
    assert env_of(pod_of(spec)["containers"][0])["MASTER_ADDR"] == f"{ATTEMPT.name}-0.{ATTEMPT.name}"


def test_one_rank_needs_no_service():
    assert render_service(GangSpec(image="a"), ATTEMPT, "job-uid") is None


LIMITS = {
    "assembly and run": (
        {"assemble_timeout_s": 60, "run_timeout_s": 1.5},
        662,
        "assemble_timeout (60 s) and run_timeout (1.5 s)",
    ),
    "the try": ({"execution_timeout_s": 90.0}, 690, "execution_timeout (90 s)"),
    "the earlier one": (
        {"assemble_timeout_s": 60, "run_timeout_s": 60, "execution_timeout_s": 100},
        700,
        "execution_timeout (100 s)",
    ),
    "assembly may take any time": ({"run_timeout_s": 60}, None, None),
}


@pytest.mark.parametrize(("limits", "seconds", "source"), LIMITS.values(), ids=LIMITS)
def test_time_limit_of_the_job_comes_from_the_limits_of_the_task(limits, seconds, source):
    job = job_of(GangSpec(image="a", **limits))
    assert job["spec"].get("activeDeadlineSeconds") == seconds
    assert job["metadata"]["annotations"].get("gangjobs.airflow/time-limit") == source


def test_manifests_own_deadline_stands():
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"activeDeadlineSeconds": 5}}
    job = job_of(GangSpec(manifest=manifest, image="a", assemble_timeout_s=60, run_timeout_s=60))
    assert job["spec"]["activeDeadlineSeconds"] == 5
    assert "gangjobs.airflow/time-limit" not in job["metadata"]["annotations"]


def test_job_without_a_gang_keeps_the_shape_of_the_manifest():
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 3, "completionMode": "NonIndexed"}}
    spec = job_of(GangSpec(manifest=manifest, image="a", gang="off"))["spec"]
    assert (spec["parallelism"], spec["completionMode"]) == (3, "NonIndexed")
    assert not {"completions", "backoffLimit"} & set(spec)


def test_elastic_minimum_reaches_the_group():
    spec = GangSpec(image="a", workers=4, min_workers=2)
    job = render_job(spec, ATTEMPT, PlacementDecision(Placement.GANG, "job-scheduling"), find_dialect("job-scheduling"))
    assert job["spec"]["scheduling"]["schedulingPolicy"] == {"gang": {"minCount": 2}}


def test_rendering_does_not_change_its_arguments():
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"template": {"spec": {"containers": [{"name": "a"}]}}},
    }
    spec = GangSpec(manifest=manifest, image="a", workers=2, files={"f": "x"}, labels={"a": "b"})
    before = copy.deepcopy(spec)
    assert job_of(spec, GANG) == job_of(spec, GANG)
    assert spec == before


@pytest.mark.parametrize(
    ("spec", "slug", "namespace"),
    [
        (GangSpec(manifest=MANIFEST), "brought", "team"),
        (GangSpec(manifest=MANIFEST, name="mine", namespace="ours"), "mine", "ours"),
        (GangSpec(image="a"), None, None),
    ],
    ids=["manifest", "parameters first", "neither"],
)
def test_name_and_namespace_come_from_parameters_then_manifest(spec, slug, namespace):
    assert (requested_name(spec), requested_namespace(spec)) == (slug, namespace)

"""The Job that is rendered from a spec, its sidecars, and its place for checkpoints."""

from __future__ import annotations

import copy
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.gang.checkpoints import CheckpointPlace, folder_of, place_of, to_text
from airflow_provider_gangjobs.gang.identity import Claim, OperationKey, TaskKey, build_attempt, digest_of
from airflow_provider_gangjobs.gang.outcome.end_reason import reason_of_end
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind, outcome_of
from airflow_provider_gangjobs.gang.preview import CHECKPOINT_DIGEST, preview
from airflow_provider_gangjobs.gang.record import Record
from airflow_provider_gangjobs.gang.render.job_manifest import render_files, render_job, render_service
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.render.user_manifest import requested_name, requested_namespace
from airflow_provider_gangjobs.gang.schedulers import find_dialect
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous
from airflow_provider_gangjobs.gang.state.phase import Phase, Status, judge, phase_of
from airflow_provider_gangjobs.gang.state.pods import (
    SIDECAR_GRACE,
    PodIndex,
    decide_end,
    end_due,
    may_end_by_main,
    read_rules,
)
from airflow_provider_gangjobs.gang.state.stopped import BY_FAILURE, BY_SUCCESS, Stopped
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.parameters.checks import spec_problems
from tests.unit.builders import REF, at, job, pod

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.pods import JobRules
    from tests.unit.builders import JobBuilder, PodBuilder


# -- The Job that is rendered from a spec ----------------------------------------------------------------------------

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
    record = Record(
        submission_id=ATTEMPT.submission_id,
        task=KEY,
        spec_hash=spec.hash,
        fields=spec.field_digests,
        placement="gang:v1beta1",
    )
    assert metadata["annotations"] == {
        "gangjobs.airflow/record": record.to_text(),
        "gangjobs.airflow/claim": '{"id":"ti-1"}',
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


def test_service_publishes_ranks_before_they_are_ready():
    service = render_service(GangSpec(image="a", workers=2, rendezvous=Rendezvous(1234)), ATTEMPT, "job-uid")
    assert service is not None
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"gangjobs.airflow/gang": ATTEMPT.name},
        "ports": [{"name": "rendezvous", "port": 1234}],
    }
    assert service["metadata"]["ownerReferences"][0]["uid"] == "job-uid"


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
    "assembly may take any time": ({"run_timeout_s": 60}, None, ""),
}


@pytest.mark.parametrize(("limits", "seconds", "source"), LIMITS.values(), ids=LIMITS)
def test_time_limit_of_the_job_comes_from_the_limits_of_the_task(limits, seconds, source):
    job = job_of(GangSpec(image="a", **limits))
    assert job["spec"].get("activeDeadlineSeconds") == seconds
    assert read_job(job).claim.time_limit == source


def test_manifests_own_deadline_stands():
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"activeDeadlineSeconds": 5}}
    job = job_of(GangSpec(manifest=manifest, image="a", assemble_timeout_s=60, run_timeout_s=60))
    assert job["spec"]["activeDeadlineSeconds"] == 5
    assert read_job(job).claim.time_limit == ""


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


# -- The end of a gang whose main containers have ended while other containers keep its pods running -----------------


def rules(*containers: str, **spec: Any) -> JobRules:
    template = {"spec": {"containers": [{"name": name} for name in containers or ("main",)]}}
    return read_rules([{"spec": {"completionMode": "Indexed", "backoffLimit": 0, "template": template, **spec}}])


def rank(number: int) -> PodBuilder:
    return pod(f"p{number}").rank(number).on("n")


def ended(number: int, when: float = 40, exit_code: int = 0, **fields: Any) -> PodBuilder:
    return rank(number).main_ended(when, exit_code, **fields)


ALWAYS = {"restartPolicy": "Always"}
RULES = {"restartPolicyRules": [{"action": "Restart"}]}
COUNTED = job(2).resumed(3).counts(succeeded=1, completedIndexes="0")
PLAIN = {"backoffLimit": 1}
POLICY = {"podFailurePolicy": {"rules": []}}

ENDS: dict[str, tuple[JobBuilder, list[PodBuilder], JobRules, tuple[str, float] | None]] = {
    "all have succeeded": (job(2).resumed(3), [ended(0), ended(1, 50)], rules(), ("succeeded", 50)),
    "one pod has succeeded": (job(2).resumed(3), [rank(0).succeeded(), ended(1)], rules(), ("succeeded", 40)),
    "one rank was counted": (COUNTED, [ended(1)], rules(), ("succeeded", 40)),
    "one runs": (job(2).resumed(3), [ended(0), rank(1).running()], rules(), None),
    "one is missing": (job(2).resumed(3), [ended(0)], rules(), None),
    "no sidecar": (job(2).resumed(3), [rank(0).succeeded(), rank(1).running()], rules(), None),
    "one has failed": (job(2).resumed(3), [ended(0, 60), ended(1, 50, 3)], rules(), ("failed", 50)),
    "one has failed, one runs": (job(2).resumed(3), [rank(0).running(), ended(1, 50, 3)], rules(), ("failed", 50)),
    "one has failed, with retries": (job(2).resumed(3), [rank(0).running(), ended(1, 50, 3)], rules(**PLAIN), None),
    "one has failed, with a policy": (job(2).resumed(3), [rank(0).running(), ended(1, 50, 3)], rules(**POLICY), None),
    "succeeded with retries": (job(1).resumed(3), [ended(0)], rules(**PLAIN), ("succeeded", 40)),
    "a container of the template runs": (
        job(1).resumed(3),
        [ended(0, kept_by="upload")],
        rules("main", "upload"),
        None,
    ),
    "one of two runs on because of the template": (
        job(2).resumed(3),
        [ended(0), ended(1, kept_by="upload")],
        rules("main", "upload"),
        None,
    ),
    "the kubelet restarts the main container": (job(1).resumed(3), [ended(0, 40, 3, **ALWAYS)], rules(), None),
    "a rule may restart the main container": (job(1).resumed(3), [ended(0, **RULES)], rules(), None),
    "a pod is being deleted": (job(1).resumed(3), [ended(0).deleted(60)], rules(), None),
    "no ranks": (job(1).resumed(3), [ended(0)], rules(completionMode="NonIndexed"), None),
}


@pytest.mark.parametrize(("built", "pods", "of_jobs", "end"), ENDS.values(), ids=ENDS)
def test_gang_ends_by_its_main_containers(built, pods, of_jobs, end):
    views = [one.view() for one in pods]
    found = decide_end(built.read(), views, of_jobs)
    assert (found and (found.has_succeeded, found.due)) == (end and (end[0] == "succeeded", at(end[1]) + SIDECAR_GRACE))
    assert end_due(built.read(), PodIndex(REF, views), of_jobs) == (found and found.due)


@pytest.mark.parametrize(
    "decided",
    [
        job(1).resumed(3).suspended(50),
        job(1).resumed(3).decided("FailureTarget", 50),
        job(1).resumed(3).complete(50),
        job(1).resumed(3).deleted(50),
        job(1).resumed(3).stopped(),
        job(1).resumed(3).stopped(BY_SUCCESS),
        job(1),
    ],
    ids=["suspended", "going to fail", "complete", "being deleted", "stopped", "marked", "not started"],
)
def test_only_a_running_job_is_ended(decided):
    assert may_end_by_main(job(1).resumed(3).read())
    assert not may_end_by_main(decided.read())


def marked(end: Stopped) -> JobBuilder:
    return job(2).resumed(3).stopped(end)


def test_success_of_the_main_containers_is_announced_until_the_job_has_failed():
    running = marked(BY_SUCCESS).read()
    assert (phase_of(running), judge(running, REF), running.is_over) == (Phase.FINISHING, None, False)
    failed = marked(BY_SUCCESS).counts(failed=2).failed(80, "DeadlineExceeded").read()
    verdict = judge(failed, REF)
    assert verdict is not None
    assert (verdict.status, verdict.completed_indexes, verdict.at) == (Status.SUCCEEDED, "0-1", at(80))
    assert (failed.status.succeeded, failed.status.failed, failed.failed_condition) == (2, 0, None)


def test_failure_of_a_main_container_is_no_failure_by_a_deadline():
    assert phase_of(marked(BY_FAILURE).read()) is Phase.FINISHING
    verdict = judge(marked(BY_FAILURE).counts(failed=2).failed(80, "DeadlineExceeded").read(), REF)
    assert verdict is not None
    assert (verdict.status, verdict.reason) == (Status.FAILED, "MainContainerFailed")


OUTCOMES = {
    "runs on": (ended(0), OutcomeKind.SUCCEEDED, 0, ""),
    "runs on after a failure": (ended(0, 40, 3), OutcomeKind.FAILED, 3, ""),
    "was deleted": (ended(0).deleted(60), OutcomeKind.SUCCEEDED, 0, ""),
    "was deleted before its end": (ended(0, 70).deleted(60), OutcomeKind.DELETED, 0, ""),
    "was evicted": (ended(0).disrupted("EvictionByEvictionAPI", 60).deleted(60), OutcomeKind.EVICTED, 0, ""),
}


@pytest.mark.parametrize(("seen", "kind", "exit_code", "container"), OUTCOMES.values(), ids=OUTCOMES)
def test_main_container_that_ended_first_decides_the_outcome(seen, kind, exit_code, container):
    outcome = outcome_of(seen.view())
    assert (outcome.outcome, outcome.exit_code, outcome.container) == (kind, exit_code, container)
    assert outcome.finished == at(70 if kind is OutcomeKind.DELETED else 40)


def test_sidecar_that_fails_by_itself_fails_the_rank():
    seen = rank(0).succeeded(40).sidecar("istio-proxy", 1, when=50).phase("Failed")
    seen.obj["spec"]["restartPolicy"] = "Never"
    outcome = outcome_of(seen.view())
    assert (outcome.outcome, outcome.exit_code, outcome.container) == (OutcomeKind.FAILED, 1, "istio-proxy")


def test_deletion_of_a_pod_after_its_rank_had_succeeded_is_the_cause_of_the_failure():
    deleted = rank(1).succeeded(40).sidecar("istio-proxy", 143, when=61).phase("Failed").deleted(60)
    deleted.obj["spec"]["restartPolicy"] = "Never"
    peer = rank(0).failed(143, when=62).deleted(61)
    verdict = judge(job(2).resumed(3).failed(60).read(), REF)
    assert verdict is not None
    found = reason_of_end(verdict, [outcome_of(deleted.view()), outcome_of(peer.view())])
    assert found.code == "PodDeleted"
    assert found.summary == (
        "rank 1 had its pod deleted after its main container had succeeded, before its other containers had "
        "ended on n; 1 other rank ended after it"
    )


# -- The place of checkpoints: its forms, the folder of a task, what the pods get, and what is refused ---------------

PLACE_KEY = TaskKey("train", "manual__2026-01-01T00:00:00+00:00", "fit", 2, "prod")
FOLDER = f"train/manual__2026-01-01T00:00:00+00:00/fit-2/installation-prod-{CHECKPOINT_DIGEST}"
UNSET = {"GANG_CHECKPOINT_DIR": "", "GANG_CHECKPOINT_URL": "", "GANG_KEEP_CHECKPOINTS": "1"}
"""Variables that `env_from` must not set."""
DISK = {"name": "disk", "hostPath": {"path": "/mnt"}}


def spec(checkpoints: Any, **parameters: Any) -> GangSpec:
    return GangSpec(image="i", command=["train"], workers=2, checkpoints=checkpoints, **parameters)


def pod_with_place(given: GangSpec) -> dict[str, Any]:
    template: dict[str, Any] = preview(given, PLACE_KEY)[0]["spec"]["template"]["spec"]
    return template


def variables_of(pod: dict[str, Any]) -> dict[str, str]:
    env = pod["containers"][0]["env"]
    return {item["name"]: item["value"] for item in env if "CHECKPOINT" in item["name"]}


FORMS: dict[str, tuple[Any, CheckpointPlace]] = {
    "a claim": ("pvc://data", CheckpointPlace(claim="data")),
    "a folder of a claim": ("pvc://data/a/b/", CheckpointPlace(claim="data", path="a/b")),
    "a mapping": ({"claim": "data", "path": "a/b"}, CheckpointPlace(claim="data", path="a/b")),
    "a mapping with a volume": ({"volume": "disk"}, CheckpointPlace(volume="disk")),
    "a path": ("/mnt/a/", CheckpointPlace(folder="/mnt/a")),
    "the URL of a path": ("file:///mnt/a", CheckpointPlace(folder="/mnt/a")),
    "an object store": ("s3://aws@bucket/a/", CheckpointPlace(url="s3://aws@bucket/a")),
}


@pytest.mark.parametrize(("given", "place"), FORMS.values(), ids=FORMS)
def test_form_of_a_place(given: Any, place: CheckpointPlace) -> None:
    assert place_of(to_text(given)) == place


def test_claim_is_mounted_and_each_rank_knows_the_folder_of_its_task() -> None:
    pod = pod_with_place(spec("pvc://data/a/b"))

    assert {"name": "gang-checkpoints", "persistentVolumeClaim": {"claimName": "data"}} in pod["volumes"]
    mount = {"name": "gang-checkpoints", "mountPath": "/gang/checkpoints", "subPath": "a/b"}
    assert mount in pod["containers"][0]["volumeMounts"]
    assert variables_of(pod) == {**UNSET, "GANG_CHECKPOINT_DIR": f"/gang/checkpoints/{FOLDER}"}


def test_volume_of_the_pods_is_mounted() -> None:
    pod = pod_with_place(spec("volume://disk", volumes=[DISK]))

    assert {"name": "disk", "mountPath": "/gang/checkpoints"} in pod["containers"][0]["volumeMounts"]
    assert [volume["name"] for volume in pod["volumes"]].count("disk") == 1


def test_object_store_is_named_by_its_url() -> None:
    url = f"s3://aws@bucket/a/{FOLDER}"
    assert variables_of(pod_with_place(spec("s3://aws@bucket/a"))) == {**UNSET, "GANG_CHECKPOINT_URL": url}


def test_folder_that_may_be_removed_is_marked() -> None:
    assert variables_of(pod_with_place(spec("pvc://data", keep_checkpoints=False)))["GANG_KEEP_CHECKPOINTS"] == "0"


def test_each_role_gets_the_place() -> None:
    role = {"image": "i", "command": ["train"]}
    given = GangSpec(roles={"leader": role, "worker": role}, checkpoints="pvc://data")
    jobs = [each for each in preview(given, PLACE_KEY) if each["kind"] == "Job"]

    folders = [variables_of(job["spec"]["template"]["spec"])["GANG_CHECKPOINT_DIR"] for job in jobs]
    assert folders == [f"/gang/checkpoints/{FOLDER}"] * 2


KEYS: list[TaskKey | OperationKey] = [
    TaskKey("a", "b", "c"),
    TaskKey("a", "b", "c", 0),
    TaskKey("a", "b", "c-0"),
    TaskKey("a", "b", "c", installation="prod"),
    TaskKey("a", "b", "installation-prod", installation="prod"),
    TaskKey("a", "b/c", "d"),
    TaskKey("a/b", "c", "d"),
    TaskKey("..", "b", "c"),
    TaskKey("a", "b", "\N{SNOWMAN}" * 250),
    TaskKey("a", "b", "\N{SNOWMAN}" * 250 + "2"),
    OperationKey("a/b/c"),
    OperationKey("b"),
    OperationKey("x" * 512),
]


def test_no_folder_is_that_of_another_key_or_in_it() -> None:
    folders = [folder_of(key.path, digest_of(key.digest)) + "/" for key in KEYS]

    assert not [(one, other) for one, other in permutations(folders, 2) if one.startswith(other)]
    assert not any(part in (".", "..") or len(part.encode()) > 128 for folder in folders for part in folder.split("/"))


def test_another_place_is_another_gang_and_keeping_the_folder_is_not() -> None:
    assert spec("pvc://data/a").hash != spec("pvc://data/b").hash
    assert spec({"claim": "data", "path": "a"}).hash == spec("pvc://data/a").hash
    assert spec("pvc://data", keep_checkpoints=False).hash == spec("pvc://data").hash


REFUSED: dict[str, tuple[GangSpec, str]] = {
    "a number": (spec(3), "names no place"),
    "a mapping with other keys": (spec({"pvc": "data"}), "names no place"),
    "a relative path": (spec("checkpoints"), "a relative path"),
    "the root": (spec("/"), "names no place"),
    "a name that no file system has": (spec(f"pvc://data/{'x' * 300}"), "with a name of 300 bytes"),
    "a long path": (spec("s3://bucket" + "/x" * 300), "of 611 characters"),
    "a path without a volume": (spec("/mnt"), "is on no volume of the ranks"),
    "a volume that the pods do not have": (spec("volume://disk"), "which the pods do not have"),
    "a volume that ends with its pod": (
        spec("volume://disk", volumes=[{"name": "disk", "emptyDir": {}}]),
        "of kind emptyDir, which cannot keep checkpoints",
    ),
    "a volume that is mounted read-only": (
        spec(
            "/mnt/a",
            volumes=[DISK],
            volume_mounts=[{"name": "disk", "mountPath": "/mnt", "readOnly": True}],
        ),
        "mounted read-only",
    ),
    "a path that leads out of the volume": (spec("pvc://data/../other"), "leads out of the volume"),
    "a claim that cannot exist": (spec("pvc://My_Data"), "Give the name of a PersistentVolumeClaim"),
    "a name of the provider": (
        spec("pvc://data", volumes=[{"name": "gang-checkpoints", "emptyDir": {}}]),
        "which holds the checkpoints",
    ),
    "a variable of the provider": (spec("pvc://data", env={"GANG_CHECKPOINT_DIR": "/mnt"}), "is set by the provider"),
    "no place to remove": (spec(None, keep_checkpoints=False), "is False without checkpoints"),
    "a removal that nobody can do": (
        spec("pvc://data", rendezvous=False, keep_checkpoints=False),
        "none of them knows when all have succeeded",
    ),
    "a removal by each of independent roles": (
        GangSpec(
            roles={name: {"image": "i", "command": ["train"]} for name in ("leader", "worker")},
            checkpoints="pvc://data",
            rendezvous=False,
            keep_checkpoints=False,
        ),
        "none of them knows when all have succeeded",
    ),
    "no command": (GangSpec(image="i", checkpoints="pvc://data"), "is missing with checkpoints"),
}


@pytest.mark.parametrize(("given", "problem"), REFUSED.values(), ids=REFUSED)
def test_place_that_cannot_be_used_is_refused(given: GangSpec, problem: str) -> None:
    assert problem in "\n".join(map(str, validate(given)))


@pytest.mark.parametrize("place", ["pvc://data", "volume://disk/a", "s3://bucket/a", {"claim": "data"}])
def test_place_that_can_be_used_has_no_problem(place: Any) -> None:
    assert validate(spec(place, volumes=[DISK])) == ()


@pytest.mark.parametrize(
    "parameters",
    [
        {"checkpoints": "volume://disk", "volumes": [{"name": "disk", "hostPath": {"path": "{{ params.folder }}"}}]},
        {"checkpoints": "/data", "volume_mounts": [{"name": "disk", "mountPath": "{{ params.mount }}"}]},
        {"checkpoints": "pvc://{{ params.claim }}/runs", "keep_checkpoints": False},
    ],
    ids=["volumes", "volume mounts", "checkpoints"],
)
def test_templates_leave_the_place_to_the_submission(parameters: dict[str, Any]) -> None:
    given = {"image": "i", "command": ["train"], "workers": 2, **parameters}

    assert spec_problems(given) == ()

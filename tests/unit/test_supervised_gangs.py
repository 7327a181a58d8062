"""The Job of a gang whose programs a supervisor restarts in their pods, and what is refused."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.preview import SUPERVISOR_KEY, preview
from airflow_provider_gangjobs.gang.render.files import FILES_BYTES_MAX, KEY_FILE, SCRIPT, supervisor_programs
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_RESTARTS, FILES_PATH
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

if TYPE_CHECKING:
    from pathlib import Path

KEY = TaskKey("dag", "run", "task")
PROGRAM = ["python", "train.py"]
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "template": {"spec": {"containers": [{"name": "trainer", "image": "a", "command": ["a"], "args": ["b"]}]}},
    },
}


def spec_of(**given: Any) -> GangSpec:
    return GangSpec(**{"image": "trainer:1", "workers": 3, "command": PROGRAM, "restarts": 2, **given})


def objects_of(spec: GangSpec, kind: str) -> list[dict[str, Any]]:
    return [one for one in preview(spec, KEY) if one["kind"] == kind]


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def env_of(container: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container["env"] if "value" in item}


def test_supervisor_runs_the_command_with_its_arguments() -> None:
    (job,) = objects_of(spec_of(args=["--rank", "$(RANK)"]), "Job")
    main = pod_of(job)["containers"][0]

    assert main["command"] == ["/bin/sh", "-c", SCRIPT, "gangjobs", *PROGRAM, "--rank", "$(RANK)"]
    assert "args" not in main
    assert {"name": "gang-run", "mountPath": "/gang/run"} in main["volumeMounts"]


def test_supervisor_has_its_variables() -> None:
    (job,) = objects_of(
        spec_of(no_restart_on_exit_codes=[3, 17], progress_timeout_s=90.5, termination_grace_s=5), "Job"
    )
    env, name = env_of(pod_of(job)["containers"][0]), job["metadata"]["name"]

    assert env["GANG_RESTARTS_MAX"] == "2"
    assert env["GANG_NO_RESTART_ON_EXIT_CODES"] == "3,17"
    assert env["GANG_PROGRESS_TIMEOUT_S"] == "90.5"
    assert env["GANG_STOP_GRACE_S"] == "5"
    assert env["GANG_SUPERVISOR_ADDRESS"] == f"{name}-0.{name}"
    assert job["metadata"]["annotations"][ANNOTATION_RESTARTS] == "together:2"


def test_files_of_the_supervisor_are_mounted_with_a_key() -> None:
    (files,) = objects_of(spec_of(files={"train.py": "pass\n"}), "ConfigMap")

    assert set(files["data"]) == {"train.py", KEY_FILE, *supervisor_programs()}
    assert files["data"][KEY_FILE] == SUPERVISOR_KEY


def test_service_has_the_port_of_the_supervisor() -> None:
    (service,) = objects_of(spec_of(), "Service")

    assert [port["port"] for port in service["spec"]["ports"]] == [29500, 29501]


def test_one_rank_restarts_as_a_whole_gang() -> None:
    (job,) = objects_of(spec_of(workers=1), "Job")

    assert job["metadata"]["annotations"][ANNOTATION_RESTARTS] == "together:2"


def test_ranks_without_a_rendezvous_restart_alone() -> None:
    spec = spec_of(rendezvous=False)
    (job,) = objects_of(spec, "Job")

    assert env_of(pod_of(job)["containers"][0])["GANG_SUPERVISOR_ADDRESS"] == ""
    assert job["metadata"]["annotations"][ANNOTATION_RESTARTS] == "alone:2"
    assert objects_of(spec, "Service") == []


def test_ranks_of_all_roles_have_supervisors_of_one_gang() -> None:
    roles = {"head": {"image": "a", "command": ["a"]}, "worker": {"image": "b", "command": ["b"], "workers": 2}}
    jobs = objects_of(GangSpec(roles=roles, restarts=1), "Job")
    mains = [pod_of(job)["containers"][0] for job in jobs]

    assert [main["command"][4:] for main in mains] == [["a"], ["b"]]
    assert len({env_of(main)["GANG_SUPERVISOR_ADDRESS"] for main in mains}) == 1
    assert [env_of(main)["GANG_RANK_OFFSET"] for main in mains] == ["0", "1"]


def test_roles_in_a_queue_have_supervisors() -> None:
    roles = {"head": {"image": "a", "command": ["a"]}, "worker": {"image": "b", "command": ["b"]}}
    (job_set,) = objects_of(GangSpec(roles=roles, restarts=1, queue_name="q"), "JobSet")

    name = job_set["metadata"]["name"]
    for role in job_set["spec"]["replicatedJobs"]:
        main = pod_of(role["template"])["containers"][0]
        assert env_of(main)["GANG_SUPERVISOR_ADDRESS"] == f"{name}-head-0-0.{name}"


def test_sidecars_and_init_containers_stay_as_they_are() -> None:
    more = [{"name": "side", "image": "s", "command": ["serve"]}]
    spec = spec_of(pod_overrides={"spec": {"containers": more, "initContainers": [{"name": "init", "image": "i"}]}})
    (job,) = objects_of(spec, "Job")
    _, side = pod_of(job)["containers"]

    assert side["command"] == ["serve"]
    assert "GANG_RESTARTS_MAX" not in env_of(side)
    assert "command" not in pod_of(job)["initContainers"][0]


def test_command_of_a_manifest_is_supervised() -> None:
    (job,) = objects_of(GangSpec(manifest=JOB, restarts=1), "Job")

    assert pod_of(job)["containers"][0]["command"][4:] == ["a", "b"]


@pytest.mark.parametrize("launch", ["plain", "torchrun", "shards", "mpi"])
def test_each_launcher_is_supervised(launch: str) -> None:
    secret = {"ssh_secret": "keys"} if launch == "mpi" else {}
    with DAG("d", schedule=None):
        task = GangJobOperator(
            task_id="t",
            image="i",
            command=PROGRAM,
            workers=2,
            restarts=1,
            launch=launch,
            **secret,  # type: ignore[arg-type]
        )
    (job,) = objects_of(task.gang_spec(), "Job")

    words = pod_of(job)["containers"][0]["command"]
    assert words[2] == SCRIPT
    assert words[-1] == "train.py"


def test_gang_without_restarts_has_no_supervisor() -> None:
    text = json.dumps(preview(spec_of(restarts=0, files={"a": "b"}), KEY))

    assert "supervisor" not in text
    assert "gang-run" not in text
    assert "GANG_RESTART" not in text


def test_restarts_belong_to_the_hash() -> None:
    assert len({spec_of().hash, spec_of(restarts=3).hash, spec_of(progress_timeout_s=5).hash}) == 3
    assert spec_of(restarts=0).hash == GangSpec(image="trainer:1", workers=3, command=PROGRAM).hash


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no command": (
        {"command": None},
        "command: is missing with restarts, and the provider does not know the entrypoint",
    ),
    "text": ({"restarts": "2"}, "restarts: is '2', not a whole number"),
    "negative": ({"restarts": -1}, "restarts: is -1. Give 0 or more"),
    "too many": ({"restarts": 1001}, "restarts: is 1001. Give at most 1000"),
    "codes without restarts": (
        {"restarts": 0, "no_restart_on_exit_codes": [3]},
        "no_restart_on_exit_codes: is given without restarts",
    ),
    "a code of success": ({"no_restart_on_exit_codes": [0]}, "no_restart_on_exit_codes: is [0], which are not all"),
    "fewer ranks": ({"min_workers": 2}, "min_workers: is 2 with restarts, and all 3 ranks restart together"),
    "the kubelet restarts": (
        {"pod_overrides": {"spec": {"restartPolicy": "OnFailure"}}, "workers": 1},
        "spec.template.spec.restartPolicy: is OnFailure with restarts",
    ),
    "the port": ({"rendezvous": Rendezvous(29501)}, "rendezvous.port: is 29501, where the supervisors listen"),
    "a file": ({"files": {KEY_FILE: "a"}}, f"files.{KEY_FILE}: is a file of the provider"),
    "a module for results": (
        {"files": {"gangjobs_result.py": "a"}},
        "files.gangjobs_result.py: is a file of the provider",
    ),
    "a variable": ({"env": {"GANG_RESTART": "1"}}, "env.GANG_RESTART: GANG_RESTART is set by the provider"),
    "a volume": ({"volumes": [{"name": "gang-run", "emptyDir": {}}]}, "spec.template.spec.volumes: has 'gang-run'"),
    "files that leave no room": ({"files": {"a": "x" * (FILES_BYTES_MAX - 10)}}, "files: have "),
    "no timeout": ({"progress_timeout_s": 0}, "progress_timeout_s: is 0 s"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_restarted_is_refused_with_a_cure(given: dict[str, Any], message: str) -> None:
    problems = [str(problem) for problem in validate(spec_of(**given))]

    assert any(problem.startswith(message) for problem in problems), problems


def test_manifest_without_a_command_is_refused_at_its_place() -> None:
    container = {"name": "trainer", "image": "a"}
    manifest = {**JOB, "spec": {**JOB["spec"], "template": {"spec": {"containers": [container]}}}}  # type: ignore[dict-item]
    (problem,) = validate(GangSpec(manifest=manifest, restarts=1))

    assert problem.path == "manifest.spec.template.spec.containers[0].command"


def test_dag_file_hears_that_ranks_would_restart_alone() -> None:
    with DAG("d", schedule=None), pytest.raises(InvalidGangSpec, match='give launch="shards"'):
        GangJobOperator(task_id="t", image="i", command=PROGRAM, workers=2, restarts=1, rendezvous=False)


def test_image_without_python_fails_with_a_sentence(tmp_path: Path) -> None:
    result = tmp_path / "result"
    environment = {"PATH": str(tmp_path), "GANG_RESULT_PATH": str(result), "GANG_FILES": FILES_PATH}

    ended = subprocess.run(["/bin/sh", "-c", SCRIPT, "gangjobs", "true"], env=environment, check=False, timeout=30)

    assert ended.returncode == 127
    assert json.loads(result.read_text())["error"].startswith("The image has no Python 3.8 or later")

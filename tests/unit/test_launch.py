"""Ways to launch a gang: shorthands, MPI, and how ranks find each other."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from airflow.providers.cncf.kubernetes.secret import Secret
from airflow.sdk import DAG, BaseOperator, ObjectStoragePath
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import V1KeyToPath, V1Secret

from airflow_provider_gangjobs.attempt.completion import fails_only_with
from airflow_provider_gangjobs.decorators.gang_job import GangJobDecoratedOperator
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.render.placement import Shape, rendezvous_of
from airflow_provider_gangjobs.gang.render.pod_template import RENDEZVOUS_ENV, env_of, user_template
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.parameters.task_parameters import TaskStorages

# -- Parameters that stand for other parameters: launch, secrets -----------------------------------------------------

POD = """
apiVersion: v1
kind: Pod
metadata: {name: ignored, labels: {team: vision}}
spec:
  containers: [{name: base, image: trainer:2}]
  nodeSelector: {disk: ssd}
"""
INDEX = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}}


def spec_of(**parameters: Any) -> Any:
    return GangJobOperator(task_id="t", **{"image": "i", **parameters}).gang_spec()


@pytest.mark.parametrize(
    ("command", "launched"),
    [
        (["train.py", "--epochs", "3"], ["torchrun", "train.py", "--epochs", "3"]),
        (["python", "train.py"], ["torchrun", "train.py"]),
        (["python3", "-m", "train"], ["torchrun", "-m", "train"]),
        (["python", "train"], ["torchrun", "train"]),
        (["python", "-u", "train.py"], ["torchrun", "--no-python", "python", "-u", "train.py"]),
        (["python"], ["torchrun", "--no-python", "python"]),
        (["./train", "--fast"], ["torchrun", "--no-python", "./train", "--fast"]),
    ],
)
def test_torchrun_runs_the_program_of_the_command(command: list[str], launched: list[str]) -> None:
    assert spec_of(launch="torchrun", workers=2, command=command).command == launched


SIDECAR = {"name": "side", "image": "s"}
EIGHT = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
GPUS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "1"),
    "no GPU": ({"resources": {"cpu": "4"}}, "1"),
    "GPUs": ({"resources": {"cpu": "4", "nvidia.com/gpu": 8}}, "8"),
    "limits": ({"resources": {"limits": {"amd.com/gpu": "2"}, "requests": {"cpu": "1"}}}, "2"),
    "a template of limits": ({"resources": {"limits": "{{ params.limits }}"}}, "1"),
    "a template": ({"resources": {"nvidia.com/gpu": "{{ params.gpus }}"}}, "1"),
    "a float": ({"resources": {"nvidia.com/gpu": 2.0}}, "2"),
    "parts of GPUs": ({"resources": {"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-2g.20gb": 1}}, "3"),
    "overrides": (
        {"pod_overrides": {"spec": {"containers": [SIDECAR, {"name": "main", **EIGHT}]}}},
        "8",
    ),
    "a manifest": ({"manifest": {"kind": "Pod", "spec": {"containers": [{"name": "a", **EIGHT}]}}}, "8"),
}


@pytest.mark.parametrize(("given", "processes"), GPUS.values(), ids=GPUS)
def test_torchrun_starts_a_process_for_each_gpu(given: dict[str, Any], processes: str) -> None:
    spec = spec_of(launch="torchrun", workers=2, command=["a.py"], **given)

    assert spec.env == {"PET_NPROC_PER_NODE": processes}


def test_torchrun_counts_the_gpus_of_a_rendered_template() -> None:
    task = GangJobOperator(
        task_id="t",
        image="i",
        launch="torchrun",
        workers=2,
        command=["a.py"],
        resources={"nvidia.com/gpu": "{{ params.gpus }}"},
    )
    task.render_template_fields({"params": {"gpus": "8"}})  # type: ignore[typeddict-item]

    assert task.gang_spec().env == {"PET_NPROC_PER_NODE": "8"}


def test_variable_that_the_user_sets_stays() -> None:
    by_name = spec_of(launch="torchrun", command=["a.py"], env={"PET_NPROC_PER_NODE": "3"})
    in_list = spec_of(launch="torchrun", command=["a.py"], env=[{"name": "PET_NPROC_PER_NODE", "value": "3"}])

    assert by_name.env == {"PET_NPROC_PER_NODE": "3"}
    assert in_list.env == [{"name": "PET_NPROC_PER_NODE", "value": "3"}]


def test_shards_have_an_index_and_a_count_and_no_rendezvous() -> None:
    spec = spec_of(launch="shards", workers=4, command=["a"])

    assert (spec.rendezvous, spec.env) == (False, {"SHARD_INDEX": INDEX, "SHARD_COUNT": "4"})


def test_shards_are_as_many_as_the_ranks_of_the_manifest() -> None:
    container = {"name": "rank", "image": "i", "command": ["a"]}
    job = {
        "completions": 8,
        "parallelism": 8,
        "completionMode": "Indexed",
        "template": {"spec": {"containers": [container]}},
    }

    spec = spec_of(image=None, launch="shards", manifest={"apiVersion": "batch/v1", "kind": "Job", "spec": job})

    assert spec.env["SHARD_COUNT"] == "8"


def test_plain_launch_changes_nothing() -> None:
    assert spec_of(launch="plain", command=["a"]).hash == spec_of(command=["a"]).hash


def test_manifest_may_be_a_pod() -> None:
    spec = spec_of(manifest=POD, image=None, workers=2)

    template = manifest_of(spec)["spec"]["template"]
    assert template["metadata"] == {"labels": {"team": "vision"}}
    assert template["spec"]["nodeSelector"] == {"disk": "ssd"}


def test_names_of_secrets_are_sources_of_the_environment() -> None:
    spec = spec_of(command=["a"], secrets=["s"], env_from=[{"configMapRef": {"name": "first"}}])

    assert spec.env_from == [
        {"configMapRef": {"name": "first"}},
        {"secretRef": {"name": "s"}},
    ]


def test_secret_objects_of_the_kubernetes_provider_are_accepted() -> None:
    secrets = [Secret("env", "TOKEN", "s", "token"), Secret("env", None, "all"), Secret("volume", "/keys", "k")]

    spec = spec_of(command=["a"], secrets=secrets)

    assert spec.env == {"TOKEN": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}}
    assert spec.env_from == [{"secretRef": {"name": "all"}}]
    assert spec.volumes == [{"name": "secret-k", "secret": {"secretName": "k"}}]
    assert spec.volume_mounts == [{"name": "secret-k", "mountPath": "/keys", "readOnly": True}]


def test_secret_object_without_a_key_gives_all_its_variables() -> None:
    assert spec_of(command=["a"], secrets=[Secret("env", "TOKEN", "s")]).env_from == [{"secretRef": {"name": "s"}}]


def test_items_of_a_secret_object_are_mounted() -> None:
    secret = Secret("volume", "/keys", "k", items=[V1KeyToPath(key="tls.key", path="key")])

    spec = spec_of(command=["a"], secrets=[secret])

    assert spec.volumes == [
        {"name": "secret-k", "secret": {"secretName": "k", "items": [{"key": "tls.key", "path": "key"}]}}
    ]


@pytest.mark.parametrize("names", [("k", "k"), ("tls.example.org", "tls"), ("s" * 60, "k")], ids=str)
def test_each_secret_object_has_a_volume_of_its_own(names: tuple[str, str]) -> None:
    spec = spec_of(command=["a"], secrets=[Secret("volume", f"/{at}", name) for at, name in enumerate(names)])

    assert [volume["secret"]["secretName"] for volume in spec.volumes] == [*names]
    assert [mount["name"] for mount in spec.volume_mounts] == [volume["name"] for volume in spec.volumes]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"launch": "shards", "env": ["A=1"]}, r"env\[0\]: "),
        ({"launch": "torchrun", "command": ["a"], "resources": {"limits": None}}, "resources.limits: is null"),
        ({"launch": "ray"}, "launch: is 'ray'. Choose one of mpi, plain, shards, torchrun"),
        ({"launch": "torchrun"}, 'command: is missing with launch="torchrun"'),
        ({"launch": "torchrun", "command": ["a.py"], "rendezvous": False}, "rendezvous: is False with launch"),
        ({"manifest": "kind: Pod\nmetadata: a\nspec: {}\n"}, "metadata or a spec that is not a mapping"),
        ({"manifest": {"kind": "PodTemplate", "template": "a"}}, "metadata or a spec that is not a mapping"),
        ({"secrets": [7]}, "secrets: has 7"),
        ({"secrets": [V1Secret()]}, "secrets: has a V1Secret. Give names"),
        ({"secrets": {"a": "b"}}, "secrets: is a dict, not a list"),
        ({"stream_logs": [0, 2], "workers": 2}, "stream_logs: has rank 2, and the ranks are 0 to 1"),
        ({"result_storage": "results"}, "result_storage: is 'results', a relative path"),
        ({"result_storage": 7}, "result_storage: is 7, not the URL of a folder"),
        ({"skip_on_exit_code": 0}, "skip_on_exit_code: is "),
        ({"skip_on_exit_code": [3, "4"]}, "skip_on_exit_code: is "),
    ],
)
def test_shorthand_that_is_wrong_is_refused_when_the_dag_is_parsed(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGangSpec, match=message):
        GangJobOperator(task_id="t", **{"image": "i", **parameters})


def test_pod_may_be_the_output_of_a_task() -> None:
    with DAG("d", schedule=None):
        written = BaseOperator(task_id="write").output  # type: ignore[attr-defined]
        task = GangJobOperator(task_id="t", manifest=written)
    task.manifest = POD

    assert manifest_of(task.gang_spec())["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "ssd"}


FOLDERS = {
    "a task": (
        TaskKey("d", "manual__2026-01-01T00:00:00+00:00", "group.t"),
        "d/manual__2026-01-01T00:00:00+00:00/group.t",
    ),
    "a mapped task": (TaskKey("d", "r", "t", 3, "prod"), "d/r/t/3"),
    "steps of a path": (TaskKey(".", "..", "..."), "%2E/%2E%2E/..."),
    "a slash": (TaskKey("d", "a/../b", "t"), "d/a%2F..%2Fb/t"),
    "a quoted slash": (TaskKey("d", "a%2Fb", "t"), "d/a%252Fb/t"),
}


def result_folder(url: str, key: TaskKey) -> str:
    folder = TaskStorages(url, key, logging.getLogger(__name__)).result_folder  # type: ignore[arg-type]
    assert folder is not None
    return folder


@pytest.mark.parametrize(("key", "folder"), FOLDERS.values(), ids=FOLDERS)
def test_variable_with_the_folder_of_a_task_is_the_same_in_all_releases_and_installations(
    key: TaskKey, folder: str
) -> None:
    assert result_folder("s3://a@b/results/", key) == f"s3://a@b/results/{folder}"


NOT_EMPTY = st.text(min_size=1, max_size=5)


@given(NOT_EMPTY, NOT_EMPTY, NOT_EMPTY)
def test_each_task_has_a_folder_of_its_own_below_the_storage(dag: str, run: str, task: str) -> None:
    folder = result_folder("s3://bucket", TaskKey(dag, run, task)).removeprefix("s3://bucket/")
    assert [unquote(part) for part in folder.split("/")] == [dag, run, task]
    assert not {".", "..", ""} & set(folder.split("/"))


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (ObjectStoragePath("s3://aws_default@bucket/folder"), "s3://aws_default@bucket/folder"),
        (ObjectStoragePath("file:///data/gangs"), "file:///data/gangs"),
        (ObjectStoragePath("s3://bucket/folder", conn_id="aws_default"), "s3://aws_default@bucket/folder"),
        (Path("/data/gangs"), "/data/gangs"),
        ("s3://bucket/{{ ds }}", "s3://bucket/{{ ds }}"),
        ("{{ var.value.storage }}", "{{ var.value.storage }}"),
    ],
    ids=str,
)
def test_storage_may_be_an_object_storage_path_or_a_url(given: Any, url: str) -> None:
    assert GangJobOperator(task_id="t", image="i", result_storage=given).result_storage == url


def outcome(kind: OutcomeKind, exit_code: int | None = None, **more: Any) -> Outcome:
    return Outcome(uid=f"{kind}{exit_code}", pod="p", outcome=kind, exit_code=exit_code, **more)


@pytest.mark.parametrize(
    ("outcomes", "is_skipped"),
    [
        pytest.param([outcome(OutcomeKind.FAILED, 9)], True, id="one rank"),
        pytest.param([outcome(OutcomeKind.FAILED, 9), outcome(OutcomeKind.SUCCEEDED, 0)], True, id="one of two"),
        pytest.param([outcome(OutcomeKind.FAILED, 9), outcome(OutcomeKind.FAILED, 8)], True, id="two codes"),
        pytest.param([outcome(OutcomeKind.FAILED, 9), outcome(OutcomeKind.DELETED, 143)], True, id="peer was stopped"),
        pytest.param([outcome(OutcomeKind.FAILED, 9), outcome(OutcomeKind.FAILED, 1)], False, id="another code"),
        pytest.param([outcome(OutcomeKind.FAILED, 9), outcome(OutcomeKind.LOST)], False, id="a rank was lost"),
        pytest.param([outcome(OutcomeKind.FAILED, 9), outcome(OutcomeKind.UNKNOWN)], False, id="an unknown end"),
        pytest.param([outcome(OutcomeKind.DELETED, 143)], False, id="only stopped"),
        pytest.param(
            [outcome(OutcomeKind.EVICTED, rank=0), outcome(OutcomeKind.FAILED, 9, rank=0, created=datetime.now(UTC))],
            True,
            id="a pod was replaced before",
        ),
        pytest.param([], False, id="nothing is known"),
    ],
)
def test_task_is_skipped_only_if_every_failed_rank_says_so(outcomes: list[Outcome], is_skipped: bool) -> None:
    assert fails_only_with((8, 9), outcomes) == is_skipped


# -- The parameters of a gang with `launch="mpi"`: what the pods get, and what is refused ----------------------------

RUN = ["/bin/sh", "/gang/files/gangjobs_mpi.sh", "run"]


def mpi_spec_of(**parameters: Any) -> Any:
    given = {"image": "i", "workers": 2, "launch": "mpi", "ssh_secret": "keys", "command": ["mpirun", "./a"]}
    return GangJobOperator(task_id="t", **{**given, **parameters}).gang_spec()


def container_of(spec: Any) -> Any:
    assert validate(spec) == ()
    return user_template(spec, manifest_of(spec))["spec"]["containers"][0]


def mpi_env_of(spec: Any) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container_of(spec)["env"]}


def test_words_of_the_command_are_arguments_of_the_script() -> None:
    spec = mpi_spec_of(command=["mpirun", "-x", "A B"], args=["./a", "$(id); `id`"])

    assert container_of(spec)["command"] == [*RUN, "mpirun", "-x", "A B", "./a", "$(id); `id`"]
    assert "args" not in container_of(spec)


def test_script_is_a_file_of_the_gang_beside_those_of_the_user() -> None:
    spec = mpi_spec_of(files={"a.py": "print(1)\n"})

    assert list(spec.files) == ["a.py", "gangjobs_mpi.sh"]
    assert spec.files["gangjobs_mpi.sh"].startswith("#!/bin/sh\n")


def test_key_is_mounted_from_the_secret_and_is_in_no_variable() -> None:
    template = user_template(mpi_spec_of(), {})
    volumes, container = template["spec"]["volumes"], template["spec"]["containers"][0]

    items = [{"key": "ssh-privatekey", "path": "ssh-privatekey"}]
    assert {"name": "gang-ssh", "secret": {"secretName": "keys", "items": items}} in volumes
    assert {"name": "gang-ssh", "mountPath": "/gang/ssh", "readOnly": True} in container["volumeMounts"]
    assert "secretKeyRef" not in str(container["env"])


def test_only_the_own_container_of_the_rank_has_the_key() -> None:
    sidecar = {"spec": {"containers": [{"name": "proxy", "image": "p"}]}}
    template = user_template(mpi_spec_of(pod_overrides=sidecar), {})

    assert [container["name"] for container in template["spec"]["containers"]] == ["main", "proxy"]
    assert "volumeMounts" not in template["spec"]["containers"][1]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        pytest.param("OMPI_MCA_orte_default_hostfile", "/gang/mpi/hostfile", id="hosts of Open MPI 4"),
        pytest.param("PRTE_MCA_prte_default_hostfile", "/gang/mpi/hostfile", id="hosts of Open MPI 5"),
        pytest.param("HYDRA_HOST_FILE", "/gang/mpi/machinefile", id="hosts of MPICH"),
        pytest.param("I_MPI_HYDRA_HOST_FILE", "/gang/mpi/machinefile", id="hosts of Intel MPI"),
        pytest.param("PRTE_MCA_prte_keep_fqdn_hostnames", None, id="only Open MPI 4 is told to keep full names"),
    ],
)
def test_each_mpi_has_the_variables_that_it_reads(variable: str, value: str | None) -> None:
    env = mpi_env_of(mpi_spec_of())
    assert env.get(variable) == value
    assert "OMPI_MCA_orte_keep_fqdn_hostnames" in env


@pytest.mark.parametrize(
    ("given", "slots"), [({}, "1"), ({"slots_per_worker": 4}, "4"), ({"slots_per_worker": "8"}, "8")]
)
def test_slots_are_given_to_the_script(given: dict[str, Any], slots: str) -> None:
    assert mpi_env_of(mpi_spec_of(**given))["GANG_MPI_SLOTS"] == slots


@pytest.mark.parametrize(
    "env", [{"GANG_MPI_WAIT_S": "5"}, [{"name": "GANG_MPI_WAIT_S", "value": "5"}]], ids=["mapping", "list"]
)
def test_variable_of_mpi_that_the_user_sets_stays(env: Any) -> None:
    assert mpi_env_of(mpi_spec_of(env=env))["GANG_MPI_WAIT_S"] == "5"
    assert mpi_env_of(mpi_spec_of(env=env))["GANG_MPI_PORT"] == "2222"


@pytest.mark.parametrize("workers", [1, 2])
def test_ranks_have_names(workers: int) -> None:
    assert mpi_spec_of(workers=workers).rendezvous is True


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ssh_secret": None}, 'ssh_secret: is missing with launch="mpi"'),
        ({"ssh_secret": "My_Keys"}, "ssh_secret: 'My_Keys' may only have"),
        ({"ssh_secret": 7}, "ssh_secret: is 7, which is not text"),
        ({"slots_per_worker": 0}, "slots_per_worker: is 0, not a positive"),
        ({"slots_per_worker": True}, "slots_per_worker: is True, not a positive"),
        ({"slots_per_worker": "2; id"}, "slots_per_worker: is '2; id', not a positive"),
        ({"command": None}, 'command: is missing with launch="mpi"'),
        ({"rendezvous": False}, 'rendezvous: is False with launch="mpi"'),
        ({"files": {"gangjobs_mpi.sh": "id\n"}}, "files.gangjobs_mpi.sh: is a file of the provider"),
        ({"env": {"GANG_MPI_WAIT_S": "soon"}}, "env.GANG_MPI_WAIT_S: is 'soon', not a positive"),
        ({"env": [{"name": "GANG_MPI_PORT", "value": "0"}]}, "env.GANG_MPI_PORT: is '0', not a positive"),
        ({"launch": "plain", "slots_per_worker": None}, "ssh_secret: is given with launch='plain'"),
        ({"launch": "torchrun", "ssh_secret": None, "slots_per_worker": 2}, "slots_per_worker: is given with launch"),
    ],
)
def test_wrong_parameter_is_refused_when_the_dag_is_parsed(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGangSpec, match=message):
        mpi_spec_of(**parameters)


@pytest.mark.parametrize(
    ("parameter", "template", "rendered"),
    [("ssh_secret", "{{ 'My_Keys' }}", "My_Keys"), ("slots_per_worker", "{{ 'many' }}", "many")],
)
def test_wrong_parameter_of_a_template_is_refused_before_anything_is_created(
    parameter: str, template: str, rendered: str
) -> None:
    given = {"ssh_secret": "keys", parameter: template}
    operator = GangJobOperator(task_id="t", image="i", launch="mpi", command=["mpirun"], **given)
    setattr(operator, parameter, rendered)
    with pytest.raises(InvalidGangSpec, match=parameter):
        operator.gang_spec()


def test_decorated_function_cannot_be_an_mpi_program() -> None:
    with pytest.raises(InvalidGangSpec, match="launch: is 'mpi'"):
        GangJobDecoratedOperator(task_id="t", python_callable=print, image="i", launch="mpi", ssh_secret="keys")


# -- How ranks find each other ---------------------------------------------------------------------------------------

ENV = {item["name"]: item for item in env_of(Rendezvous(1234), address="train-0-0.peers", size=4)}


def test_every_rank_knows_the_master_and_the_size():
    values = {name: item["value"] for name, item in ENV.items() if "value" in item}
    assert values == {
        "MASTER_ADDR": "train-0-0.peers",
        "MASTER_PORT": "1234",
        "WORLD_SIZE": "4",
        "NNODES": "4",
        "PET_NNODES": "4",
        "PET_MASTER_ADDR": "train-0-0.peers",
        "PET_MASTER_PORT": "1234",
    }


@pytest.mark.parametrize("name", ["RANK", "NODE_RANK", "PET_NODE_RANK"])
def test_rank_is_read_from_the_pod(name):
    source = ENV[name]["valueFrom"]["fieldRef"]["fieldPath"]
    assert source == "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def test_every_variable_is_reserved():
    assert set(ENV) == RENDEZVOUS_ENV


FOUR = Shape(parallelism=4, completions=4, indexed=True, backoff_limit=0)
ONE = Shape(parallelism=1, completions=1, indexed=True, backoff_limit=0)
QUEUE = Shape(parallelism=4, completions=None, indexed=False, backoff_limit=0)


@pytest.mark.parametrize(
    ("asked", "shape", "expected"),
    [
        (None, FOUR, Rendezvous()),
        (None, ONE, None),
        (None, QUEUE, None),
        (False, FOUR, None),
        (True, ONE, Rendezvous()),
        (Rendezvous(1), FOUR, Rendezvous(1)),
    ],
    ids=["four ranks", "one rank", "no ranks", "switched off", "switched on", "with a port"],
)
def test_rendezvous_is_on_for_numbered_peers(asked, shape, expected):
    assert rendezvous_of(GangSpec(rendezvous=asked), shape) == expected

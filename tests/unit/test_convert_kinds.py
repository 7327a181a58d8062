"""The task that stands for each kind of workload, by manifests after public ones, and that it renders the same pods."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.convert import ConversionError, convert
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.preview import preview
from airflow_provider_gangjobs.gang.render.pod_template import RENDEZVOUS_ENV, resources_of
from airflow_provider_gangjobs.gang.render.user_manifest import copy_without_nulls
from airflow_provider_gangjobs.gang.spec import Rendezvous
from tests.dag_files import dags_of, tasks_of

BROUGHT = sorted((Path(__file__).parents[1] / "brought").iterdir())
RUFF = shutil.which("ruff", path=str(Path(sys.executable).parent))


def converted(name: str) -> Any:
    """Return the conversion of a manifest by the name of its file."""
    (path,) = [path for path in BROUGHT if path.stem == name]
    return convert({path.name: path.read_text()})


def task_of(name: str) -> Any:
    """Return the only task that a manifest becomes."""
    (task,) = tasks_of(converted(name).source).values()
    return task


def rendered(task: Any) -> dict[str, Any]:
    """Return the pod template that a task renders after its templates are rendered."""
    task.render_template_fields({})
    return preview(task.gang_spec(), TaskKey(task.dag_id, "run", task.task_id))[0]["spec"]["template"]


# -- Kinds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BROUGHT, ids=lambda path: path.name)
def test_dag_can_be_rendered_and_holds_no_secret(path: Path) -> None:
    conversion = convert({path.name: path.read_text()})
    for task in tasks_of(conversion.source).values():
        assert rendered(task)["spec"]["containers"]
    assert "hunter2" not in conversion.source + "".join(conversion.summary)


@pytest.mark.skipif(RUFF is None, reason="ruff is not installed")
@pytest.mark.parametrize("path", BROUGHT, ids=lambda path: path.name)
def test_dag_is_formatted_and_sorted_as_ruff_does(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "dag.py"
    file.write_text(convert({path.name: path.read_text()}).source)
    for command in (["format", "--diff"], ["check", "--select", "F,I,UP,B", "--output-format", "concise"]):
        done = subprocess.run(
            [str(RUFF), *command, "--isolated", file], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_cron_job_is_a_dag_with_its_schedule_and_zone() -> None:
    source = converted("nightly").source
    (dag,) = dags_of(source)
    assert 'schedule=CronTriggerTimetable("15 3 * * 1-5", timezone="Europe/Zurich")' in source
    assert type(dag.schedule).__name__ == "CronTriggerTimetable"
    assert (dag.max_active_runs, dag.is_paused_upon_creation) == (1, True)


def test_cron_job_that_forbids_overlaps_has_one_run_at_a_time() -> None:
    (dag,) = dags_of(converted("every-five-minutes").source)
    assert (dag.schedule, dag.max_active_runs, dag.tasks[0].workers) == ("*/5 * * * *", 1, 2)


@pytest.mark.parametrize(
    ("written", "schedule"),
    [
        ("0 0 ? * ?", "'0 0 * * *'"),
        (" 5/15  * * jan-DEC mon,wed\n", "'5/15 * * jan-DEC mon,wed'"),
        ("@midnight", "'@midnight'"),
        ("TZ=Europe/Zurich 0 3 * * *", "CronTriggerTimetable('0 3 * * *', timezone='Europe/Zurich')"),
    ],
    ids=["question marks", "names and spaces", "a word", "a time zone"],
)
def test_schedule_of_kubernetes_is_one_of_airflow(written: str, schedule: str) -> None:
    cron = workload("batch/v1 CronJob", schedule=written, jobTemplate={"spec": {"template": pod()}})
    source = convert({"a.yaml": yaml.safe_dump({**cron, "metadata": {"generateName": "w-"}})}).source
    assert dags_of(source)[0].dag_id == "w"
    assert f"schedule={schedule})" in source.replace('"', "'")
    dags_of(source)[0].validate()


def test_claims_of_a_job_set_must_exist() -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    jobs = [
        {"name": name, "template": {"spec": {"template": pod(command=[name], **given)}}}
        for name, given in {"a": {"volumeMounts": mounts}, "b": {}}.items()
    ]
    written = job_set(*jobs)
    written["spec"]["volumeClaimPolicies"] = [{"templates": [{"metadata": {"name": "data"}}]}]
    conversion = convert({"w.yaml": yaml.safe_dump(written)})
    (task,) = tasks_of(conversion.source).values()

    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data-w"}}
    assert {name: role.get("volumes") for name, role in task.roles.items()} == {"a": [claim], "b": None}
    assert any("volumeClaimPolicies (line" in line and "create these claims" in line for line in conversion.summary)
    assert any("kubectl get persistentvolumeclaim/data-w" in line for line in conversion.summary)


def test_secrets_that_pull_the_images_of_roles_must_exist() -> None:
    private = pod()
    private["spec"]["imagePullSecrets"] = [{"name": "registry"}]
    jobs = [{"name": name, "template": {"spec": {"template": each}}} for name, each in (("a", private), ("b", pod()))]
    summary = convert({"w.yaml": yaml.safe_dump(job_set(*jobs))}).summary
    assert "  These must exist beforehand: kubectl get secret/registry" in summary


def test_job_set_with_one_replicated_job_is_a_plain_gang() -> None:
    task = task_of("jobset-workers")
    assert (task.roles, task.workers, task.retries, task.rendezvous) == (None, 4, 3, Rendezvous(3389))
    assert "--rdzv_endpoint=$(MASTER_ADDR):3389" in task.command[2]


def test_replicated_jobs_are_roles_whose_names_of_peers_are_those_of_the_gang() -> None:
    roles = task_of("jobset-slices").roles
    assert {name: role.get("workers") for name, role in roles.items()} == {"driver": None, "slice": 2}
    assert roles["driver"]["command"][2] == "echo $(GANG_NAME)-slice-1.$(GANG_NAME)"
    assert roles["slice"]["command"][2] == "echo $SLICE of $(MASTER_ADDR)"
    assert "job-completion-index" in str(roles["slice"]["env"]["SLICE"])


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("jobset-launcher-and-workers", "successPolicy (line 8)"),
        ("jobset-slices", "startupPolicy (line 6)"),
        ("pytorchjob-elastic", "elasticPolicy (line 6)"),
        ("trainjob-with-image", "initializer (line 6)"),
        ("volcano-ssh", "/etc/volcano/mpiworker.host"),
    ],
)
def test_what_has_no_counterpart_is_named_with_its_line(name: str, field: str) -> None:
    conversion = converted(name)
    assert any(field in line for line in conversion.summary)
    assert field in conversion.source.replace("\n    # ", " ")


def pod(**container: Any) -> dict[str, Any]:
    """Return a pod template of one container."""
    return {"spec": {"containers": [{"name": "a", "image": "i:1", "command": ["a"], **container}]}}


def workload(kind: str, **spec: Any) -> dict[str, Any]:
    """Return an object by its version and its kind."""
    version, name = kind.split()
    return {"apiVersion": version, "kind": name, "metadata": {"name": "w"}, "spec": spec}


def volcano(**task: Any) -> dict[str, Any]:
    return workload("batch.volcano.sh/v1alpha1 Job", tasks=[{"name": "a", "template": pod()}, {**task, "name": "b"}])


def job_set(*jobs: dict[str, Any]) -> dict[str, Any]:
    return workload("jobset.x-k8s.io/v1alpha2 JobSet", replicatedJobs=list(jobs))


EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
GROUP = "kueue.x-k8s.io/pod-group-name"
PODS = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {GROUP: "g"}}, **pod()}
LEFT_OUT = {
    "the restartPolicy of a PyTorchJob's replica": (
        [
            workload(
                "kubeflow.org/v1 PyTorchJob",
                pytorchReplicaSpecs={"Worker": {"restartPolicy": "OnFailure", "template": pod()}},
            )
        ],
        "restartPolicy was OnFailure",
    ),
    "the restartPolicy of an MPIJob's replica": (
        [
            workload(
                "kubeflow.org/v2beta1 MPIJob",
                mpiReplicaSpecs={
                    "Launcher": {"template": pod()},
                    "Worker": {"restartPolicy": "OnFailure", "template": pod()},
                },
            )
        ],
        "restartPolicy was OnFailure",
    ),
    "the program and the resources of an MPIJob's pods": (
        [
            workload(
                "kubeflow.org/v2beta1 MPIJob",
                mpiReplicaSpecs={
                    "Launcher": {"template": pod(resources={"limits": {"cpu": 1}})},
                    "Worker": {"template": pod(resources={"limits": {"cpu": 8}}, command=["sshd"])},
                },
            )
        ],
        "The pods are those of the Worker: resources of the Launcher are left out",
        "The program of the Worker is left out",
    ),
    "the program of a Master": (
        [
            workload(
                "kubeflow.org/v1 PyTorchJob",
                pytorchReplicaSpecs={"Master": {"template": pod(command=["b"])}, "Worker": {"template": pod()}},
            )
        ],
        "command of the Master are left out",
    ),
    "the backoffLimit of one Job of a JobSet": (
        [
            job_set(
                {"name": "a", "template": {"spec": {"backoffLimit": 3, "template": pod()}}},
                {"name": "b", "template": {"spec": {"backoffLimit": 0, "template": pod(command=["b"])}}},
            )
        ],
        "backoffLimit (line 10) is left out",
    ),
    "an annotation of JobSet at a Job": (
        [
            job_set(
                {"name": "a", "template": {"metadata": {"annotations": {EXCLUSIVE: "x"}}, "spec": {"template": pod()}}}
            )
        ],
        f"{EXCLUSIVE} is left out",
    ),
    "dependsOn of a task of Volcano": ([volcano(template=pod(), dependsOn={"name": ["a"]})], "dependsOn (line 22) is"),
    "minAvailable of a task of Volcano": ([volcano(template=pod(), minAvailable=1)], "minAvailable (line 22) is"),
    "a group of Pods in a queue of Kueue": ([PODS], f"{GROUP} is left out: give the pods of the group as roles"),
    "a ConfigMap that no pod names": (
        [PODS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}],
        "v1 ConfigMap c (w.yaml, line 14) is not converted",
    ),
    "a Service that is not that of the peers": (
        [PODS, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"}, "spec": {}}],
        "v1 Service db (w.yaml, line 14) is not converted. Create it beforehand",
    ),
    "an object beside the workloads whose spec is empty": (
        [PODS, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"}, "spec": None}],
        "v1 Service db (w.yaml, line 14) is not converted. Create it beforehand",
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT.values(), ids=LEFT_OUT)
def test_nothing_is_left_out_silently(case: Any) -> None:
    objects, *named = case
    conversion = convert({"w.yaml": yaml.safe_dump_all(objects, sort_keys=False)})
    for text in named:
        assert any(text in line for line in conversion.summary), conversion.summary


def test_job_of_a_queued_train_job_is_resumed_by_its_queue() -> None:
    written = workload(
        "trainer.kubeflow.org/v1alpha1 TrainJob",
        suspend=True,
        runtimeRef={"name": "flux-distributed"},
        trainer={"image": "i:1", "numNodes": 2, "command": ["flux", "run"]},
    )
    written["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    conversion = convert({"w.yaml": yaml.safe_dump(written)})
    (task,) = tasks_of(conversion.source).values()
    assert (task.launch, task.queue_name, task.command) == ("plain", "team", ["flux", "run"])
    assert not any("suspend" in line for line in conversion.summary)


def test_scheduler_and_other_jobs_of_a_runtime_are_those_of_its_train_job() -> None:
    jobs = [{"name": name, "template": {"spec": {"template": pod()}}} for name in ("dataset-initializer", "node")]
    jobs[1]["template"]["spec"]["template"] = pod(name="node")  # type: ignore[index]
    runtime = workload(
        "trainer.kubeflow.org/v1alpha1 TrainingRuntime",
        podGroupPolicy={"volcano": {}},
        template={"spec": {"replicatedJobs": jobs}},
    )
    train_job = workload("trainer.kubeflow.org/v1alpha1 TrainJob", runtimeRef={"name": "w"}, trainer={"numNodes": 2})
    conversion = convert({"w.yaml": yaml.safe_dump_all([runtime, train_job])})
    (task,) = tasks_of(conversion.source).values()
    assert task.gang_scheduler == "volcano"
    assert any("dataset-initializer of the runtime w is left out" in line for line in conversion.summary)


def test_train_jobs_of_one_runtime_change_nothing_of_each_other() -> None:
    env = [{"name": "A", "value": "base"}, {"name": "C", "value": "d"}]
    node = {"name": "node", "template": {"spec": {"template": pod(name="node", command=["base"], env=env)}}}
    runtime = workload(
        "trainer.kubeflow.org/v1alpha1 ClusterTrainingRuntime", template={"spec": {"replicatedJobs": [node]}}
    )
    trainers = [{"command": ["first"], "env": [{"name": "A", "value": "b"}]}, {}]
    written = [
        workload("trainer.kubeflow.org/v1alpha1 TrainJob", runtimeRef={"name": "w"}, trainer=trainer)
        for trainer in trainers
    ]
    tasks = tasks_of(convert({"w.yaml": yaml.safe_dump_all([runtime, *written])}).source)
    assert [(task.command, task.env) for task in tasks.values()] == [
        (["first"], {"A": "b", "C": "d"}),
        (["base"], {"A": "base", "C": "d"}),
    ]


def test_only_replica_finds_itself_by_the_variables_of_a_gang() -> None:
    env = [{"name": "WORLD_SIZE", "value": "2"}, {"name": "A", "value": "b"}]
    replicas = {"Master": {"template": pod(env=env)}, "Worker": {"replicas": 0, "template": pod(image="other:1")}}
    written = workload("kubeflow.org/v1 PyTorchJob", pytorchReplicaSpecs=replicas)
    (task,) = tasks_of(convert({"w.yaml": yaml.safe_dump(written)}).source).values()
    assert (task.image, task.rendezvous, task.env) == ("i:1", True, {"A": "b"})
    names = {item["name"] for item in rendered(task)["spec"]["containers"][0]["env"]}
    assert names >= RENDEZVOUS_ENV


@pytest.mark.parametrize(
    "written",
    [
        volcano(replicas=0, template=pod(command=["b"])),
        job_set(
            {"name": "a", "template": {"spec": {"template": pod()}}},
            {"name": "b", "replicas": 0, "template": {"spec": {"template": pod(command=["b"])}}},
        ),
    ],
    ids=["Volcano", "JobSet"],
)
def test_role_without_pods_is_left_out_and_named(written: Any) -> None:
    conversion = convert({"w.yaml": yaml.safe_dump(written)})
    (task,) = tasks_of(conversion.source).values()
    assert (task.roles, task.workers, task.command) == (None, None, ["a"])
    assert "  b is left out: it has no pods" in conversion.summary


NO_PODS = {
    "MPIJob": {"mpiReplicaSpecs": {"Launcher": {"template": pod()}, "Worker": {"replicas": 0, "template": pod()}}},
    "PyTorchJob": {"pytorchReplicaSpecs": {name: {"replicas": 0, "template": pod()} for name in ("Master", "Worker")}},
}


@pytest.mark.parametrize("kind", NO_PODS)
def test_workload_without_pods_is_refused(kind: str) -> None:
    written = workload(f"kubeflow.org/v1 {kind}", **NO_PODS[kind])
    with pytest.raises(ConversionError, match=rf"^w: line 1: kubeflow.org/v1 {kind} has no pods\. Give"):
        convert({"w": yaml.safe_dump(written)})


def test_task_of_volcano_without_a_name_has_that_of_its_webhook() -> None:
    tasks = [{"template": pod()}, {"template": pod(command=["b"])}]
    written = workload("batch.volcano.sh/v1alpha1 Job", tasks=tasks)
    (task,) = tasks_of(convert({"w": yaml.safe_dump(written)}).source).values()
    assert list(task.roles) == ["default0", "default1"]


def test_option_of_python_without_a_module_is_no_torchrun() -> None:
    replicas = {"Worker": {"template": pod(command=["python3", "-m"])}}
    written = workload("kubeflow.org/v1 PyTorchJob", pytorchReplicaSpecs=replicas)
    (task,) = tasks_of(convert({"w": yaml.safe_dump(written)}).source).values()
    assert (task.launch, task.command) == ("plain", ["python3", "-m"])


def test_launcher_that_is_a_worker_is_one_more_rank() -> None:
    replicas = {"Launcher": {"template": pod()}, "Worker": {"replicas": 2, "template": pod()}}
    written = workload("kubeflow.org/v2beta1 MPIJob", runLauncherAsWorker=True, mpiReplicaSpecs=replicas)
    (task,) = tasks_of(convert({"w.yaml": yaml.safe_dump(written)}).source).values()
    assert task.workers == 3


@pytest.mark.parametrize("dump", [partial(yaml.safe_dump, sort_keys=False), partial(json.dumps, indent=1)])
def test_item_of_a_list_is_named_with_its_line(dump: Any) -> None:
    items = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **pod()} for name in ("a", "p")]
    text = dump({"apiVersion": "v1", "kind": "List", "items": items})
    heads = [line for line in convert({"w": text}).summary if line.startswith("w: ")]
    numbers = [int(head.split()[2].rstrip(":")) for head in heads]
    assert [text.splitlines()[number - 1].replace('"', "").strip() for number in numbers] == ["name: a", "name: p"]


def test_mpi_job_runs_the_command_of_its_launcher_on_rank_0() -> None:
    task = task_of("mpijob-horovod")
    assert (task.launch, task.workers, task.slots_per_worker) == ("mpi", 2, 4)
    assert (task.command, task.args[:4]) == (["horovodrun"], ["-np", "8", "--hostfile", "/gang/mpi/hostfile"])
    assert (task.ssh_secret, task.env) == ("horovod-ssh", {"HOROVOD_LOG_LEVEL": "info"})
    source = converted("mpijob-horovod").source.replace("\n        # ", " ")
    options = "--type=kubernetes.io/ssh-auth --from-file=ssh-privatekey=mpi-key"
    assert f"kubectl create secret generic horovod-ssh {options}" in source


@pytest.mark.parametrize(
    ("name", "launch", "command", "env"),
    [
        ("pytorchjob-elastic", "torchrun", ["./echo.py"], None),
        ("pytorchjob-mnist", "plain", None, None),
        (
            "pytorchjob-torchrun",
            "torchrun",
            ["-m", "llm.train", "--steps", "10"],
            {"PET_NPROC_PER_NODE": "8", "PET_MAX_RESTARTS": "3"},
        ),
        ("trainjob-with-runtime", "torchrun", ["tune.py", "--epochs", "1"], {"LOGLEVEL": "INFO"}),
        ("trainjob-with-image", "plain", ["bash", "-c", "torchrun hello.py"], None),
    ],
)
def test_program_of_torchrun_is_launched_with_its_options(name: str, launch: str, command: Any, env: Any) -> None:
    task = task_of(name)
    assert (task.launch, task.command, task.env) == (launch, command, env)


def test_train_job_without_its_runtime_and_image_is_refused() -> None:
    spec = {"runtimeRef": {"name": "torch-tune"}, "trainer": {"numNodes": 2}}
    written = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "a"},
        "spec": spec,
    }
    with pytest.raises(Exception, match=r"a\.yaml: line \d: .*kubectl get clustertrainingruntime torch-tune -o yaml"):
        convert({"a.yaml": yaml.safe_dump(written)})


def test_tasks_of_volcano_are_roles_and_those_of_mpi_a_launch() -> None:
    assert list(task_of("volcano-ssh").roles) == ["mpimaster", "mpiworker"]
    mpi = task_of("volcano-mpi")
    assert (mpi.launch, mpi.workers, mpi.working_dir) == ("mpi", 4, "/work")
    assert mpi.annotations == {"scheduling.volcano.sh/queue-name": "hpc"}


def test_tasks_with_the_same_pods_are_one_gang() -> None:
    task = task_of("volcano-alike")
    assert (task.roles, task.workers, task.min_workers) == (None, 4, 3)
    assert (task.gang_scheduler, task.priority_class) == ("volcano", "high")


def test_items_of_a_list_and_several_files_are_tasks_of_one_dag() -> None:
    assert list(tasks_of(converted("list").source)) == ["extract", "load"]
    texts = {path.name: path.read_text() for path in BROUGHT if path.stem in ("paused", "nightly", "volume-at-tmp")}
    assert {dag.dag_id: list(dag.task_ids) for dag in dags_of(convert(texts).source)} == {
        "paused": ["paused", "tmpmount"],
        "nightly": ["nightly"],
    }


def test_config_map_becomes_files_and_text_of_jinja_stays_text() -> None:
    task = task_of("nccl-with-config-map")
    task.render_template_fields({})
    assert task.command == ["sh", "/gang/files/launch.sh"]
    assert "# ${#HOSTS[@]} and {% of Jinja %} are text here.\n" in task.files["launch.sh"]
    assert ". /gang/files/env.sh\n" in task.files["launch.sh"]


# -- The pods are the same ---------------------------------------------------------------------------------------------

WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
SCRIPTS = st.one_of(
    WORDS, st.sampled_from(["{{ x }}", "a\n{%\n", '${#a[@]}\n"""\n', "\\\n\\n'\"\n", "a\r\nb", 'x\n"', "endraw {{"])
)
NAMES = st.sampled_from(["a", "b", "main", "side-car", "trainer"])
ENV = st.dictionaries(
    st.sampled_from(["A", "B_C", "PATH", "a.b"]),
    st.one_of(
        SCRIPTS.map(lambda text: {"value": text}),
        st.just({"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        st.just({"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}),
    ),
).map(lambda env: [{"name": name, **value} for name, value in env.items()])
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.sampled_from([1, "2"]), min_size=1)


def _optional(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


CONTAINERS = _optional(
    command=st.lists(SCRIPTS, min_size=1, max_size=3),
    args=st.lists(SCRIPTS, max_size=2),
    env=ENV,
    envFrom=st.just([{"configMapRef": {"name": "c"}}]),
    imagePullPolicy=st.sampled_from(["Always", "IfNotPresent"]),
    ports=st.lists(
        st.sampled_from([{"containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}]), max_size=2, unique_by=str
    ),
    resources=AMOUNTS.flatmap(
        lambda limits: st.sampled_from([{"limits": limits}, {"limits": limits, "requests": limits}])
    ),
    securityContext=st.sampled_from([{}, {"privileged": True}]),
    stdin=st.booleans(),
    terminationMessagePath=st.sampled_from(["/dev/termination-log", "/tmp/end"]),
    volumeMounts=st.just([{"name": "data", "mountPath": "/data"}]),
    workingDir=st.just("/work"),
).map(lambda fields: {"image": "i:1", **fields})
PODS = _optional(
    affinity=st.just({"podAntiAffinity": {}}),
    dnsPolicy=st.sampled_from(["ClusterFirst", "Default"]),
    hostAliases=st.just([{"ip": "1.2.3.4", "hostnames": ["a"]}, {"ip": "1.2.3.4", "hostnames": ["b"]}]),
    hostNetwork=st.booleans(),
    imagePullSecrets=st.just([{"name": "registry"}]),
    nodeSelector=st.dictionaries(st.just("zone"), st.just("a")),
    priorityClassName=st.just("high"),
    runtimeClassName=st.just("gvisor"),
    securityContext=st.sampled_from([{}, {"runAsUser": 1}]),
    serviceAccountName=st.just("robot"),
    terminationGracePeriodSeconds=st.sampled_from([5, 30]),
    tolerations=st.just([{"operator": "Exists"}]),
    topologySpreadConstraints=st.just([{"topologyKey": "zone", "maxSkew": 1}]),
)
METADATA = _optional(
    labels=st.dictionaries(st.sampled_from(["app", "team"]), st.sampled_from(["x", ""]), min_size=1),
    annotations=st.dictionaries(st.sampled_from(["note", "example.org/x"]), SCRIPTS, min_size=1),
)
SHAPES = st.sampled_from(
    [
        {},
        {"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimit": 0},
        {"completions": 3, "parallelism": 2, "completionMode": "Indexed"},
        {"parallelism": 2},
    ]
)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A Job with one to three containers, whose first one or annotated one is that of the rank."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    containers = [{"name": name, **draw(CONTAINERS)} for name in names]
    metadata = draw(METADATA)
    if draw(st.booleans()):
        annotations = metadata.get("annotations", {}) | {
            "kubectl.kubernetes.io/default-container": draw(st.sampled_from(names))
        }
        metadata = {**metadata, "annotations": annotations}
    pod = {
        "containers": containers,
        "restartPolicy": "Never",
        "volumes": [{"name": "data", "emptyDir": {}}],
        **draw(PODS),
    }
    if draw(st.booleans()):
        pod["initContainers"] = [{"name": "init", **draw(CONTAINERS)}]
    spec = {**draw(SHAPES), "template": {"metadata": metadata, "spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec}


def compared(template: dict[str, Any], renamed: str | None = None) -> dict[str, Any]:
    """Return a pod template without what the provider adds and without defaults, with the container of the rank first.

    :param renamed: The name of the container that is named `main` in the DAG.
    """
    template = copy_without_nulls(template)
    metadata = template.get("metadata", {})
    annotations = dict(metadata.get("annotations", {}))
    pod = template["spec"]
    main = annotations.pop("kubectl.kubernetes.io/default-container", pod["containers"][0]["name"])
    containers = sorted(pod.pop("containers"), key=lambda one: one["name"] != main)
    containers[0]["name"] = "main" if containers[0]["name"] == renamed else containers[0]["name"]
    of_gang = RENDEZVOUS_ENV | {"GANG_RESULT_PATH", "GANG_ATTEMPT", "GANG_SIZE"}
    for one in (*containers, *pod.get("initContainers", ())):
        one.pop("terminationMessagePolicy", None)
        one["env"] = [item for item in one.get("env", ()) if item["name"] not in of_gang]
        limits = one.get("resources", {}).get("limits", {})
        one["resources"] = resources_of(limits)
        one["terminationMessagePath"] = one.get("terminationMessagePath", "/dev/termination-log")
    defaults = {
        "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {},
        "nodeSelector": {},
    }
    pod = {
        "containers": containers,
        **{k: v for k, v in pod.items() if defaults.get(k) != v and k not in ("subdomain", "schedulingGroup")},
    }
    for one in (*containers, *pod.get("initContainers", ())):
        for field in [field for field, value in one.items() if value in ([], {})]:
            del one[field]
    labels = {k: v for k, v in metadata.get("labels", {}).items() if not k.startswith("gangjobs.airflow/")}
    return {"labels": labels, "annotations": annotations, "spec": pod}


@given(jobs())
def test_dag_renders_the_pods_of_the_file(job: dict[str, Any]) -> None:
    conversion = convert({"job.yaml": yaml.safe_dump(job)})
    (task,) = tasks_of(conversion.source).values()
    renamed = [line.split()[2] for line in conversion.summary if line.endswith(" is named main here")]

    shown = rendered(task)

    expected = compared(copy.deepcopy(job["spec"]["template"]), *renamed)
    assert compared(shown) == expected


@pytest.mark.skipif(RUFF is None, reason="ruff is not installed")
@given(jobs())
def test_any_dag_is_formatted_as_ruff_does(job: dict[str, Any]) -> None:
    source = convert({"job.yaml": yaml.safe_dump(job)}).source
    command = [str(RUFF), "format", "--isolated", "--stdin-filename", "dag.py", "-"]
    done = subprocess.run(command, input=source.encode(), capture_output=True, check=True)
    assert done.stdout.decode() == source


# -- Any broken manifest is one line -----------------------------------------------------------------------------------

DOCUMENTS = [list(filter(None, yaml.safe_load_all(path.read_text()))) for path in BROUGHT]
WRONG = st.sampled_from(
    [None, "", "x", 0, -1, True, 1.5, [], {}, ["a"], {"a": "b"}, [{}], [None], {"name": "q"}, "{{ x }}"]
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return each container in a value with each of its keys or indexes."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [*((value, key) for key in keys), *(place for key in keys for place in places(value[key]))]


@given(st.sampled_from(DOCUMENTS), st.data())
def test_manifest_with_a_wrong_value_is_converted_or_one_line(documents: list[Any], data: st.DataObject) -> None:
    broken = copy.deepcopy(documents)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(broken)))
        container[key] = copy.deepcopy(data.draw(WRONG))  # a shared list could be put into itself
    source = message = ""
    try:
        source = convert({"job.yaml": yaml.safe_dump_all(broken)}).source
    except ConversionError as error:
        message = str(error)

    compile(source, "dag.py", "exec")
    assert bool(source) is not message.startswith("job.yaml: line ")
    assert "\n" not in message

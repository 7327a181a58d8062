"""`gangjobs convert`: which DAG stands for a manifest, and what is said about a bad one."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.convert import ConversionError, convert
from airflow_provider_gangjobs.gang.spec import Rendezvous
from tests.dag_files import tasks_of

if TYPE_CHECKING:
    from pathlib import Path

CONTAINER = {"name": "main", "image": "busybox:1", "command": ["true"]}


def job(*, pod: Any = None, container: Any = None, metadata: Any = None, of_pods: Any = None, **spec: Any) -> Any:
    """Return a Job of three Indexed pods. A field of the spec that is None is left out.

    :param pod: Fields of the PodSpec.
    :param container: Fields of the container.
    :param of_pods: The metadata of the pod template.
    """
    pod_spec = {"restartPolicy": "Never", "containers": [{**CONTAINER, **(container or {})}], **(pod or {})}
    shape = {"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimit": 0}
    template = {"metadata": of_pods or {}, "spec": pod_spec}
    given = {name: value for name, value in {**shape, **spec}.items() if value is not None}
    named = {"name": "train", **(metadata or {})}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": {**given, "template": template}}


def source_of(*objects: Any) -> str:
    return convert({"jobs.yaml": yaml.safe_dump_all(objects, sort_keys=False)}).source


def task_of(*objects: Any) -> Any:
    """Return the only task of the DAG."""
    (task,) = tasks_of(source_of(*objects)).values()
    return task


# -- The shape of a Job ------------------------------------------------------------------------------------------------


def test_dag_of_a_gang_reads_like_code_of_a_colleague() -> None:
    container = {
        "name": "trainer",
        "resources": {"limits": {"nvidia.com/gpu": 8}},
        "env": [{"name": "A", "value": "b"}],
    }
    written = job(container=container, activeDeadlineSeconds=7200, metadata={"namespace": "ml"})

    assert (
        source_of(written)
        == '''\
"""Run train.

`gangjobs convert` has written this file from jobs.yaml.
"""

from datetime import timedelta

from airflow.sdk import DAG
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

with DAG("train", schedule=None):
    # The container trainer is named main here.
    GangJobOperator(
        task_id="train",
        image="busybox:1",
        command=["true"],
        env={"A": "b"},
        resources={"nvidia.com/gpu": 8},
        workers=3,
        namespace="ml",
        # activeDeadlineSeconds was 7200, and counted the wait for nodes, which
        # assemble_timeout limits.
        run_timeout=timedelta(hours=2),
    )
'''
    )


@pytest.mark.parametrize(
    ("spec", "workers", "gang"),
    [
        pytest.param({}, 3, "required", id="a gang"),
        pytest.param({"completions": None, "parallelism": None}, None, "required", id="one pod"),
        pytest.param({"completionMode": None}, None, "off", id="pods without an index"),
        pytest.param({"parallelism": 2}, None, "off", id="not all at once"),
        pytest.param({"completions": None, "completionMode": None}, None, "off", id="a work queue"),
        pytest.param({"backoffLimitPerIndex": 1, "maxFailedIndexes": 2}, None, "off", id="failures of one index"),
        pytest.param({"backoffLimit": None, "successPolicy": {"rules": []}}, None, "off", id="some may fail"),
    ],
)
def test_job_is_a_gang_if_all_its_pods_need_each_other(spec: Any, workers: int | None, gang: str) -> None:
    task = task_of(job(**spec))
    assert (task.workers, task.gang) == (workers, gang)


def test_failures_of_a_gang_are_retries_of_the_task() -> None:
    assert task_of(job(backoffLimit=4)).retries == 4


def test_job_without_a_gang_keeps_its_own_limits() -> None:
    spec = task_of(job(parallelism=2, backoffLimit=4)).manifest["spec"]
    assert spec == {"completions": 3, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 4}


def test_time_to_live_is_kept_unless_it_would_delete_results() -> None:
    assert task_of(job(ttlSecondsAfterFinished=86400)).ttl_after_finished_s == 86400
    assert task_of(job(ttlSecondsAfterFinished=60)).ttl_after_finished_s is None


@pytest.mark.parametrize("seconds", [0, 3653 * 86400 + 1, 2**63 - 1])
@pytest.mark.parametrize("field", ["activeDeadlineSeconds", "ttlSecondsAfterFinished"])
def test_limit_that_airflow_cannot_have_is_left_out_and_named(field: str, seconds: int) -> None:
    conversion = convert({"a.yaml": yaml.safe_dump(job(**{field: seconds}))})
    (task,) = tasks_of(conversion.source).values()
    assert (task.run_timeout_s, task.ttl_after_finished_s) == (None, None)
    assert any(line.startswith(f"  {field} was {seconds}") for line in conversion.summary)


def test_paused_job_stays_paused_and_a_queued_one_is_resumed_by_its_queue() -> None:
    queued = job(suspend=True, metadata={"labels": {"kueue.x-k8s.io/queue-name": "team"}})
    assert task_of(job(suspend=True)).manifest["spec"] == {"suspend": True}
    assert task_of(queued).manifest is None


def test_claims_that_all_pods_share_stay_in_the_manifest() -> None:
    claims = [{"name": "fabric", "resourceClaimTemplateName": "fabric"}]
    scheduling = {"schedulingPolicy": {"basic": {}}, "resourceClaims": claims}
    task = task_of(job(pod={"resourceClaims": claims}, scheduling=scheduling))
    assert task.manifest["spec"] == {"scheduling": {"resourceClaims": claims}}
    assert task.pod_overrides["spec"] == {"resourceClaims": claims}


# -- Queues and schedulers ---------------------------------------------------------------------------------------------


def test_labels_of_kueue_are_parameters() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": "high", "app": "x"}
    topology = {"annotations": {"kueue.x-k8s.io/podset-required-topology": "example.com/rack"}}
    task = task_of(job(metadata={"labels": labels}, of_pods=topology))

    assert (task.queue_name, task.queue_priority, task.topology) == ("team", "high", "required:example.com/rack")
    assert (task.labels, task.annotations) == ({"app": "x"}, None)


def test_annotation_that_lets_a_gang_start_in_part_is_left_out() -> None:
    annotations = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    assert task_of(job(metadata={"annotations": annotations})).annotations is None
    assert task_of(job(parallelism=2, metadata={"annotations": annotations})).annotations == annotations


LINKS = {
    "volcano": ("volcano", "annotations", "scheduling.k8s.io/group-name"),
    "coscheduling": ("scheduler-plugins-scheduler", "labels", "scheduling.x-k8s.io/pod-group"),
    "yunikorn": ("yunikorn", "annotations", "yunikorn.apache.org/task-group-name"),
}


@pytest.mark.parametrize(("scheduler", "link"), LINKS.items(), ids=LINKS)
def test_group_of_another_scheduler_is_made_by_the_provider(scheduler: str, link: tuple[str, str, str]) -> None:
    name, kind, key = link
    task = task_of(job(pod={"schedulerName": name}, of_pods={kind: {key: "g"}}))
    assert (task.gang_scheduler, task.scheduler_name, task.labels, task.annotations) == (scheduler, None, None, None)


# -- Peers -------------------------------------------------------------------------------------------------------------

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "peers"},
    "spec": {"clusterIP": "None", "selector": {"job-name": "train"}},
}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("ping train-0.peers", "ping $(MASTER_ADDR)"),
        ("ping 'train-0.peers.ml.svc.cluster.local'", "ping '$(MASTER_ADDR)'"),
        ("tcp://train-2.peers:29500", "tcp://$(GANG_NAME)-2.$(GANG_NAME):29500"),
        ("for i in 0 1; do ping train-${i}.peers; done", "for i in 0 1; do ping $(GANG_NAME)-${i}.$(GANG_NAME); done"),
        ("ping my-train-0.peers train-0.peers.example.com", "ping my-train-0.peers train-0.peers.example.com"),
    ],
    ids=["rank 0", "in quotes with the domain", "a rank", "a variable", "other hosts"],
)
def test_names_of_peers_are_those_of_the_gang(written: str, expected: str) -> None:
    task = task_of(SERVICE, job(pod={"subdomain": "peers"}, container={"command": ["sh", "-c", written]}))
    assert task.command[2] == expected


def test_name_of_the_service_that_cannot_be_decided_is_named_with_its_line() -> None:
    written = job(pod={"subdomain": "peers"}, container={"args": ["--hosts", "peers"]})
    text = yaml.safe_dump_all([SERVICE, written], sort_keys=False)
    line = text.splitlines().index("        - peers") + 1
    assert f"# Line {line} has peers, which is not decided" in source_of(SERVICE, written)


def test_variables_of_the_rendezvous_are_left_out() -> None:
    env = [{"name": "MASTER_ADDR", "value": "train-0.peers"}, {"name": "MASTER_PORT", "value": "3389"}]
    task = task_of(job(container={"env": [*env, {"name": "A", "value": "b"}]}))
    assert (task.env, task.rendezvous) == ({"A": "b"}, Rendezvous(3389))


# -- What stands beside a Job ------------------------------------------------------------------------------------------


def mounted(command: str, **volume: Any) -> Any:
    container = {"command": ["sh", command], "volumeMounts": [{"name": "scripts", "mountPath": "/scripts"}]}
    volumes = [{"name": "scripts", "configMap": {"name": "scripts", **volume}}]
    return job(container=container, pod={"volumes": volumes})


SCRIPTS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scripts"}, "data": {"run.sh": "echo a\nls\n"}}


def test_config_map_that_is_mounted_where_the_program_says_becomes_files() -> None:
    task = task_of(SCRIPTS, mounted("/scripts/run.sh"))
    assert (task.command, task.files) == (["sh", "/gang/files/run.sh"], {"run.sh": "echo a\nls\n"})
    assert "is not converted" not in source_of(SCRIPTS, mounted("/scripts/run.sh"))
    assert (task.volumes, task.volume_mounts) == (None, None)


def test_config_map_that_an_image_may_expect_in_its_place_must_exist() -> None:
    source = source_of(SCRIPTS, mounted("/entrypoint.sh"))
    assert "# These must exist beforehand: kubectl get configmap/scripts." in source


def test_objects_that_must_exist_are_named_with_the_command_that_checks_them() -> None:
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]
    pod = {
        "serviceAccountName": "robot",
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    summary = convert(
        {"a.yaml": yaml.safe_dump(job(container={"env": env}, pod=pod, metadata={"namespace": "ml"}))}
    ).summary
    names = "secret/keys serviceaccount/robot persistentvolumeclaim/data secret/registry"
    assert any(line.endswith(f"kubectl get -n ml {names}") for line in summary)


# -- Secrets -----------------------------------------------------------------------------------------------------------


def test_value_of_a_secret_never_reaches_the_dag() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "hunter2"}}
    env = [
        {"name": "HF_TOKEN", "value": "hf_hunter2"},
        {"name": "DATABASE", "value": "postgres://etl:hunter2@db/etl"},
        {"name": "TOKENIZERS_PARALLELISM", "value": "false"},
        {"name": "PIN_PASSWORD", "value": 123456},
    ]
    command = ["fetch", "--api-key=hunter2", "--password", "hunter2", "--max-token", "512", "--token=$(HF_TOKEN)"]
    args = ["--db=postgres://etl:hunter2@db/etl", "login -token 'hunter2' --secret hunter2 --token-file=/run/token"]
    program = {"env": env, "command": command, "args": args}
    conversion = convert({"a.yaml": yaml.safe_dump_all([secret, job(container=program)])})

    assert "hunter2" not in conversion.source + "".join(conversion.summary)
    assert "123456" not in conversion.source
    task = tasks_of(conversion.source)["train"]
    assert task.command == [
        "fetch", "--api-key=$(API_KEY)", "--password", "$(PASSWORD)", "--max-token", "512", "--token=$(HF_TOKEN)"
    ]  # fmt: skip
    assert task.args == [
        "--db=postgres://etl:$(PASSWORD)@db/etl",
        "login -token '$(TOKEN)' --secret $(SECRET) --token-file=/run/token",
    ]
    assert 'secretKeyRef": {"name": "train-env", "key": "HF_TOKEN"}' in conversion.source
    assert '"TOKENIZERS_PARALLELISM": "false"' in conversion.source


SECRETS = {
    "an option": ("fetch --api-key=hunter2", "fetch --api-key=$(API_KEY)"),
    "an option of Java": ("java -Ddb.dbPassword=hunter2", "java -Ddb.dbPassword=$(DDB_DB_PASSWORD)"),
    "a variable of a shell": (
        "export PGPASSWORD=x DB_PASS=hunter2; psql",
        "export PGPASSWORD=$(PGPASSWORD) DB_PASS=$(DB_PASS); psql",
    ),
    "a number": ("mysql --password 123456", "mysql --password $(PASSWORD)"),
    "a text of a program": ('login(token="hunter2", n=1)', 'login(token="$(TOKEN)", n=1)'),
    "JSON": ('{"clientSecret": "hunter2"}', '{"clientSecret": "$(CLIENT_SECRET)"}'),
    "a URL": ("curl https://etl:hunter2@db/x", "curl https://etl:$(PASSWORD)@db/x"),
    "a list of values": ("psql 'host=h;password=hunter2;x=1'", "psql 'host=h;password=$(PASSWORD);x=1'"),
    "a key of an account": ("cp 'a;AccountKey=hunter2=='", "cp 'a;AccountKey=$(ACCOUNT_KEY)'"),
    "a query": ("curl 'https://db/x?a=b&password=hunter2'", "curl 'https://db/x?a=b&password=$(PASSWORD)'"),
    "a line of a file": ("cat >x <<E\n[db]\npassword = hunter2\nE", "cat >x <<E\n[db]\npassword = $(PASSWORD)\nE"),
    "an option without a space": ("mysqldump -uroot -phunter2 db", "mysqldump -uroot -p$(PASSWORD) db"),
    "an option of one letter": ("sshpass -p hunter2 ssh x", "sshpass -p $(PASSWORD) ssh x"),
    "a short option among others": ("openssl enc -k hunter2 -in x", "openssl enc -k $(PASSWORD) -in x"),
    "a source of a password": (
        "openssl rsa -passin pass:hunter2 -passout 'pass:hunter3'",
        "openssl rsa -passin pass:$(PASSWORD) -passout 'pass:$(PASSWORD)'",
    ),
    "an argument": (
        "mc alias set s3 https://h KEY hunter2 && mc ls",
        "mc alias set s3 https://h KEY $(PASSWORD) && mc ls",
    ),
    "a login": ("wandb login hunter2", "wandb login $(PASSWORD)"),
    "a word of netrc": ("machine h login u password hunter2", "machine h login u password $(PASSWORD)"),
    "standard input": (
        "echo hunter2 | docker login --password-stdin",
        "echo $(PASSWORD) | docker login --password-stdin",
    ),
    "another header": ("curl -H 'X-Api-Key: hunter2'", "curl -H 'X-Api-Key: $(X_API_KEY)'"),
    "a web hook": (f"post https://hooks.slack.com/services/T0/{'a1' * 18}", "post https://$(ACCESS_TOKEN)"),
    "a user": ("curl -u etl:hunter2 db", "curl -u etl:$(USER_PASS) db"),
    "a header": ('curl -H "Authorization: Bearer hunter2"', 'curl -H "Authorization: Bearer $(AUTHORIZATION)"'),
    "a form of a token": (f"wandb {'ghp_' + 'a1' * 18}", "wandb $(ACCESS_TOKEN)"),
    "a web token": ("fetch eyJhbGciOiJI.eyJzdWIiOiIx.c2ln x", "fetch $(ACCESS_TOKEN) x"),
    "a user that is a token": ("git clone https://0a1b2c3d4e5f6a7b@h/x", "git clone https://$(ACCESS_TOKEN)@h/x"),
    "a login of a registry": (
        '{"auths": {"r": {"auth": "aHVudGVyMg=="}}}',
        '{"auths": {"r": {"auth": "$(DOCKER_AUTH)"}}}',
    ),
    "a URL of Oracle": ("x jdbc:oracle:thin:u/hunter2@h:1521", "x jdbc:oracle:thin:u/$(PASSWORD)@h:1521"),
    "a setting of a program": (
        "aws configure set aws_secret_access_key hunter2",
        "aws configure set aws_secret_access_key $(PASSWORD)",
    ),
    "a small variable of a shell": ("cd /x; api_token=hunter2; a", "cd /x; api_token=$(API_TOKEN); a"),
    "a setting in quotes": ("psql 'password=hunter2 host=h'", "psql 'password=$(PASSWORD) host=h'"),
}
NO_SECRETS = {
    "a reference": "fetch --token=$(TOKEN) --password ${PASSWORD} https://u:$PW@db",
    "a call": "token = get_token(); password=os.environ['P']; TOKEN=$(cat /run/token)",
    "a token of a language": "train --pad-token x --max-token 512 --tokenizer bert",
    "a path": "fetch --token /run/token --secret=/run/secret",
    "a user id": "docker run --user 1000:1000",
    "a line of a program": "password = config.password\ntoken = get(1)\nsecret = keys[0]\n",
    "a port of a database": "mysql --protocol tcp -P 3306 -p",
    "a login with a reference": "wandb login $KEY; wandb login --relogin; sshpass -e x; echo $P | x --password-stdin",
    "an option of another program": "sshpass -e ssh -p 22 h; mc alias list; curl -k h; openssl rsa -passin file:/run/p",
    "a file": "kubectl create secret generic x --from-file=password=p --from-file ssh-privatekey=key",
    "a port of a login": "ssh login -p 22; docker run -p 80:80 x; zip -r x.zip P",
    "a comparison and a format": "f(a, token=x, n=1); print('token=%s' % x if token==x else 1)",
    "a user of a URL": "git clone https://robot-account@h/x; ssh://git@h; curl https://node-1234567890123456:8080",
    "a setting": "ALLOW_EMPTY_PASSWORD=yes run",
}


@pytest.mark.parametrize(("written", "expected"), SECRETS.values(), ids=SECRETS)
def test_secret_in_a_command_is_a_variable_of_a_secret(written: str, expected: str) -> None:
    assert task_of(job(container={"command": ["sh", "-c", written]})).command[2] == expected


@pytest.mark.parametrize(
    "words",
    [
        "redis-cli -a {} ping",
        "mysql -uroot -p{} db",
        "sshpass -p {} ssh h",
        "mc alias set s3 https://h KEY {}",
        "docker login -u u -p {}",
        "az login --service-principal -u u -p {}",
        "unzip -P {} a.zip",
        "ldapsearch -x -w {}",
    ],
)
def test_secret_among_the_words_of_a_command_is_a_variable_of_a_secret(words: str) -> None:
    program, *args = words.format("hunter2").split()
    task = task_of(job(container={"command": [program], "args": args}))
    assert [*task.command, *task.args] == words.format("$(PASSWORD)").split()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("db.password=hunter2", "db.password=$(DB_PASSWORD)"),
        ("+wandb.api_key=hunter.2", "+wandb.api_key=$(WANDB_API_KEY)"),
        ("host=h user=u password=hunter2 port=1", "host=h user=u password=$(PASSWORD) port=1"),
        ("--from-literal=password=hunter2", "--from-literal=password=$(PASSWORD)"),
        ("a=b,auth.password=hunter2,c=d", "a=b,auth.password=$(AUTH_PASSWORD),c=d"),
        ("PRIVATE-TOKEN: hunter2", "PRIVATE-TOKEN: $(PRIVATE_TOKEN)"),
        ("model.pad_token=x", "model.pad_token=x"),
        ("model.max_token=512", "model.max_token=512"),
    ],
)
def test_secret_of_a_word_is_found_wherever_the_word_stands(word: str, expected: str) -> None:
    assert task_of(job(container={"command": [word, "run", word]})).command == [expected, "run", expected]


NAMES_OF_SECRETS = (
    "FERNET_KEY AIRFLOW__CORE__FERNET_KEY SECRET_KEY_BASE CLIENT_SECRET_VALUE MASTER_KEY STORAGE_KEY OPENAI_KEY GH_PAT "
    "CREDS DB_PW DOCKER_AUTH BASIC_AUTH PASSWORD_2 TOKEN2 BEARER"
)
OTHER_NAMES = (
    "PUBLIC_KEY KEY_PREFIX PARTITION_KEY SORT_KEY TOKENIZERS_PARALLELISM MAX_TOKENS PATH AUTHOR SPECIAL_TOKEN_2"
)


def test_name_of_a_variable_says_whether_its_value_is_secret() -> None:
    env = [{"name": name, "value": "hunter2"} for name in (*NAMES_OF_SECRETS.split(), *OTHER_NAMES.split())]
    variables = task_of(job(container={"env": env})).env
    kept = [name for name, value in variables.items() if value == "hunter2"]
    assert kept == OTHER_NAMES.split()


@pytest.mark.parametrize("text", NO_SECRETS.values(), ids=NO_SECRETS)
def test_text_without_a_secret_stays(text: str) -> None:
    assert task_of(job(container={"command": ["sh", "-c", text]})).command[2] == text


def test_word_that_names_a_file_of_a_secret_stays() -> None:
    command = ["kubectl", "--from-file", "password=p", "--from-file=ssh-privatekey=key"]
    assert task_of(job(container={"command": command})).command == command


def test_secret_outside_of_a_command_is_left_out_and_named() -> None:
    header = {"name": "Authorization", "value": "Bearer hunter2"}
    program = {
        "lifecycle": {"postStart": {"exec": {"command": ["login", "--password", "hunter2"]}}},
        "startupProbe": {"httpGet": {"port": 1, "httpHeaders": [header]}},
    }
    csi = {"driver": "d", "volumeAttributes": {"accessKey": "hunter2", "bucket": "b"}}
    metadata = {"annotations": {"example.com/db": "postgres://etl:hunter2@db", "example.com/api-token": "hunter2"}}
    written = job(container=program, pod={"volumes": [{"name": "v", "csi": csi}]}, metadata=metadata)
    conversion = convert({"a.yaml": yaml.safe_dump(written)})

    assert "hunter2" not in conversion.source + "".join(conversion.summary)
    task = tasks_of(conversion.source)["train"]
    assert (task.annotations, task.volumes[0]["csi"]["volumeAttributes"]) == (None, {"bucket": "b"})
    for name in ("example.com/db", "example.com/api-token", "Authorization", "accessKey"):
        assert f"  The value of {name} is secret and left out: it must come from a Secret" in conversion.summary


def test_one_command_creates_the_secret_of_all_variables() -> None:
    env = [{"name": name, "value": "hunter2"} for name in ("DB_PASSWORD", "API_TOKEN")]
    written = job(container={"env": env, "args": ["--password=hunter2"]}, metadata={"namespace": "ml"})
    commands = [line for line in convert({"a.yaml": yaml.safe_dump(written)}).summary if "kubectl create" in line]
    variables = " ".join(f'--from-literal={name}="${name}"' for name in ("PASSWORD", "DB_PASSWORD", "API_TOKEN"))
    assert [line.partition("kubectl ")[2] for line in commands] == [
        f"create secret generic -n ml train-env {variables}"
    ]


@pytest.mark.parametrize("line", ["export TOKEN=hunter2", "password: hunter2"])
def test_config_map_with_a_secret_must_exist(line: str) -> None:
    config_map = {**SCRIPTS, "data": {"run.sh": f"{line}\nls\n"}}
    source = source_of(config_map, mounted("/scripts/run.sh"))
    assert "hunter2" not in source
    assert "# These must exist beforehand: kubectl get configmap/scripts." in source


# -- Bad input ---------------------------------------------------------------------------------------------------------


def test_names_that_occur_twice_are_numbered() -> None:
    assert list(tasks_of(source_of(job(), job()))) == ["train", "train_2"]


HOSTILE = {"code": '"); import os; ("', "a line": "a\n", "an escape": "\\", "Jinja": "{{ x }}"}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_text_of_a_file_is_never_code(text: str) -> None:
    written = job(container={"command": [text]}, metadata={"name": text})
    tree = ast.parse(convert({text: yaml.safe_dump(written)}).source)
    (task,) = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) != "DAG")
    assert ast.unparse(task.func) == "GangJobOperator"
    (command,) = next(ast.literal_eval(one.value) for one in task.keywords if one.arg == "command")
    assert command.removeprefix("{% raw %}").removesuffix("{% endraw %}") == text


TEMPLATES = {
    "kubectl": "go-template={{range .items}}{{.metadata.name}}{{end}}",
    "docker": "docker ps --format '{{ if .ID }}x{{ end }}'",
    "Vault": '{{- with secret "a/b" -}}\nexport A={{ .Data.c }}\n{{- end }}',
}


@pytest.mark.parametrize("text", TEMPLATES.values(), ids=TEMPLATES)
def test_template_of_a_program_is_text_that_jinja_leaves_as_it_is(text: str) -> None:
    written = job(container={"command": ["run", text], "env": [{"name": "A", "value": text}]})
    written["spec"]["template"]["metadata"] = {"annotations": {"a": text}}
    commented = f"# {{{{ .Values.x }}}}\n{yaml.safe_dump(written)}"
    (task,) = tasks_of(convert({"a.yaml": commented}).source).values()
    task.render_template_fields({})
    assert (task.command, task.env, task.annotations) == (["run", text], {"A": text}, {"a": text})


def cron_job(schedule: Any, **spec: Any) -> str:
    """Return the text of a CronJob."""
    given = {"schedule": schedule, **spec, "jobTemplate": {"spec": job()["spec"]}}
    written = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "train"}, "spec": given}
    return yaml.safe_dump(written, sort_keys=False)


BAD = {
    "a schedule out of range": (cron_job("0 25 * * *"), 'line 6: has the schedule "0 25 .*". Give the five fields'),
    "a schedule with seconds": (cron_job("0 0 12 * * ?"), "line 6: has the schedule"),
    "a random schedule": (cron_job("R 0 * * *"), "line 6: has the schedule"),
    "a schedule without a date": (cron_job("0 0 30 2 *"), "line 6: has the schedule"),
    "an interval": (cron_job("@every 1h"), "line 6: has the schedule"),
    "a word of Airflow": (cron_job("@once"), "line 6: has the schedule"),
    "a long schedule": (cron_job("1 " * 1000), "Give the five fields of a cron expression"),
    "two time zones": (cron_job("TZ=UTC * * * * *", timeZone="UTC"), "line 6: has the schedule"),
    "a number as a schedule": (cron_job(5), "a field of another type"),
    "an unknown time zone": (cron_job("@daily", timeZone="Mars/X"), 'line 7: has the unknown time zone "Mars/X". Give'),
    "an unknown zone of a schedule": (cron_job("CRON_TZ=Mars/X @daily"), "line 6: has the unknown time zone"),
    "an empty time zone": (cron_job("@daily", timeZone=""), "line 7: has the unknown time zone"),
    "a template of Helm": ("kind: Job\nmetadata: {name: {{ .Values.name }}}\n", "line 2: is a template of Helm"),
    "a conditional of Helm": ("a: 1\n{{- if .x }}\n", "line 2: is a template of Helm"),
    "other braces": ("kind: Job\nmetadata: {name: {{ name }}}\n", "line 2: .*Render the template first"),
    "broken YAML": ("kind: [Job\n", "line 2: is not YAML"),
    "an unknown kind": (
        "apiVersion: example.org/v1\nkind: Foo\n",
        r"line 1: example.org/v1 Foo is not converted\. Cre",
    ),
    "another version": ("apiVersion: extensions/v1beta1\nkind: Job\n", "line 1: .*Give apiVersion: batch/v1"),
    "no kind": ("image: a\nworkers: 2\n", "line 1: is no object of Kubernetes"),
    "too long": ("a" * 10_000_000, "line 1: has 10000000 characters"),
    "a tag": ("kind: !!python/object:os.system {}\n", "line 1: is not YAML: could not determine a constructor"),
    "a cycle": ("kind: Job\nmetadata: &a {b: *a}\n", "line 2: is not YAML: .*levels"),
    "many aliases": (
        "\n".join(["a: &a0 [x, x]"] + [f"b{i}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(9)]),
        "values",
    ),
    "a date": ("apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {day: 2026-01-01}}\n", "line 3: .*Quote it"),
    "a variable of envsubst": (yaml.safe_dump(job(container={"image": "${IMAGE}"})), r"line \d+: .*image has the pl"),
    "a value that a person fills in": (yaml.safe_dump(job(metadata={"namespace": "<NAME>"})), "namespace has the pl"),
    "a number of envsubst": (yaml.safe_dump(job(completions="$N")), r"completions has the placeholder \$N"),
    "a Kustomization": (
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
        "line 1: .*Give what `kubectl kustomize` prints",
    ),
    "an empty List": ("apiVersion: v1\nkind: List\nitems: []\n", "line 1: v1 List is not converted"),
    "a list": ("- a\n", "line 1: is not a mapping"),
    "nothing": ("", "line 1: is empty"),
    "no text": ("\x00\x01", "is not YAML"),
    "a Job without a template": ("apiVersion: batch/v1\nkind: Job\nspec: {}\n", "line 1: .*has no template"),
    "a container without a name": (yaml.safe_dump(job(pod={"containers": [{"image": "i"}]})), "line 1: .*has no name"),
    "a Job without pods": (yaml.safe_dump(job(completions=0, parallelism=0)), "line 1: batch/v1 Job has no pods. Give"),
    "a variable with two sources": (
        yaml.safe_dump(job(container={"env": [{"name": "A", "value": "a", "valueFrom": {"fieldRef": {}}}]})),
        "gives A both a value and a source. Keep",
    ),
    "no container": (yaml.safe_dump(job(pod={"containers": []})), "line 1: .*has no containers"),
    "a Job without a spec": ("apiVersion: batch/v1\nkind: Job\n", "line 1: .* has no spec"),
    "a number as a word": (
        yaml.safe_dump(job(container={"args": [10]})),
        r"line 15: spec.*args\[0\] has 10, which YAML reads as the number 10",
    ),
    "a text as a number": (yaml.safe_dump(job(parallelism="3")), r"line \d+: parallelism is '3', not a whole number"),
    "a number as a variable": (
        yaml.safe_dump(job(container={"env": [{"name": "PORT", "value": 8080}]})),
        r"line \d+: spec.*env\[0\]\.value has 8080, which YAML reads as the number 8080",
    ),
    "a number that is no number of people": (
        yaml.safe_dump(job(container={"args": ["--time", "T"]})).replace("- T\n", "- 1:30\n"),
        r'line 16: spec.*args\[1\] has 1:30, which YAML reads as the number 90\. Quote it: "1:30"',
    ),
    "a word that is a boolean": (
        yaml.safe_dump(job(metadata={"labels": {"a.b/c": "B"}})).replace(": B\n", ": yes\n"),
        r'line 5: metadata\.labels\.a\.b/c has yes, which YAML reads as the boolean true\. Quote it: "yes"',
    ),
    "a number in a List": (
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [job(container={"workingDir": 10})]}, indent=1),
        r"line \d\d: items\[0\]\.spec.*workingDir has 10, .*Quote it",
    ),
    "a text as seconds": (
        yaml.safe_dump(job(pod={"terminationGracePeriodSeconds": "30"})),
        "line 19: terminationGracePeriodSeconds is '30'",
    ),
    "a policy of a container": (
        yaml.safe_dump(job(container={"imagePullPolicy": "always"})),
        "line 17: imagePullPolicy is 'always'",
    ),
    "a name from Helm": (
        yaml.safe_dump(job(metadata={"name": '{{ include "x" . }}'})),
        "line 4: is a template of Helm",
    ),
    "a value from Helm": (
        yaml.safe_dump(job(container={"args": ["{{ .Values.x }}"]})),
        "line 15: is a template of Helm. Give what `helm",
    ),
    "broken YAML behind a comment": ("# {{ .Values.x }}\na:\n- b\nkind: [Job\n", "line 5: is not YAML"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_with_the_file_the_line_and_a_cure(text: str, message: str) -> None:
    with pytest.raises(ConversionError, match=rf"^bad\.yaml: (?s:.*){message}") as raised:
        convert({"bad.yaml": text})
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("bad.yaml: line ")


def test_objects_of_json_need_no_separator() -> None:
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": job()["spec"]["template"]["spec"]}
            for name in ("a", "b", "c")]  # fmt: skip
    lines = [*map(json.dumps, pods[:2]), json.dumps(pods[2], indent=2)]
    assert list(tasks_of(convert({"a.json": "\n".join(lines)}).source)) == ["a", "b", "c"]
    with pytest.raises(ConversionError, match=r"line 2: v1 Foo is not converted"):
        convert({"a.json": '\n{"apiVersion": "v1", "kind": "Foo"}\n{"apiVersion": "v1", "kind": "Bar"}'})


# -- The command -------------------------------------------------------------------------------------------------------


def test_command_writes_the_dag_and_on_standard_error_what_was_changed(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job(backoffLimit=4)))

    assert main(["convert", str(path)]) == 0

    shown = capsys.readouterr()
    assert shown.out == convert({str(path): path.read_text()}).source
    assert shown.err.splitlines() == [
        f"{path}: line 1: batch/v1 Job train: a gang of 3",
        "  retries: Airflow retries the task 4 times, with pods of its own, in place of Kubernetes",
    ]


def test_check_writes_no_dag(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job()))
    assert main(["convert", "--check", str(path)]) == 0
    assert capsys.readouterr() == (f"{path}: line 1: batch/v1 Job train: a gang of 3\n", "")


@pytest.mark.parametrize("content", [None, b"\xff", b"a: [\n"], ids=["missing", "no UTF-8", "broken"])
def test_command_fails_with_one_line_and_writes_nothing(content: bytes | None, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "job.yaml"
    if content is not None:
        path.write_bytes(content)

    assert main(["convert", str(path)]) == 1

    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"gangjobs: {path}")


def test_command_needs_neither_a_database_nor_a_cluster(tmp_path: Path) -> None:
    unreachable = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/no/such.db",
        "KUBECONFIG": "/no/such",
    }
    done = subprocess.run(
        [sys.executable, "-m", "airflow_provider_gangjobs.cli.main", "convert", "-"],
        input=json.dumps(job()),
        env=os.environ | unreachable,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "GangJobOperator(" in done.stdout


def test_mode_of_a_file_is_written_as_an_octal_number() -> None:
    volumes = [{"name": "keys", "secret": {"secretName": "keys", "defaultMode": 256}}]
    assert '"defaultMode": 0o400' in source_of(job(pod={"volumes": volumes}))


def test_duration_is_written_in_its_largest_unit() -> None:
    assert "run_timeout=timedelta(seconds=90)" in source_of(job(activeDeadlineSeconds=90))
    assert task_of(job(activeDeadlineSeconds=90)).run_timeout_s == timedelta(seconds=90).total_seconds()

"""Validation of parameters and manifests: all problems are reported at once, each with its place and the remedy."""

import datetime
import json
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.render.files import FILES_BYTES_MAX, content_id_of
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous
from airflow_provider_gangjobs.gang.validation.validate import read_spec, require_valid, validate
from tests.examples import examples


def job(template=None, metadata=None, **spec):
    pod = {"containers": [{"name": "main", "image": "a"}]}
    template = {"spec": pod} if template is None else template
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata or {},
        "spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template, **spec},
    }


def container(**fields):
    return job({"spec": {"containers": [{"name": "main", "image": "a", **fields}]}})


def env(name, value):
    return container(env=[{"name": name, "value": value}])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.sampled_from(["spec", "metadata", "template", "containers", "env", "name", "volumes", "image", "labels"])
NESTED = st.recursive(
    ANYTHING,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(PARTS | st.integers(0, 1), inner, max_size=3),
    max_leaves=10,
)


# -- Validation of parameters: all problems are reported at once, each with the name of the field and the remedy -----

VALID = {
    "one pod": GangSpec(image="a"),
    "four workers": GangSpec(image="a", workers=4, command=["x"], env={"A": "1"}, resources={"cpu": "1", "x.org/y": 2}),
    "a manifest": GangSpec(manifest=job()),
    "a manifest with overrides": GangSpec(manifest=job(), pod_overrides={"spec": {"nodeSelector": None}}),
    "a link that is brought": GangSpec(
        manifest=job({"spec": {"schedulingGroup": {"podGroupName": "g"}, "containers": [{"name": "a", "image": "a"}]}})
    ),
    "its own replacement policy": GangSpec(manifest=job(podReplacementPolicy="TerminatingOrFailed")),
    "plain pods of any shape": GangSpec(manifest=job(completionMode="NonIndexed", backoffLimit=5), gang="off"),
    "preferred with any shape": GangSpec(manifest=job(backoffLimit=5), gang="preferred"),
    "rank variables without rendezvous": GangSpec(image="a", workers=2, env={"RANK": "0"}, rendezvous=False),
    "restart of a single pod": GangSpec(image="a", pod_overrides={"spec": {"restartPolicy": "OnFailure"}}),
    "env as a list": GangSpec(image="a", env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]),
    "files": GangSpec(image="a", files={"a.py": "", ".env": "x\0"}),
}


@pytest.mark.parametrize("spec", VALID.values(), ids=VALID)
def test_valid_request_has_no_problem(spec):
    assert validate(spec) == ()


# What is wrong -> (spec, path of the problem, a part of the message).
UPLOAD = content_id_of({"a": "x"})
PARAMETERS = {
    "no image": (GangSpec(), "image", "is missing"),
    "empty image": (GangSpec(image=" "), "image", "is empty"),
    "no workers": (GangSpec(image="a", workers=0), "workers", "is 0. Give 1 or more"),
    "workers as text": (GangSpec(image="a", workers="4"), "workers", "not a whole number"),
    "workers as boolean": (GangSpec(image="a", workers=True), "workers", "not a whole number"),
    "too many workers": (GangSpec(image="a", workers=100_001), "workers", "100000 at most"),
    "a limit of time that the Job controller cannot count": (
        GangSpec(image="a", run_timeout_s=1e10),
        "run_timeout_s",
        "Leave it out for no limit",
    ),
    "a number that Kubernetes cannot hold": (
        GangSpec(image="a", ttl_after_finished_s=2**31),
        "ttl_after_finished_s",
        "2147483647 at most",
    ),
    "workers of a role as text": (
        GangSpec(roles={"a": {"image": "a", "workers": "3"}, "b": {"image": "a"}}),
        "roles.a.workers",
        "not a whole number",
    ),
    "a scheduler of roles that is a list": (
        GangSpec(roles={"a": {"image": "a"}, "b": {"image": "a"}}, queue_name="q", gang_scheduler=["x"]),
        "gang_scheduler",
        "Choose one of",
    ),
    "a variable whose name is a list": (GangSpec(image="a", env=[{"name": ["A"]}]), "env[0].name", "a list, not text"),
    "a volume whose name is a list": (GangSpec(image="a", volumes=[{"name": ["d"]}]), "volumes[0].name", "not text"),
    "a label that is a list": (
        GangSpec(image="a", queue_name="q", labels={"kueue.x-k8s.io/queue-name": ["q"]}),
        "labels.kueue.x-k8s.io/queue-name",
        "a list, not text",
    ),
    "a restart policy that is a list": (
        GangSpec(image="a", pod_overrides={"spec": {"restartPolicy": ["Never"]}}),
        "pod_overrides.spec.restartPolicy",
        "a list, not text",
    ),
    "a container whose name is a list": (
        GangSpec(image="a", pod_overrides={"spec": {"containers": [{"name": ["a"]}]}}),
        "pod_overrides.spec.containers[0].name",
        "a list, not text",
    ),
    "a mount without path beside checkpoints": (
        GangSpec(image="a", command=["a"], checkpoints="/d", volumes=[{"name": "d"}], volume_mounts=[{"name": "d"}]),
        "spec.template.spec.containers[0].volumeMounts",
        "no mountPath",
    ),
    "a variable with a NUL character": (GangSpec(image="a", env={"A": "b\0c"}), "env.A", "has a NUL character"),
    "an argument with a NUL character": (GangSpec(image="a", args=["b", "\0"]), "args[1]", "has a NUL character"),
    "a manifest with a NUL character": (
        GangSpec(manifest={"spec": {"template": {"spec": {"containers": [{"image": "a", "command": ["\0"]}]}}}}),
        "manifest.spec.template.spec.containers[0].command[0]",
        "has a NUL character",
    ),
    "a text that is no Unicode": (GangSpec(image="a", env={"A": "\udcff"}), "env.A", "which UTF-8 cannot hold"),
    "an annotation that is no Unicode": (
        GangSpec(image="a", annotations={"a": "\udcff"}),
        "annotations.a",
        "which UTF-8 cannot hold",
    ),
    "a file that is no Unicode": (GangSpec(image="a", files={"a": "\udcff"}), "files.a", "which UTF-8 cannot hold"),
    "too high a minimum": (GangSpec(image="a", workers=2, min_workers=3), "min_workers", "the gang has 2"),
    "command as text": (GangSpec(image="a", command="python x.py"), "command", "['python', 'x.py']"),
    "a number in args": (GangSpec(image="a", args=["--epochs", 3]), "args[1]", 'Write it as text: "3"'),
    "unknown policy": (GangSpec(image="a", gang="always"), "gang", "required, preferred, off"),
    "unknown pull policy": (GangSpec(image="a", image_pull_policy="Maybe"), "image_pull_policy", "IfNotPresent"),
    "name with capitals": (GangSpec(image="a", name="Train"), "name", "lower-case"),
    "name that starts with a digit": (GangSpec(image="a", name="1a"), "name", "start with a letter"),
    "name without room for the attempt": (GangSpec(image="a", name="a" * 38), "name", "At most 37"),
    "namespace with a dot": (GangSpec(image="a", namespace="a.b"), "namespace", "lower-case"),
    "label key": (GangSpec(image="a", labels={"a b": "x"}), "labels.a b", "may only have"),
    "label value": (GangSpec(image="a", labels={"a": "x y"}), "labels.a", "Use an annotation"),
    "label as number": (GangSpec(image="a", labels={"a": 1}), "labels.a", 'Write it as text: "1"'),
    "our label": (
        GangSpec(image="a", labels={"gangjobs.airflow/gang": "x"}),
        "labels.gangjobs.airflow/gang",
        "reserved for the provider",
    ),
    "the controller's label": (GangSpec(image="a", labels={"job-name": "x"}), "labels.job-name", "Job controller"),
    "annotation as boolean": (GangSpec(image="a", annotations={"a": True}), "annotations.a", '"true"'),
    "huge annotations": (GangSpec(image="a", annotations={"a": "x" * 262144}), "annotations", "are allowed"),
    "env as number": (GangSpec(image="a", env={"A": 1}), "env.A", 'Write it as text: "1"'),
    "env as boolean": (
        GangSpec(image="a", env={"A": True}),
        "env.A",
        'the boolean true, not text. Write it as text: "t',
    ),
    "env as nothing": (GangSpec(image="a", env={"A": None}), "env.A", "is None"),
    "env of no known source": (GangSpec(image="a", env={"A": {"secretKeyRef": {}}}), "env.A", "valueFrom"),
    "env as text": (GangSpec(image="a", env="A=1"), "env", "Give a dict"),
    "env name": (GangSpec(image="a", env={"A=B": "1"}), "env.A=B", "Rename"),
    "env twice": (GangSpec(image="a", env=[{"name": "A"}, {"name": "A"}]), "env[1]", "second time"),
    "env without name": (GangSpec(image="a", env=[{"value": "1"}]), "env[0].name", "is missing"),
    "env with value and source": (
        GangSpec(image="a", env=[{"name": "A", "value": "1", "valueFrom": {}}]),
        "env[0]",
        "both a value and a source",
    ),
    "env with unknown field": (GangSpec(image="a", env=[{"name": "A", "from": "x"}]), "env[0]", "has from"),
    "rank variable": (GangSpec(image="a", workers=2, env={"RANK": "0"}), "env.RANK", "rendezvous=False"),
    "our variable": (GangSpec(image="a", env={"GANG_RESULT_PATH": "x"}), "env.GANG_RESULT_PATH", "every rank"),
    "the number of ranks": (GangSpec(image="a", env={"GANG_SIZE": "9"}), "env.GANG_SIZE", "every rank"),
    "a variable of a role": (
        GangSpec(roles={"leader": {"image": "a", "env": {"GANG_ROLE": "b"}}, "worker": {"image": "a"}}),
        "roles.leader.env.GANG_ROLE",
        "every rank",
    ),
    "bad quantity": (GangSpec(image="a", resources={"cpu": "2 cores"}), "resources.requests.cpu", "not a quantity"),
    "negative quantity": (GangSpec(image="a", resources={"cpu": -1}), "resources.requests.cpu", "negative"),
    "device without domain": (GangSpec(image="a", resources={"gpu": 1}), "resources.requests.gpu", "nvidia.com/gpu"),
    "half a device": (
        GangSpec(image="a", resources={"nvidia.com/gpu": "500m"}),
        "resources.requests.nvidia.com/gpu",
        "cannot be divided",
    ),
    "request above limit": (
        GangSpec(image="a", resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
        "resources.requests.memory",
        "Raise the limit",
    ),
    "device without limit": (
        GangSpec(image="a", resources={"requests": {"x.org/y": 1}}),
        "resources.limits.x.org/y",
        "is missing",
    ),
    "device with another limit": (
        GangSpec(image="a", resources={"requests": {"x.org/y": 1}, "limits": {"x.org/y": 2}}),
        "resources.requests.x.org/y",
        "Make them equal",
    ),
    "resources as a list": (GangSpec(image="a", resources=["cpu"]), "resources", "Give a dict"),
    "requests as a list": (GangSpec(image="a", resources={"requests": ["cpu"]}), "resources.requests", "Give a dict"),
    "mount without volume": (
        GangSpec(image="a", volume_mounts=[{"name": "d", "mountPath": "/d"}]),
        "spec.template.spec.containers[0].volumeMounts",
        "no volume has this name",
    ),
    "mount without path": (
        GangSpec(image="a", volumes=[{"name": "d"}], volume_mounts=[{"name": "d"}]),
        "spec.template.spec.containers[0].volumeMounts",
        "no mountPath",
    ),
    "two mounts at one path": (
        GangSpec(
            image="a",
            volumes=[{"name": "d"}],
            volume_mounts=[{"name": "d", "mountPath": "/d"}, {"name": "d", "mountPath": "/d/"}],
        ),
        "spec.template.spec.containers[0].volumeMounts",
        "Mount each path once",
    ),
    "two volumes of one name": (
        GangSpec(image="a", volumes=[{"name": "d"}, {"name": "d"}]),
        "spec.template.spec.volumes",
        "2 times",
    ),
    "volume name": (GangSpec(image="a", volumes=[{"name": "D"}]), "spec.template.spec.volumes[0].name", "lower-case"),
    "mount over the files": (
        GangSpec(
            image="a",
            files={"a": ""},
            volumes=[{"name": "d"}],
            volume_mounts=[{"name": "d", "mountPath": "/gang/files/"}],
        ),
        "spec.template.spec.containers[0].volumeMounts",
        "where the files are",
    ),
    "volume of our name": (
        GangSpec(image="a", files={"a": ""}, volumes=[{"name": "gang-files"}]),
        "spec.template.spec.volumes",
        "holds the files",
    ),
    "file in a directory": (GangSpec(image="a", files={"a/b.py": ""}), "files.a/b.py", "no subdirectories"),
    "file of a number": (GangSpec(image="a", files={"a": 1}), "files.a", "not text or bytes"),
    "huge binary file": (GangSpec(image="a", files={"a": b"x" * FILES_BYTES_MAX}), "files", "are allowed"),
    "upload of any name": (GangSpec(image="a", uploads=["model"]), "uploads[0]", "not a content id"),
    "upload twice": (GangSpec(image="a", uploads=[UPLOAD, UPLOAD]), "uploads", "the same content twice"),
    "too many uploads": (GangSpec(image="a", uploads=[UPLOAD] * 17), "uploads", "16 are allowed"),
    "uploads as text": (GangSpec(image="a", uploads=UPLOAD), "uploads", "not a list"),
    "huge files": (GangSpec(image="a", files={"a": "x" * FILES_BYTES_MAX}), "files", "are allowed"),
    "huge job": (GangSpec(image="a", args=["x" * 1024 * 1024]), "manifest", "use files or a volume"),
    "negative timeout": (GangSpec(image="a", run_timeout_s=-1), "run_timeout_s", "leave it out for no limit"),
    "zero timeout": (GangSpec(image="a", assemble_timeout_s=0), "assemble_timeout_s", "Give more than 0"),
    "endless timeout": (GangSpec(image="a", run_timeout_s=float("inf")), "run_timeout_s", "not a number of seconds"),
    "negative grace": (GangSpec(image="a", termination_grace_s=-1), "termination_grace_s", "Give 0 or more"),
    "rendezvous as number": (GangSpec(image="a", rendezvous=29500), "rendezvous", "Rendezvous(port=...)"),
    "port out of range": (GangSpec(image="a", rendezvous=Rendezvous(70000)), "rendezvous.port", "1 to 65535"),
    "keep_checkpoints as text": (GangSpec(image="a", keep_checkpoints="yes"), "keep_checkpoints", "True or False"),
    "labels with a number as key": (GangSpec(image="a", labels={1: "x"}), "labels", "which is not text"),
    "tolerations as a dict": (GangSpec(image="a", tolerations={"key": "x"}), "tolerations", "Give a list of dicts"),
    "pull secrets as text": (GangSpec(image="a", image_pull_secrets="s"), "image_pull_secrets", "as a list"),
    "pull secret's name": (GangSpec(image="a", image_pull_secrets=["S"]), "image_pull_secrets[0]", "lower-case"),
    "priority class": (GangSpec(image="a", priority_class="High!"), "priority_class", "lower-case"),
    "node selector": (GangSpec(image="a", node_selector={"a": "x y"}), "node_selector.a", "node's label"),
    "pod spec given as overrides": (
        GangSpec(image="a", pod_overrides={"spec": {"containers": [{"image": "b"}]}}),
        "pod_overrides",
        "cannot be merged",
    ),
    "overrides as text": (GangSpec(image="a", pod_overrides="x"), "pod_overrides", "not a mapping"),
}


@pytest.mark.parametrize(("spec", "path", "message"), PARAMETERS.values(), ids=PARAMETERS)
def test_wrong_parameter_is_named(spec, path, message):
    problems = {problem.path: str(problem) for problem in validate(spec)}
    assert message in problems[path]


def test_all_problems_are_reported_together():
    spec = GangSpec(
        command="python x.py",
        workers=0,
        env={"A": 1},
        labels={"a": "x y"},
        run_timeout_s=-1,
        resources={"cpu": "many"},
        gang="always",
    )
    paths = {problem.path for problem in validate(spec)}
    assert paths == {
        "image",
        "command",
        "workers",
        "env.A",
        "labels.a",
        "run_timeout_s",
        "resources.requests.cpu",
        "gang",
    }


@pytest.mark.parametrize(
    "given",
    [
        {"env": "PASSWORD=hunter2"},
        {"env": ["PASSWORD=hunter2"]},
        {"env_from": "hunter2"},
        {"files": "hunter2"},
        {"env": {"PASSWORD": b"hunter2"}},
        {"args": ["--password", b"hunter2"]},
        {"volumes": [{"name": "a", "csi": {"volumeAttributes": {"password": b"hunter2"}}}]},
        {"resources": {"limits": "hunter2"}},
        {"pod_overrides": {"spec": {"containers": [{"env": ["PASSWORD=hunter2"]}]}}},
        {"manifest": job({"spec": {"containers": [{"name": "a", "image": "a", "env": "PASSWORD=hunter2"}]}})},
    ],
    ids=str,
)
def test_value_that_may_be_secret_is_not_repeated(given):
    problems = validate(GangSpec(**{"image": "a", **given}))
    assert problems
    assert "hunter2" not in str(problems)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        b"a",
        datetime.timedelta(seconds=30),
        Decimal(3),
        {1, 2},
        Path("/a"),
        datetime.date(2026, 1, 1),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("security_context.runAsUser", lambda value: {"security_context": {"runAsUser": value}}),
        ("pod_overrides.spec.nodeName", lambda value: {"pod_overrides": {"spec": {"nodeName": value}}}),
        ("tolerations[0].tolerationSeconds", lambda value: {"tolerations": [{"tolerationSeconds": value}]}),
        ("volumes[0].hostPath.path", lambda value: {"volumes": [{"name": "a", "hostPath": {"path": value}}]}),
        ("env[0].valueFrom.x", lambda value: {"env": [{"name": "A", "valueFrom": {"x": value}}]}),
        ("manifest.spec.backoffLimit", lambda value: {"manifest": job(backoffLimit=value)}),
    ],
)
def test_value_that_json_cannot_hold_is_refused_and_not_sent_as_another_one(path, given, value):
    problems = validate(GangSpec(image="a", **given(value)))
    assert [problem.path for problem in problems if "JSON cannot hold" in problem.what] == [path]


def test_all_problems_of_env_are_reported_together():
    problems = validate(GangSpec(image="a", workers=2, env={1: "x", "Z": 5, "RANK": "1"}))
    assert {problem.path for problem in problems} == {"env.1", "env.Z", "env.RANK"}


def test_key_that_is_not_text_adds_nothing_to_a_value_that_is_no_mapping():
    (problem,) = validate(GangSpec(image={1: "x"}))
    assert problem.path == "image"


def test_request_that_is_null_is_a_problem():
    (problem,) = validate(GangSpec(image="a", resources={"requests": None}))
    assert problem.path == "resources.requests"


def test_problems_are_raised_as_one_error():
    with pytest.raises(InvalidGangSpec, match="2 problems, nothing was created") as caught:
        require_valid(GangSpec(image="a", gang="sometimes", workers=0))
    assert [problem.path for problem in caught.value.problems] == ["gang", "workers"]


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(GangSpec.__struct_fields__)), ANYTHING, max_size=6))
def test_validation_of_any_parameters_raises_nothing(parameters):
    assert isinstance(validate(GangSpec(**parameters)), tuple)


# -- Validation of manifests: each problem has the path of its field, and YAML that means something else is
#    named -----------------------------------------------------------------------------------------------------------

# What is wrong -> (spec, path of the problem, a part of the message).
MANIFESTS = {
    "no Job": (
        GangSpec(manifest={"apiVersion": "apps/v1", "kind": "Deployment"}),
        "manifest",
        "is apps/v1 Deployment. Give its spec.template in a Job whose program ends",
    ),
    "nothing": (GangSpec(manifest={}), "manifest", "is no apiVersion no kind"),
    "a number": (GangSpec(manifest=4), "manifest", "is int"),
    "a list": (GangSpec(manifest="[a]"), "manifest", "is not a mapping"),
    "broken text": (GangSpec(manifest="a: [b"), "manifest", "is not YAML: line 1"),
    "two documents": (GangSpec(manifest="a: b\n---\nc: d"), "manifest", "line 3 begins another object"),
    "nothing but a mark": (GangSpec(manifest="# later\n---\n"), "manifest", "is empty"),
    "many levels": (GangSpec(manifest="[" * 5000), "manifest", "line 1 has more than 100 levels"),
    "many levels by an alias": (GangSpec(manifest="a: &a [*a]"), "manifest", "100 levels, also by its aliases"),
    "a long number": (GangSpec(manifest="a: " + "1" * 5000), "manifest", "line 1 has a key or a number of more than"),
    "a long number in base 60": (GangSpec(manifest="a: 1" + ":1" * 99_999), "manifest", "a number of more than 1000"),
    "a number of more than 64 bits": (
        GangSpec(manifest=job(activeDeadlineSeconds=10**5000)),
        "manifest.spec.activeDeadlineSeconds",
        "is a number of more than 64 bits",
    ),
    "an unknown tag": (GangSpec(manifest="a: 1\nb: !Ref c"), "manifest", "line 2: could not determine a constructor"),
    "an object of Python": (GangSpec(manifest="a: !!python/object:os.system {}"), "manifest", "is not YAML"),
    "a copy of a live Job": (
        GangSpec(manifest={**job(metadata={"uid": "u"}), "status": {"active": 1}}),
        "manifest",
        "metadata.uid, status of a live object",
    ),
    "its own selector": (GangSpec(manifest=job(selector={})), "manifest.spec.selector", "chosen by the server"),
    "generateName": (
        GangSpec(manifest=job(metadata={"generateName": "a-"})),
        "manifest.metadata.generateName",
        "Use metadata.name",
    ),
    "a long name": (GangSpec(manifest=job(metadata={"name": "a" * 38})), "manifest.metadata.name", "At most 37"),
    "more completions": (
        GangSpec(manifest=job(completions=3)),
        "manifest.spec",
        "completions (3) is not equal to parallelism (2)",
    ),
    "no index": (GangSpec(manifest=job(completionMode="NonIndexed")), "manifest.spec", "cannot be a gang"),
    "replacement pods": (GangSpec(manifest=job(backoffLimit=3)), "manifest.spec", "kubernetes#142330"),
    "unknown mode": (
        GangSpec(manifest=job(completionMode="Sorted"), gang="off"),
        "manifest.spec.completionMode",
        "Choose Indexed or NonIndexed",
    ),
    "text as parallelism": (GangSpec(manifest=job(parallelism="2")), "manifest.spec.parallelism", "not a whole number"),
    "two kinds of gang": (
        GangSpec(
            manifest=job(
                {"spec": {"schedulingGroup": {"podGroupName": "g"}, "containers": [{"name": "a", "image": "a"}]}},
                scheduling={"schedulingPolicy": {"basic": {}}},
            )
        ),
        "manifest.spec.scheduling",
        "Keep one of the two",
    ),
    "a shared claim that no pod has": (
        GangSpec(
            manifest=job(scheduling={"resourceClaims": [{"name": "fabric", "resourceClaimTemplateName": "fabric"}]}),
            pod_overrides={"spec": {"resourceClaims": [{"name": "fabric", "resourceClaimName": "fabric"}]}},
        ),
        "manifest.spec.scheduling.resourceClaims",
        "has 'fabric', and the pods have no equal claim",
    ),
    "template finalizer": (
        GangSpec(
            manifest=job({"metadata": {"finalizers": ["keep"]}, "spec": {"containers": [{"name": "a"}]}}), image="a"
        ),
        "manifest.spec.template.metadata.finalizers[0]",
        "refuses every pod",
    ),
    "our finalizer": (
        GangSpec(image="a", pod_overrides={"metadata": {"finalizers": ["gangjobs.airflow/harvest"]}}),
        "pod_overrides.metadata.finalizers[0]",
        "Remove it",
    ),
    "a label whose key is no text": (
        GangSpec(manifest=job(metadata={"labels": {1: "x"}})),
        "manifest.metadata.labels",
        'has the key 1, which is not text. Write it as text: "1"',
    ),
    "an annotation whose key is no text": (
        GangSpec(manifest=job(metadata={"annotations": {True: "x"}})),
        "manifest.metadata.annotations",
        "has the key True, which is not text",
    ),
    "a key that is no text in a list": (
        GangSpec(manifest=container(env=[{"name": "A", 2: "x"}])),
        "manifest.spec.template.spec.containers[0].env[0]",
        "has the key 2, which is not text",
    ),
    "overrides with a label whose key is no text": (
        GangSpec(image="a", pod_overrides={"metadata": {"labels": {1: "x"}}}),
        "pod_overrides.metadata.labels",
        "has the key 1, which is not text",
    ),
    "overrides with an annotation whose key is no text": (
        GangSpec(image="a", pod_overrides={"metadata": {"annotations": {1: "x"}}}),
        "pod_overrides.metadata.annotations",
        "has the key 1, which is not text",
    ),
    "restart always": (
        GangSpec(image="a", pod_overrides={"spec": {"restartPolicy": "Always"}}),
        "spec.template.spec.restartPolicy",
        "Set it to Never",
    ),
    "restart of one rank": (
        GangSpec(image="a", workers=2, pod_overrides={"spec": {"restartPolicy": "OnFailure"}}),
        "spec.template.spec.restartPolicy",
        "lost its peers",
    ),
    "no image in a sidecar": (
        GangSpec(image="a", pod_overrides={"spec": {"containers": [{"name": "side"}]}}),
        "spec.template.spec.containers[1].image",
        "is missing",
    ),
    "containers as a mapping": (
        GangSpec(manifest=job({"spec": {"containers": {"name": "a"}}})),
        "manifest.spec.template.spec.containers",
        "not a list",
    ),
    "labels as a list": (
        GangSpec(manifest=job(metadata={"labels": ["a"]})),
        "manifest.metadata.labels",
        "not a mapping",
    ),
    "null in a list": (
        GangSpec(manifest=container(env=[None])),
        "manifest.spec.template.spec.containers[0].env[0]",
        "is null",
    ),
    "number in env": (
        GangSpec(manifest=env("A", 1)),
        "manifest.spec.template.spec.containers[0].env[0].value",
        'Write it as text: "1"',
    ),
    "rank variable": (
        GangSpec(manifest=env("RANK", "2")),
        "manifest.spec.template.spec.containers[0].env[0]",
        "RANK is set by the rendezvous. Remove it, or set rendezvous=False.",
    ),
    "number of processes": (
        GangSpec(manifest=env("WORLD_SIZE", "16")),
        "manifest.spec.template.spec.containers[0].env[0]",
        "WORLD_SIZE is set by the rendezvous, to the number of ranks, which are pods (2)",
    ),
    "number in command": (
        GangSpec(manifest=container(command=["sleep", 3])),
        "manifest.spec.template.spec.containers[0].command[1]",
        'Write it as text: "3"',
    ),
    "boolean in a node selector": (
        GangSpec(manifest=job({"spec": {"nodeSelector": {"gpu": True}, "containers": [{"name": "a", "image": "a"}]}})),
        "manifest.spec.template.spec.nodeSelector.gpu",
        'Write it as text: "true"',
    ),
    "number in a toleration": (
        GangSpec(image="a", pod_overrides={"spec": {"tolerations": [{"key": "a", "value": 1}]}}),
        "pod_overrides.spec.tolerations[0].value",
        'Write it as text: "1"',
    ),
    "two containers of one name": (
        GangSpec(manifest=job({"spec": {"containers": [{"name": "a", "image": "a"}] * 2}})),
        "spec.template.spec.containers[1].name",
        "given twice",
    ),
    "no container left": (
        GangSpec(image="a", pod_overrides={"spec": None}),
        "spec.template.spec.containers",
        "has none left",
    ),
    "generateName beside a name": (
        GangSpec(manifest=job(metadata={"generateName": "a-"}), name="a"),
        "manifest.metadata.generateName",
        "is given together with name",
    ),
    "not a number": (
        GangSpec(manifest=job(metadata={"annotations": {"n": float("nan")}})),
        "manifest.metadata.annotations.n",
        "which JSON cannot hold",
    ),
    "a set": (
        GangSpec(manifest=job(metadata={"annotations": {"n": {1}}})),
        "manifest.metadata.annotations.n",
        "is a set",
    ),
    "a list as a label": (
        GangSpec(manifest=job(metadata={"labels": {"n": [1]}})),
        "manifest.metadata.labels.n",
        "is a list, not text",
    ),
    "far too long a text": (GangSpec(manifest="x" * 1_500_001), "manifest", "has 1500001 characters"),
    "a list as a key": (GangSpec(manifest="? [a]\n: b"), "manifest", "a key must be text"),
    "a mapping as env value": (
        GangSpec(manifest=env("A", {"b": "c"})),
        "manifest.spec.template.spec.containers[0].env[0].value",
        "is a mapping, not text",
    ),
    "a date": (
        GangSpec(manifest=job(metadata={"annotations": {"day": datetime.date(2026, 1, 1)}})),
        "manifest.metadata.annotations.day",
        "the date 2026-01-01",
    ),
    "ranks without index": (
        GangSpec(manifest=job(completionMode="NonIndexed"), gang="off", rendezvous=True),
        "rendezvous",
        "NonIndexed",
    ),
}


@pytest.mark.parametrize(("spec", "path", "message"), MANIFESTS.values(), ids=MANIFESTS)
def test_wrong_manifest_is_named_by_its_path(spec, path, message):
    problems = {problem.path: str(problem) for problem in validate(spec)}
    assert message in problems[path]


KINDS = {
    "CronJob": ("batch/v1", "CronJob", "Give its spec.jobTemplate as a Job"),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", "JobSet", "each replicated Job as a role (roles)"),
    "MPIJob": ("kubeflow.org/v1", "MPIJob", 'with launch="mpi"'),
    "PyTorchJob": ("kubeflow.org/v1", "PyTorchJob", 'with launch="torchrun"'),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", "TrainJob", 'with launch="torchrun" or "mpi"'),
    "Job of Volcano": ("batch.volcano.sh/v1alpha1", "Job", 'gang_scheduler="volcano"'),
    "Deployment": ("apps/v1", "Deployment", "Give its spec.template in a Job"),
    "List": ("v1", "List", "Give the one Job of its items"),
}


@pytest.mark.parametrize(("version", "kind", "lead"), KINDS.values(), ids=KINDS)
def test_manifest_of_another_kind_leads_to_what_to_write(version, kind, lead):
    problem, *_ = validate(GangSpec(manifest={"apiVersion": version, "kind": kind, "metadata": {"name": "a"}}))
    assert lead in problem.remedy
    assert "docs/manifests.md" in problem.remedy
    assert "`gangjobs convert FILE`" in problem.remedy


SERVICE_TEXT = "apiVersion: v1\nkind: Service\nmetadata: {name: peers}\nspec: {clusterIP: None}\n"


def test_empty_documents_beside_a_job_are_ignored():
    written = MANIFEST_TEXT.format(written="one")
    assert validate(GangSpec(manifest=f"---\n# a comment\n---\n{written}---\n---\n")) == ()


def test_each_further_document_is_named_with_its_line_and_what_to_do():
    text = f"{SERVICE_TEXT}---\n{MANIFEST_TEXT.format(written='one')}"
    (problem,) = validate(GangSpec(manifest=text))
    assert problem.what == "line 1 begins another object, v1 Service"
    assert problem.remedy.startswith("Leave it out: the gang has a headless Service")


def test_word_off_in_yaml_switches_the_gang_off():
    assert read_spec(yaml.safe_load("image: a\ngang: off\n")).gang == "off"


MANIFEST_TEXT = """apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containers:
      - name: main
        image: a
        env:
        - name: A
          value: {written}
"""

NOT_READ_AS_TEXT = {
    "on": "the boolean true",
    "Yes": "the boolean true",
    "off": "the boolean false",
    "NO": "the boolean false",
    "0644": "the number 420",
    "12:30:45": "the number 45045",
    "1e3": None,
    "1_000": "the number 1000",
    "3.10": "the number 3.1",
    "2026-01-01": "the date 2026-01-01",
    "0x1F": "the number 31",
    '"on"': None,
}


def test_manifest_that_kubectl_has_written_is_accepted():
    manifest = {**job(metadata={"name": "a", "creationTimestamp": None}), "status": {}}  # create job --dry-run=client

    assert validate(GangSpec(manifest=manifest)) == ()


@pytest.mark.parametrize(("written", "read"), NOT_READ_AS_TEXT.items(), ids=NOT_READ_AS_TEXT)
def test_value_that_yaml_does_not_read_as_text_is_reported_as_written_and_as_read(written, read):
    problems = [str(problem) for problem in validate(GangSpec(manifest=MANIFEST_TEXT.format(written=written)))]
    message = f'line 11 has {written}, which YAML reads as {read}. Quote it: "{written}".'
    assert problems == ([] if read is None else [f"manifest.spec.template.spec.containers[0].env[0].value: {message}"])


READ_AS_TEXT = {
    "tabs before a comment": ("a\t\t# note", "a"),
    "a tab at the end": ("a\t", "a"),
    "a tab before the value": ("\ta", "a"),
    "the sign =": ("=", "="),
    "a character in two escapes of JSON": (r'"\ud83d\ude80"', "\N{ROCKET}"),
}


@pytest.mark.parametrize(("written", "text"), READ_AS_TEXT.values(), ids=READ_AS_TEXT)
def test_text_that_kubectl_reads_is_read_too(written, text):
    spec = GangSpec(manifest=MANIFEST_TEXT.format(written=written))

    assert validate(spec) == ()
    (container,) = manifest_of(spec)["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "A", "value": text}]


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_manifest_in_json_means_what_it_means_in_yaml(indent):
    manifest = {**job(), "metadata": {"annotations": {"a": "\N{ROCKET} \t \N{LATIN SMALL LETTER E WITH ACUTE}"}}}

    assert manifest_of(GangSpec(manifest=json.dumps(manifest, indent=indent))) == manifest


@pytest.mark.parametrize(
    "written",
    [
        *("!!bool '1'", "!!timestamp foo", "!!int ''", "!!float x", "!!binary é", "9999-99-99", "!unknown a"),
        *("!!bool {=: a}", "!!timestamp {=: a}"),
    ],
)
def test_value_that_yaml_cannot_read_is_a_problem_with_its_line(written):
    (problem,) = validate(GangSpec(manifest=MANIFEST_TEXT.format(written=written)))
    assert "is not YAML: line 11: " in problem.what


def test_tab_in_the_indentation_is_a_problem_with_its_line():
    (problem,) = validate(GangSpec(manifest="apiVersion: batch/v1\nkind: Job\nspec:\n\ttemplate: {}\n"))
    assert "is not YAML: line 4: " in problem.what


def test_key_that_yaml_does_not_read_as_text_is_reported():
    problems = [str(p) for p in validate(GangSpec(manifest="apiVersion: batch/v1\nkind: Job\non: x\n", image="a"))]
    assert problems == ['manifest.on: line 3: YAML does not read the key on as text. Quote it: "on".']


def test_key_given_twice_is_reported():
    problems = validate(GangSpec(manifest="apiVersion: batch/v1\nkind: Job\nkind: Job\n", image="a"))
    assert [(p.path, p.what) for p in problems] == [("manifest.kind", "line 3 has this key a second time")]


def test_manifest_whose_aliases_multiply_is_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]
    (problem,) = validate(GangSpec(manifest="\n".join(lines)))
    assert "more than 100000 values" in problem.what


@settings(max_examples=examples(100), deadline=None)
@given(NESTED, NESTED)
def test_validation_of_any_manifest_raises_nothing(spec, overrides):
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}
    assert isinstance(validate(GangSpec(image="a", manifest=manifest, pod_overrides=overrides)), tuple)

"""Validation of parameters: all problems are reported at once, each with the name of the field and the remedy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.render.files import FILES_BYTES_MAX, content_id_of
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous
from airflow_provider_gangjobs.gang.validation.validate import require_valid, validate
from tests.examples import examples
from tests.unit.invalid_specs import ANYTHING, job

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
    "files": GangSpec(image="a", files={"a.py": "", ".env": "x"}),
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
    "a host alias whose address is a list": (
        GangSpec(image="a", pod_overrides={"spec": {"hostAliases": [{"ip": ["a"]}]}}),
        "pod_overrides",
        "cannot be merged",
    ),
    "a mount without path beside checkpoints": (
        GangSpec(image="a", command=["a"], checkpoints="/d", volumes=[{"name": "d"}], volume_mounts=[{"name": "d"}]),
        "spec.template.spec.containers[0].volumeMounts",
        "no mountPath",
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

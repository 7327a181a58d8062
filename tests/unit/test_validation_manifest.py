"""Validation of manifests: each problem has the path of its field, and YAML that means something else is named."""

import datetime

import pytest
import yaml
from hypothesis import given, settings

from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.validation.validate import read_spec, validate
from tests.examples import examples
from tests.unit.invalid_specs import NESTED, container, env, job

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

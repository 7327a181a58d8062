"""KEP-5547 in 1.36 and 1.37: the Job controller creates Workload and PodGroup itself."""

import pytest

from gangjobs_sandbox.controllers import ControllerSettings
from gangjobs_sandbox.controllers.job.workload import pod_group_name
from gangjobs_sandbox.resources import JOBS, PODGROUPS, WORKLOADS
from tests.sandbox.builders import NAMESPACE, Bench

GANG = {"schedulingPolicy": {"gang": {}}}


def bench_of(release):
    bench = Bench(release, settings=ControllerSettings(workload_with_job=True))
    bench.node(cpu="4")
    return bench


@pytest.fixture
def old():
    return bench_of("1.36")


@pytest.fixture
def new():
    return bench_of("1.37")


def objects(bench):
    return bench.registry.list(WORKLOADS, NAMESPACE), bench.registry.list(PODGROUPS, NAMESPACE)


def groups_of_pods(bench):
    return {(pod["spec"].get("schedulingGroup") or {}).get("podGroupName") for pod in bench.pods("train")}


@pytest.mark.parametrize(
    "shape",
    [
        {"workers": 1},
        {"workers": None, "completions": 2, "parallelism": 2},
        {"workers": 4, "parallelism": 2},
        {"workers": 2, "pod_spec": {"schedulingGroup": {"podGroupName": "mine"}}},
    ],
    ids=["one worker", "not indexed", "less parallel", "own group"],
)
def test_other_shapes_get_no_gang_in_136(old, shape):
    old.job(**shape)
    old.run()
    assert objects(old) == ([], [])


def test_foreign_workload_of_the_name_disables_the_gang(old):
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    spec = {
        "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "train"},
        "podGroupTemplates": [{"name": "mine", **policy}],
    }
    old.registry.create(WORKLOADS, {"metadata": {"name": "mine"}, "spec": spec}, NAMESPACE)
    old.job(workers=2)
    old.run()
    assert groups_of_pods(old) == {None}


def test_job_name_that_is_too_long_for_a_template_gets_no_pods(old):
    """The template is named <job>-pgt-0, which must be a DNS label: a longer job name than 57 is always refused."""
    old.job("a" * 58, workers=2)
    old.run(120)
    assert old.pods() == []


def test_controlled_job_is_ignored_in_137(new):
    parent = {"apiVersion": "example.com/v1", "kind": "Set", "name": "p", "uid": "u", "controller": True}
    new.job(workers=2, metadata={"ownerReferences": [parent]}, scheduling=GANG)
    new.run()
    assert objects(new) == ([], [])
    assert len(new.bound("train")) == 2


def test_size_of_an_elastic_gang_follows_the_job(new):
    new.job(workers=2, scheduling=GANG)
    new.run()
    new.registry.patch(JOBS, "train", NAMESPACE, {"spec": {"parallelism": 3, "completions": 3}})
    new.run()
    (workload,), (group,) = objects(new)
    assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3
    assert workload["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]["minCount"] == 3


@pytest.mark.parametrize(("workload", "template"), [(10, 300), (300, 10), (300, 300)], ids=str)
def test_long_names_are_cut_to_fit(workload, template):
    name = pod_group_name("w" * workload, "t" * template)
    assert len(name) == 253
    assert name.count("w") >= min(workload, 100)
    assert name.count("t") >= min(template, 100)

"""The manifests and pod links of each dialect."""

import copy

import pytest

from airflow_provider_gangjobs.gang.schedulers.base import SchedulingGroup
from airflow_provider_gangjobs.gang.schedulers.workload_api import (
    DISCOVERED_DIALECTS,
    JobSchedulingDialect,
    find_dialect,
    select_dialect,
)
from airflow_provider_gangjobs.kube.names import is_dns_label

GROUP = SchedulingGroup(
    "train-0", "ml", size=4, min_count=3, priority_class="high", labels={"gangjobs.airflow/gang": "train-0"}
)
JOB = {"spec": {"template": {"spec": {"containers": []}}}}
JOB_OWNER = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "name": "train-0",
    "uid": "job-uid",
    "controller": True,
    "blockOwnerDeletion": False,
}
BOTH = ("workloads", "podgroups")
EVERY = [*DISCOVERED_DIALECTS, JobSchedulingDialect()]


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        ({"v1": ("priorityclasses",)}, None),
        ({"v1alpha1": ("workloads",)}, None),
        ({"v1alpha2": BOTH}, "v1alpha2"),
        ({"v1alpha2": ("workloads",)}, None),
        ({"v1alpha3": BOTH, "v1beta1": BOTH}, "v1beta1"),
        ({"v1alpha3": BOTH, "v1beta1": ()}, "v1alpha3"),
    ],
    ids=["none", "1.35", "1.36", "1.36 without PodGroups", "1.37", "1.37 without beta"],
)
def test_best_served_dialect_is_chosen(served, expected):
    dialect = select_dialect(served)
    assert (dialect and dialect.name) == expected


def test_field_of_the_job_is_used_only_by_name():
    assert select_dialect({"v1beta1": BOTH}, "job-scheduling") == JobSchedulingDialect()
    assert select_dialect({"v1alpha2": BOTH}, "job-scheduling", proven=["v2"]) is None


def test_names_are_unique_and_found():
    assert [find_dialect(dialect.name) for dialect in EVERY] == EVERY
    assert find_dialect("volcano") is None


@pytest.mark.parametrize("dialect", EVERY, ids=lambda dialect: dialect.name)
def test_present_and_missing_links_are_recognised(dialect):
    before = copy.deepcopy(JOB)
    linked = dialect.with_link(JOB, GROUP)
    assert before == JOB
    assert dialect.has_link(linked, GROUP)
    assert not dialect.has_link(JOB, GROUP)


@pytest.mark.parametrize("dialect", EVERY, ids=lambda dialect: dialect.name)
def test_objects_are_owned_by_the_job(dialect):
    made = [dialect.workload(GROUP, "job-uid"), dialect.pod_group(GROUP, "job-uid", "workload-uid")]
    for thing in filter(None, made):
        assert thing["metadata"]["ownerReferences"][0] == JOB_OWNER
        assert (thing["metadata"]["name"], thing["metadata"]["namespace"]) == ("train-0", "ml")
        assert thing["apiVersion"] == f"scheduling.k8s.io/{dialect.version}"


TEMPLATE_REFERENCES = {
    "v1alpha2": {"podGroupTemplateRef": {"workload": {"workloadName": "train-0", "podGroupTemplateName": "gang"}}},
    "v1alpha3": {"workloadRef": {"workloadName": "train-0", "templateName": "gang"}},
    "v1beta1": {"workloadRef": {"workloadName": "train-0", "templateName": "gang"}},
}


@pytest.mark.parametrize("name", TEMPLATE_REFERENCES)
def test_pod_group_names_its_template_as_the_release_does(name):
    dialect = find_dialect(name)
    assert dialect is not None
    workload, group = dialect.workload(GROUP, "job-uid"), dialect.pod_group(GROUP, "job-uid", "workload-uid")
    assert workload is not None
    assert group is not None
    policy = {"schedulingPolicy": {"gang": {"minCount": 3}}, "priorityClassName": "high"}
    assert workload["spec"]["podGroupTemplates"] == [{"name": "gang", **policy}]
    assert group["spec"] == {**TEMPLATE_REFERENCES[name], **policy}
    assert [owner["kind"] for owner in group["metadata"]["ownerReferences"]] == ["Job", "Workload"]
    assert group["metadata"]["ownerReferences"][1]["uid"] == "workload-uid"
    assert is_dns_label(workload["spec"]["podGroupTemplates"][0]["name"])
    assert dialect.with_link(JOB, GROUP)["spec"]["template"]["spec"]["schedulingGroup"] == {"podGroupName": "train-0"}


def test_job_scheduling_sets_the_field_of_the_job():
    dialect = find_dialect("job-scheduling")
    assert dialect is not None
    spec = dialect.with_link(JOB, GROUP)["spec"]
    assert spec["scheduling"] == {"schedulingPolicy": {"gang": {"minCount": 3}}}
    assert spec["template"] == JOB["spec"]["template"]
    assert dialect.workload(GROUP, "job-uid") is None
    assert dialect.pod_group(GROUP, "job-uid", "") is None

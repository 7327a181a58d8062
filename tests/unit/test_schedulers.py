"""The gang schedulers: which Jobs can be a gang, selection, links, objects, and the guarantee in a cluster."""

from __future__ import annotations

import copy
import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from airflow_provider_gangjobs.cluster.served_resources import DiscoveredResources
from airflow_provider_gangjobs.exceptions import GangUnsupported, InvalidGangSpec, SubmissionFailed
from airflow_provider_gangjobs.gang.render.placement import (
    Placement,
    PlacementDecision,
    Shape,
    decide_placement,
    ineligibility_reason,
    shape_of,
)
from airflow_provider_gangjobs.gang.schedulers import (
    DISCOVERED_DIALECTS,
    SEPARATE_SCHEDULERS,
    Guarantee,
    JobSchedulingDialect,
    SchedulingGroup,
    YuniKorn,
    find_dialect,
    find_scheduler,
    find_separate,
    names_cause,
    newer_dialects,
    says_refused,
    select_dialect,
    select_scheduler,
    separate_scheduler_of,
)
from airflow_provider_gangjobs.gang.spec import GangPolicy, GangSpec
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.kube.names import is_dns_label
from airflow_provider_gangjobs.kube.views import ServedGroup
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_CLAIM
from airflow_provider_gangjobs.submission.placement import depends_on_queue, select_placement

# -- The gang schedulers beside the default scheduler: selection, links, objects, and the guarantee in a cluster -----

GROUP = SchedulingGroup("train-0", "ml", 3, "high")
CONTAINER = {"name": "main", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
JOB = {"spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}}}
VOLCANO = {"scheduling.volcano.sh": ServedGroup({"v1beta1": ["podgroups", "queues"]})}
NATIVE = {"v1beta1": {"workloads": frozenset(), "podgroups": frozenset({"watch"})}}

DIALECTS = [*DISCOVERED_DIALECTS, JobSchedulingDialect()]


def gang(**parameters):
    return GangSpec(image="i", workers=4, **parameters)


def placement(spec, queue=None, **discovered):
    """The placement of a gang. The guarantee of its queue is used if the placement depends on the queue."""
    known = DiscoveredResources(**{"release": "1.34", "git_version": None, "resources": {}, **discovered})
    shape = shape_of(spec, {})
    queue = queue if depends_on_queue(spec, shape, known) else None
    decision, scheduler = select_placement(spec, shape, known, where="ml/train", queue=queue)
    return str(decision), scheduler and scheduler.name


@pytest.mark.parametrize(
    ("named", "scheduler_name", "default", "selected"),
    [
        (None, None, None, None),
        (None, "volcano", None, "volcano"),
        (None, "yunikorn", "volcano", "yunikorn"),
        (None, "scheduler-plugins-scheduler", None, "coscheduling"),
        (None, "mine", None, None),
        (None, "mine", "coscheduling", "coscheduling"),
        (None, None, "volcano", "volcano"),
        (None, "default-scheduler", "volcano", None),
        ("native", None, "volcano", None),
        ("coscheduling", "mine", "volcano", "coscheduling"),
        ("auto", "volcano", None, "volcano"),
    ],
)
def test_the_gang_the_pods_and_the_connection_select_the_scheduler_in_this_order(
    named, scheduler_name, default, selected
):
    scheduler = select_scheduler(named, scheduler_name, default)
    assert (scheduler and scheduler.name) == selected


@pytest.mark.parametrize("scheduler", [*SEPARATE_SCHEDULERS, *DIALECTS], ids=lambda one: one.name)
def test_link_is_added_to_a_copy_of_the_job_and_recognised(scheduler):
    before = copy.deepcopy(JOB)
    linked = scheduler.with_link(JOB, GROUP)
    assert before == JOB
    assert scheduler.has_link(linked, GROUP)
    assert not scheduler.has_link(JOB, GROUP)


@pytest.mark.parametrize("scheduler", SEPARATE_SCHEDULERS, ids=lambda one: one.name)
def test_pods_name_the_scheduler_unless_the_user_names_one(scheduler):
    named = copy.deepcopy(JOB)
    named["spec"]["template"]["spec"]["schedulerName"] = "mine"
    for job, expected in ((JOB, scheduler.scheduler_names[0]), (named, "mine")):
        template = scheduler.with_link(job, GROUP)["spec"]["template"]
        assert template["spec"]["schedulerName"] == expected
        assert template["metadata"]["labels"]["a"] == "b"


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("volcano", {"minMember": 3, "queue": "default", "priorityClassName": "high"}),
        ("coscheduling", {"minMember": 3}),
    ],
)
def test_the_job_owns_the_pod_group(name, spec):
    scheduler = find_separate(name)
    group = scheduler.pod_group(GROUP, "job-uid", "")
    assert scheduler.workload(GROUP, "job-uid") is None
    assert group["apiVersion"] == scheduler.objects[0].api_version
    assert group["spec"] == spec
    (owner,) = group["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", "train-0", "job-uid")


def test_volcano_takes_the_queue_from_the_pods():
    queued = SchedulingGroup("g", "ml", 2, pod_annotations={"scheduling.volcano.sh/queue-name": "research"})
    assert find_separate("volcano").pod_group(queued, "uid", "")["spec"]["queue"] == "research"


def test_yunikorn_gets_a_task_group_of_the_size_and_the_nodes_of_the_pods():
    job = copy.deepcopy(JOB)
    job["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}
    template = find_separate("yunikorn").with_link(job, GROUP)["spec"]["template"]["metadata"]
    (task_group,) = json.loads(template["annotations"]["yunikorn.apache.org/task-groups"])
    assert task_group == {
        "name": "gang",
        "minMember": 3,
        "minResource": {"cpu": "500m", "memory": "1Gi"},
        "nodeSelector": {"disk": "ssd"},
    }
    assert template["annotations"]["yunikorn.apache.org/task-group-name"] == "gang"
    assert "gangSchedulingStyle=Hard" in template["annotations"]["yunikorn.apache.org/schedulingPolicyParameters"]


def test_an_application_of_yunikorn_has_an_id_of_its_own_in_the_whole_cluster():
    def application_id(namespace: str, claim: str, nonce: str) -> str:
        job = {**JOB, "metadata": {"name": GROUP.name, "annotations": {ANNOTATION_CLAIM: claim}}}
        group = structs.replace(GROUP, namespace=namespace)
        linked = YuniKorn(nonce=nonce).with_link(job, group)
        assert find_separate("yunikorn").has_link(linked, group)
        return linked["spec"]["template"]["metadata"]["labels"]["applicationId"]

    jobs = itertools.product(("ml", "web"), ("first try", "second try"), ("first Job", "second Job"))
    ids = {application_id(*job) for job in jobs}
    assert len(ids) == 8
    assert all(re.fullmatch(r"train-0-[a-z2-7]{10}", one) for one in ids)


def test_the_annotation_of_the_job_names_the_scheduler():
    for scheduler in SEPARATE_SCHEDULERS:
        decision = PlacementDecision(Placement.GANG, scheduler.name)
        assert separate_scheduler_of(str(decision)) is scheduler
        assert find_scheduler(decision.detail) is scheduler
    assert separate_scheduler_of("gang:v1beta1") is None
    assert separate_scheduler_of("basic:volcano") is None
    assert separate_scheduler_of(None) is None


@pytest.mark.parametrize(
    ("served", "kept", "reason"),
    [
        (ServedGroup({"v1beta1": ["podgroups"]}), True, ""),
        (ServedGroup({"v1beta2": ["podgroups"]}), False, "only v1beta2"),
        (ServedGroup(), False, "does not serve podgroups of scheduling.volcano.sh/v1beta1"),
        (ServedGroup(unknown="Timeout"), None, "Timeout"),
    ],
)
def test_volcano_keeps_gangs_together_where_its_pod_groups_are_served(served, kept, reason):
    guarantee = find_separate("volcano").guarantee(served)
    assert guarantee.kept is kept
    assert reason in guarantee.reason


QUEUED = gang(queue_name="team")
KEPT, COUNTED, UNKNOWN = Guarantee(True), Guarantee(False, "counts a quota"), Guarantee(None, "cannot be read")
IN_NATIVE, IN_VOLCANO = {"resources": NATIVE}, {"groups": VOLCANO}
PLACED = {
    "no scheduler": (gang(), None, {**IN_NATIVE, **IN_VOLCANO}, "v1beta1"),
    "auto": (gang(gang_scheduler="auto"), None, IN_NATIVE, "v1beta1"),
    "by name": (gang(gang_scheduler="volcano"), None, IN_VOLCANO, "volcano"),
    "by its pods": (gang(scheduler_name="volcano"), None, IN_VOLCANO, "volcano"),
    "without objects": (gang(gang_scheduler="yunikorn"), None, {}, "yunikorn"),
    "by the connection": (gang(), None, {**IN_VOLCANO, "gang_scheduler": "volcano"}, "volcano"),
    "by its pods, not by the connection": (
        gang(scheduler_name="volcano"),
        None,
        {**IN_VOLCANO, "gang_scheduler": "kueue"},
        "volcano",
    ),
    "by name, not by the connection": (
        gang(gang_scheduler="native"),
        None,
        {**IN_NATIVE, "gang_scheduler": "volcano"},
        "v1beta1",
    ),
    "no queue": (gang(), KEPT, IN_NATIVE, "v1beta1"),
    "queue with a topology": (QUEUED, KEPT, IN_NATIVE, "kueue"),
    "queue that counts a quota": (QUEUED, COUNTED, IN_NATIVE, "v1beta1"),
    "queue that cannot be read": (QUEUED, UNKNOWN, IN_NATIVE, "v1beta1"),
    "queue without Workload API": (QUEUED, KEPT, {}, "kueue"),
    "by name in a queue": (structs.replace(QUEUED, gang_scheduler="native"), KEPT, IN_NATIVE, "v1beta1"),
    "field of the Job in a queue": (
        structs.replace(QUEUED, gang_scheduler="job-scheduling"),
        KEPT,
        IN_NATIVE,
        "job-scheduling",
    ),
    "by its pods in a queue": (structs.replace(QUEUED, scheduler_name="volcano"), KEPT, IN_VOLCANO, "volcano"),
    "by the connection in a queue": (QUEUED, KEPT, {**IN_NATIVE, "gang_scheduler": "native"}, "v1beta1"),
}


@pytest.mark.parametrize(("spec", "queue", "discovered", "scheduler"), PLACED.values(), ids=PLACED)
def test_gang_is_placed_by_the_scheduler_it_names_then_its_queue_then_the_workload_api(
    spec, queue, discovered, scheduler
):
    assert placement(spec, queue, **discovered) == (f"gang:{scheduler}", scheduler)


def test_scheduler_auto_makes_no_other_gang():
    assert gang(gang_scheduler="auto").hash == gang().hash


def test_a_scheduler_that_the_cluster_does_not_have_is_refused_with_what_was_found():
    served = {"scheduling.volcano.sh": ServedGroup({"v1": ["podgroups"]})}
    with pytest.raises(GangUnsupported, match=r"volcano cannot be used: .*scheduling\.volcano\.sh/v1beta1, only v1"):
        placement(gang(gang_scheduler="volcano"), resources=NATIVE, groups=served)


def test_a_preferred_gang_runs_as_plain_pods_where_its_scheduler_is_missing():
    decision, _ = placement(gang(gang_scheduler="coscheduling", gang=GangPolicy.PREFERRED), resources=NATIVE)
    assert decision.startswith("basic:coscheduling cannot be used")


def test_a_failed_discovery_is_not_a_missing_scheduler():
    with pytest.raises(SubmissionFailed, match="503"):
        placement(gang(gang_scheduler="volcano"), groups={"scheduling.volcano.sh": ServedGroup(unknown="503")})


def test_an_unknown_scheduler_of_the_connection_is_refused():
    with pytest.raises(GangUnsupported, match="the connection names the gang_scheduler 'slurm'"):
        placement(gang(), resources=NATIVE, gang_scheduler="slurm")


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"gang_scheduler": "slurm"}, "is 'slurm'"),
        ({"gang_scheduler": "native", "scheduler_name": "volcano"}, "the pods name the scheduler 'volcano'"),
        ({"gang_scheduler": "volcano", "scheduler_name": "default-scheduler"}, "'default-scheduler'"),
        ({"scheduler_name": "volcano", "gang_scheduler": "job-scheduling"}, "the pods name the scheduler 'volcano'"),
    ],
)
def test_contradicting_schedulers_are_refused(parameters, problem):
    with pytest.raises(InvalidGangSpec, match=problem):
        require_valid(gang(**parameters))


def test_pods_that_name_a_group_of_the_user_get_no_other_group():
    own = gang(scheduler_name="mine", labels={"scheduling.x-k8s.io/pod-group": "ours"})
    assert placement(own) == ("brought", None)
    assert placement(gang(labels={"scheduling.x-k8s.io/pod-group": "ours"}), resources=NATIVE)[0] == "gang:v1beta1"


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("0/1 nodes are available: 1 optimistic rejection in PostFilter.", True),
        ("0/1 nodes are available: 1 rejection in Unreserve.", True),
        ("0/1 nodes are available: 1 rejected due to timeout after waiting 10s at plugin Coscheduling.", True),
        ("0/1 nodes are available: 1 PodGroup not found.", False),
        ("pre-filter pod train-0 cannot find enough sibling pods, current pods number: 1", False),
        ("Pod ml/train-0-1 can possibly be assigned to node-0", False),
    ],
)
def test_message_that_refers_to_other_pods_names_no_cause_and_may_say_that_the_gang_is_refused(message, refused):
    assert not names_cause(message)
    assert says_refused(message) is refused


def test_message_about_the_nodes_names_the_cause():
    assert names_cause("0/2 nodes are available: 2 Insufficient cpu.")


def test_a_newer_version_is_used_only_after_its_proof():
    served = {"v1": ("priorityclasses", "workloads", "podgroups"), "v1alpha1": ()}
    (newer,) = newer_dialects(served)
    assert newer.version == "v1"
    assert select_dialect(served) is None
    proven = select_dialect(served, proven=["v1"])
    assert proven == newer == find_scheduler("v1")
    assert newer_dialects({"v1": ("priorityclasses",)}) == []


def test_a_known_version_is_preferred_to_a_newer_one():
    both = ("workloads", "podgroups")
    dialect = select_dialect({"v1": both, "v1beta1": both}, proven=["v1"])
    assert dialect is not None
    assert dialect.version == "v1beta1"


def test_scheduling_of_the_job_is_refused_beside_a_link_of_the_pods():
    template = {"spec": {"schedulingGroup": {"podGroupName": "g"}, "containers": [{"name": "main", "image": "i"}]}}
    job = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0, "template": template}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"scheduling": {}, **job}}
    with pytest.raises(InvalidGangSpec, match="is given together with the pods"):
        require_valid(GangSpec(manifest=manifest))


# -- The manifests and pod links of each dialect ---------------------------------------------------------------------

JOB_OWNER = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "name": "train-0",
    "uid": "job-uid",
    "controller": True,
    "blockOwnerDeletion": False,
}
BOTH = ("workloads", "podgroups")


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
    assert [find_dialect(dialect.name) for dialect in DIALECTS] == DIALECTS
    assert find_dialect("volcano") is None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
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


DISRUPTED_TOGETHER = {"v1alpha2": "PodGroup", "v1alpha3": {"all": {}}, "v1beta1": {"all": {}}}


@pytest.mark.parametrize("name", TEMPLATE_REFERENCES)
def test_pod_group_names_its_template_as_the_release_does(name):
    dialect = find_dialect(name)
    assert dialect is not None
    workload, group = (
        dialect.workload(GROUP, "job-uid"),
        dialect.pod_group(GROUP, "job-uid", "workload-uid"),
    )
    assert workload is not None
    assert group is not None
    scheduling = {"schedulingPolicy": {"gang": {"minCount": 3}}, "disruptionMode": DISRUPTED_TOGETHER[name]}
    policy = {**scheduling, "priorityClassName": "high"}
    assert workload["spec"]["podGroupTemplates"] == [{"name": "gang", **policy}]
    assert group["spec"] == {**TEMPLATE_REFERENCES[name], **policy}
    assert [owner["kind"] for owner in group["metadata"]["ownerReferences"]] == ["Job", "Workload"]
    assert group["metadata"]["ownerReferences"][1]["uid"] == "workload-uid"
    assert is_dns_label(workload["spec"]["podGroupTemplates"][0]["name"])
    assert dialect.with_link(JOB, GROUP)["spec"]["template"]["spec"]["schedulingGroup"] == {"podGroupName": "train-0"}


@pytest.mark.parametrize("name", TEMPLATE_REFERENCES)
def test_group_and_its_template_name_the_topology_of_a_gang_without_a_queue(name):
    dialect, group = find_dialect(name), structs.replace(GROUP, topology="example.com/rack")
    wanted = {"topology": [{"key": "example.com/rack"}]}
    assert dialect.workload(group, "")["spec"]["podGroupTemplates"][0]["schedulingConstraints"] == wanted
    assert dialect.pod_group(group, "", "")["spec"]["schedulingConstraints"] == wanted


@pytest.mark.parametrize("name", TEMPLATE_REFERENCES)
def test_group_and_its_template_have_the_claims_that_all_pods_share(name):
    claim = {"name": "fabric", "resourceClaimTemplateName": "fabric"}
    dialect, group = find_dialect(name), structs.replace(GROUP, resource_claims=(claim,))
    assert dialect.workload(group, "")["spec"]["podGroupTemplates"][0]["resourceClaims"] == [claim]
    assert dialect.pod_group(group, "", "")["spec"]["resourceClaims"] == [claim]


def test_job_scheduling_sets_the_field_of_the_job():
    dialect = find_dialect("job-scheduling")
    assert dialect is not None
    spec = dialect.with_link(JOB, GROUP)["spec"]
    assert spec["scheduling"] == {"schedulingPolicy": {"gang": {"minCount": 3}}, "disruptionMode": {"all": {}}}
    assert spec["template"] == JOB["spec"]["template"]
    assert dialect.workload(GROUP, "job-uid") is None
    assert dialect.pod_group(GROUP, "job-uid", "") is None


# -- Which Jobs can be a gang, and what happens to the others --------------------------------------------------------

FOUR = Shape(parallelism=4, completions=4, indexed=True, backoff_limit=0)

INELIGIBLE_SHAPES = {
    "not indexed": ({"indexed": False}, "NonIndexed"),
    "a tail of completions": ({"completions": 8}, "completions (8) is not equal to parallelism (4)"),
    "fewer completions": ({"completions": 2}, "completions (2) is not equal to parallelism (4)"),
    "no completions": ({"completions": None}, "completions (None)"),
    "replacement pods": ({"backoff_limit": 3}, "kubernetes#142330"),
    "replacement pods per index": ({"per_index_backoff": True}, "kubernetes#142330"),
    "owned by a controller": ({"controller": "CronJob/x"}, "CronJob/x owns the Job"),
}


@pytest.mark.parametrize(("change", "reason"), INELIGIBLE_SHAPES.values(), ids=INELIGIBLE_SHAPES)
def test_other_shapes_cannot_be_a_gang(change, reason):
    shape = structs.replace(FOUR, **change)
    assert reason in (ineligibility_reason(shape) or "")
    assert decide_placement(shape, GangPolicy.REQUIRED, scheduler="v1beta1").placement is Placement.REFUSED
    assert decide_placement(shape, GangPolicy.PREFERRED, scheduler="v1beta1").placement is Placement.BASIC


ONE = Shape(parallelism=1, completions=1, indexed=True, backoff_limit=0)
BROUGHT = structs.replace(FOUR, user_gang_link="spec.scheduling", indexed=False)
DECISIONS = {
    "a gang": (FOUR, GangPolicy.REQUIRED, "v1beta1", "gang:v1beta1"),
    "one pod": (ONE, GangPolicy.REQUIRED, None, "basic:one pod"),
    "no API, required": (FOUR, GangPolicy.REQUIRED, None, "refused:old"),
    "no API, preferred": (FOUR, GangPolicy.PREFERRED, None, "basic:old"),
    "off": (FOUR, GangPolicy.OFF, "v1beta1", "off"),
    "linked by the user": (BROUGHT, GangPolicy.REQUIRED, None, "brought"),
}


@pytest.mark.parametrize(("shape", "policy", "scheduler", "decision"), DECISIONS.values(), ids=DECISIONS)
def test_shape_policy_and_cluster_decide_the_placement(shape, policy, scheduler, decision):
    assert str(decide_placement(shape, policy, scheduler=scheduler, unserved="old")) == decision


@given(
    st.builds(Shape, st.integers(1, 5), st.none() | st.integers(1, 5), st.booleans(), st.integers(0, 2), st.booleans()),
    st.sampled_from(GangPolicy),
    st.none() | st.just("v1beta1"),
)
def test_only_a_gang_is_reported_as_a_gang(shape, policy, dialect):
    decision = decide_placement(shape, policy, scheduler=dialect)
    if decision.placement is Placement.GANG:
        assert shape.indexed
        assert shape.parallelism == shape.completions > 1
        assert (policy, dialect) != (GangPolicy.OFF, None)
    assert (decision.placement is Placement.REFUSED) <= (policy is GangPolicy.REQUIRED)


@pytest.mark.parametrize("text", ["gang:v1beta1", "basic:no API: none", "off", "brought"])
def test_decision_is_read_as_it_was_written(text):
    assert str(PlacementDecision.parse(text)) == text


def test_unknown_decision_is_no_gang():
    assert PlacementDecision.parse("volcano:x") == PlacementDecision(Placement.OFF)


def manifest(**spec):
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (GangSpec(), (1, 1, True)),
        (GangSpec(workers=4), (4, 4, True)),
        (GangSpec(manifest=manifest(parallelism=3, completions=3)), (3, 3, False)),
        (GangSpec(manifest=manifest(parallelism=3, completions=3, completionMode="Indexed")), (3, 3, True)),
        (GangSpec(manifest=manifest(parallelism=3), workers=5), (5, 5, True)),
        (GangSpec(manifest=manifest(parallelism=3)), (3, None, False)),
        (GangSpec(manifest=manifest(completionMode="NonIndexed"), workers=2), (2, 2, False)),
    ],
    ids=[
        "nothing",
        "workers",
        "manifest",
        "indexed manifest",
        "both",
        "work queue",
        "workers of a NonIndexed manifest",
    ],
)
def test_shape_follows_workers_then_manifest(spec, expected):
    shape = shape_of(spec, dict(spec.manifest or {}))
    assert (shape.parallelism, shape.completions, shape.indexed) == expected


def test_shape_includes_the_fields_that_others_manage():
    job = manifest(template={"spec": {"schedulingGroup": {"podGroupName": "g"}}})
    job["metadata"] = {
        "labels": {"kueue.x-k8s.io/queue-name": "q"},
        "ownerReferences": [{"kind": "JobSet", "name": "s", "controller": True}],
    }
    shape = shape_of(GangSpec(manifest=job), job)
    assert shape.user_gang_link == "spec.template.spec.schedulingGroup"
    assert (shape.kueue_queue, shape.controller) == ("q", "JobSet/s")

"""What a submission finds out about a cluster: its schedulers, its versions of the Workload API, and its queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.served_resources import discover
from airflow_provider_gangjobs.exceptions import GangUnsupported, InvalidGangSpec
from airflow_provider_gangjobs.gang.schedulers import PodGroupDialect
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import SubmissionState
from airflow_provider_gangjobs.kube import resources
from airflow_provider_gangjobs.kube.views import ApiGroupView, view
from airflow_provider_gangjobs.kube.well_known import LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission import capabilities
from airflow_provider_gangjobs.submission.capabilities import discover_for, why_unusable
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.resources import JOBS
from tests.crashes import InterceptedClient
from tests.manifests import SUSPENDED_MANIFEST
from tests.provider.role_gangs import LEADER_AND_WORKERS
from tests.provider.submission_cluster import DISCOVERY, GANG_OF_4, KEY, NAMESPACE, running_cluster
from tests.submission_requests import task_request

if TYPE_CHECKING:
    from collections.abc import Callable


# -- Discovery for gangs that name a scheduler, and for versions of the Workload API that are newer than the
#    provider --------------------------------------------------------------------------------------------------------


def gang(**parameters):
    return GangSpec(**{"image": "trainer:1", "workers": 2, **parameters})


async def sent(cluster, spec):
    """The number of requests that discovery sends for a gang, after those for any gang."""
    await discover(cluster.client)
    before = sum(cluster.client.statistics().requests.values())
    await discover_for(cluster.client, spec, namespace=NAMESPACE)
    return sum(cluster.client.statistics().requests.values()) - before


@pytest.mark.parametrize("scheduler", [None, "native", "job-scheduling", "volcano", "coscheduling", "yunikorn"])
async def test_what_places_a_gang_is_found_without_a_request_of_its_own(cluster, scheduler):
    assert await sent(cluster, gang(gang_scheduler=scheduler)) == 0


async def test_dry_runs_accept_a_version_that_keeps_the_link_and_the_group(cluster):
    assert await why_unusable(cluster.client, PodGroupDialect("v1beta1"), NAMESPACE) == ""
    assert cluster.jobs() == []


async def test_dry_runs_refuse_a_version_with_other_fields():
    async with running_cluster("1.36") as cluster:
        assert "refuses a dry run" in await why_unusable(cluster.client, PodGroupDialect("v1"), NAMESPACE)
        assert await why_unusable(cluster.client, PodGroupDialect("v1alpha2"), NAMESPACE) != ""


def gang_with_shared_claim(**parameters):
    claim = {"name": "fabric", "resourceClaimTemplateName": "fabric"}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"scheduling": {"resourceClaims": [claim]}}}
    return gang(manifest=manifest, pod_overrides={"spec": {"resourceClaims": [claim]}}, **parameters)


def topology(by="native", kind="required", **parameters):
    return gang(**{"gang_scheduler": by, "topology": f"{kind}:zone", **parameters})


NO_TOPOLOGY, NO_PREFERENCE = "its gate TopologyAwareWorkloadScheduling is off", "the Workload API knows no preference"
NO_CLAIMS, NOT_NATIVE = "its gate DRAWorkloadResourceClaims is off", "and the Workload API does not place the pods"
REFUSED = {
    "a scheduler that is not installed": (
        gang(gang_scheduler="volcano"),
        "volcano cannot be used: the cluster does not serve podgroups",
    ),
    "topology, by the gate of a PodGroup": (topology(), NO_TOPOLOGY),
    "topology, by the gate of a Job": (topology("job-scheduling"), NO_TOPOLOGY),
    "preferred topology": (topology(kind="preferred"), f"is preferred:zone, and {NO_PREFERENCE}"),
    "preferred topology of a Job": (topology("job-scheduling", "preferred"), f"is preferred:zone, and {NO_PREFERENCE}"),
    "topology without a gang": (topology(gang="off"), NOT_NATIVE),
    "topology without a gang of a Job": (topology("job-scheduling", gang="off"), NOT_NATIVE),
    "topology for another scheduler": (topology("yunikorn"), NOT_NATIVE),
    "shared claims, by the gate of a PodGroup": (
        gang_with_shared_claim(gang_scheduler="native"),
        f"{NO_CLAIMS}. Switch the gate on, or create one",
    ),
    "shared claims, by the gate of a Job": (gang_with_shared_claim(gang_scheduler="job-scheduling"), NO_CLAIMS),
    "shared claims without a gang": (gang_with_shared_claim(gang="off"), NOT_NATIVE),
    "shared claims for another scheduler": (gang_with_shared_claim(gang_scheduler="yunikorn"), NOT_NATIVE),
}


@pytest.mark.parametrize(("spec", "problem"), REFUSED.values(), ids=REFUSED)
async def test_gang_is_refused_where_nothing_acts_on_what_it_asks_for(cluster, spec, problem):
    with pytest.raises((GangUnsupported, InvalidGangSpec), match=problem):
        await GangService(cluster.client).submit(spec, submission_id="a")
    assert cluster.jobs() == []


async def test_one_pod_has_the_claim_that_a_gang_would_share(cluster):
    await GangService(cluster.client).submit(gang_with_shared_claim(workers=1), submission_id="a")
    (job,) = cluster.jobs()
    assert "scheduling" not in job["spec"]
    assert [claim["name"] for claim in job["spec"]["template"]["spec"]["resourceClaims"]] == ["fabric"]


async def test_newer_version_whose_dry_run_has_no_answer_is_unknown_and_tried_again(cluster, monkeypatch):
    monkeypatch.setattr(capabilities, "newer_dialects", lambda served: [PodGroupDialect("v1beta1")])
    monkeypatch.setattr(capabilities, "select_dialect", lambda served, *_: None)
    cluster.faults.add(Fault(FaultKind.STATUS, code=503, method="POST", times=None))
    found = await discover_for(cluster.client, gang(), namespace=NAMESPACE)
    assert (list(found.unknown), found.refused_versions) == (["scheduling.k8s.io/v1beta1"], {})

    cluster.faults.remove()
    found = await discover_for(cluster.client, gang(), namespace=NAMESPACE)
    assert (found.proven_versions, found.unknown) == (("v1beta1",), {})


async def test_each_submission_is_another_application_of_yunikorn(cluster):
    """A Job that is created again may have the same name and claim, so the last part of the id tells them apart."""

    async def submitted():
        await GangService(cluster.client).submit(gang(gang_scheduler="yunikorn"), task_request(KEY, "ti"))
        (job,) = cluster.jobs()
        return job["metadata"]["name"], job["spec"]["template"]["metadata"]["labels"]["applicationId"]

    name, application = await submitted()
    await cluster.client.delete(resources.JOBS, name, NAMESPACE)
    assert (await submitted())[1].rpartition("-")[2] != application.rpartition("-")[2]


# -- A cluster may manage Jobs that name no queue: the submission finds out before anything is created ---------------

Body = dict[str, Any]


class NewProcess(InterceptedClient):
    """A client of a process that has not read what the cluster serves."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.config = replace(self.config, tcp_keepalive=False)  # another connection shares no cached read


class ManagedJobs(NewProcess):
    """A client of a cluster with Kueue, whose webhook changes each Job that is created."""

    def __init__(self, client: Any, change: Callable[[Body], Body]) -> None:
        super().__init__(client)
        self.change = change

    async def api_groups(self) -> Any:
        kueue = {"metadata": {"name": "kueue.x-k8s.io"}, "versions": [{"version": "v1beta2"}]}
        return [*await super().api_groups(), view(ApiGroupView, kueue)]

    async def create(self, resource: Any, body: Body, *args: Any, **kwargs: Any) -> Any:
        body = self.change(body) if resource.plural == "jobs" else body
        return await super().create(resource, body, *args, **kwargs)


def suspended(body: Body) -> Body:
    return {**body, "spec": {**body["spec"], "suspend": True}}


def labelled(body: Body) -> Body:
    labels = {**body["metadata"]["labels"], LABEL_KUEUE_QUEUE: "default"}
    return {**body, "metadata": {**body["metadata"], "labels": labels}}


async def test_a_gang_is_refused_where_the_cluster_suspends_jobs_without_a_queue(cluster):
    client = ManagedJobs(cluster.client, suspended)
    with pytest.raises(InvalidGangSpec, match="manageJobsWithoutQueueName") as refused:
        await cluster.submit(GANG_OF_4, api=client)
    assert "Give queue_name, or name the queue in the connection" in str(refused.value)
    assert (client.requests.count("POST jobs"), len(client.requests)) == (1, 3), "a dry run"
    assert cluster.objects(JOBS) == []


@pytest.mark.parametrize("code", [403, 429, 500])
async def test_the_dry_run_is_sent_where_it_is_unknown_whether_kueue_is_served(cluster, code):
    cluster.faults.add(Fault(FaultKind.STATUS, code=code, path="/apis$", times=None))
    client = NewProcess(cluster.client)
    await cluster.submit(GANG_OF_4, api=client)
    assert client.requests.count("POST jobs") == 2, "a dry run, and the Job"


async def test_a_gang_whose_label_names_its_queue_is_not_judged(cluster):
    client = ManagedJobs(cluster.client, suspended)
    await cluster.submit(replace(GANG_OF_4, labels={LABEL_KUEUE_QUEUE: "team"}), api=client)
    assert DISCOVERY not in client.requests


async def test_a_gang_is_submitted_to_the_queue_that_the_cluster_gives(cluster):
    submission = await cluster.submit(GANG_OF_4, api=ManagedJobs(cluster.client, labelled))
    assert (submission.queue, submission.is_suspended) == ("default", True)
    assert submission.state is SubmissionState.IN_PROGRESS


async def test_a_gang_that_the_user_starts_is_not_judged(cluster):
    client = ManagedJobs(cluster.client, suspended)
    submission = await cluster.submit(replace(GANG_OF_4, manifest=SUSPENDED_MANIFEST), api=client)
    assert (submission.state, submission.is_suspended) == (SubmissionState.IN_PROGRESS, True)
    assert DISCOVERY not in client.requests


async def test_an_adopted_gang_is_not_judged_again(cluster):
    first = await cluster.submit(GANG_OF_4)
    client = ManagedJobs(cluster.client, suspended)
    assert (await cluster.submit(GANG_OF_4, api=client, claim="ti-2")).ref == first.ref
    assert not {"POST jobs", DISCOVERY} & set(client.requests)


@pytest.mark.parametrize("spec", [GANG_OF_4, LEADER_AND_WORKERS], ids=["one Job", "roles"])
async def test_no_dry_run_is_sent_where_kueue_is_not_served(cluster, spec):
    client = InterceptedClient(cluster.client)
    await cluster.submit(spec, api=client)
    assert client.requests.count("POST jobs") == len(cluster.objects(JOBS))


@pytest.mark.parametrize(
    ("change", "reason"),
    [(suspended, "manageJobsWithoutQueueName"), (labelled, "LocalQueue of the name default")],
    ids=["suspends it", "gives it to a queue"],
)
async def test_roles_are_refused_where_the_cluster_manages_jobs_without_a_queue(cluster, change, reason):
    client = ManagedJobs(cluster.client, change)
    with pytest.raises(GangUnsupported) as refused:
        await cluster.submit(LEADER_AND_WORKERS, api=client)
    assert reason in f"{refused.value} {refused.value.remedy}"
    assert (client.requests.count("POST jobs"), len(client.requests)) == (1, 3), "a dry run"
    assert cluster.objects(JOBS) == []

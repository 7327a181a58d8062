"""The capabilities of a cluster, and the dry run of a Job before anything is created."""

from __future__ import annotations

import pytest

from airflow_provider_gangjobs.exceptions import GangUnsupported, InvalidGangSpec, SubmissionFailed
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.submission.discovery.capabilities import read_capabilities
from airflow_provider_gangjobs.submission.submit import submit
from gangjobs_sandbox.api import Fault, FaultKind
from tests.crashes import CrashingClient
from tests.provider.submission_cluster import FIND_KUEUE, GANG_OF_4, RELEASES, running_cluster
from tests.sandbox.builders import NAMESPACE
from tests.submission_requests import id_request, task_request

KEY = TaskKey("dag", "run", "task")

LINK = {
    "1.35": "spec.template.spec.workloadRef",
    "1.36": "spec.template.spec.schedulingGroup",
    "1.37": "spec.template.spec.schedulingGroup",
}
DIALECTS = {"1.35": ("v1alpha1",), "1.36": ("v1alpha2",), "1.37": ("v1beta1", "v1alpha3", "native")}


@pytest.mark.parametrize("release", RELEASES)
async def test_capabilities_list_dialects_and_the_fields_that_a_dry_run_keeps(release):
    async with running_cluster(release) as cluster:
        found = await read_capabilities(cluster.client, namespace=NAMESPACE)
        assert (found.release, found.dialects, found.holds_gangs) == (release, DIALECTS[release], True)
        assert found.fields == {LINK[release]: True, "spec.scheduling": release == "1.37"}
        proven = [gate.is_on for gate in found.gates if gate.component == "kube-apiserver"]
        assert proven == [True, release == "1.37"]
        assert {gate.is_on for gate in found.gates if gate.component != "kube-apiserver"} == {None}
        assert cluster.jobs() == []


async def test_cluster_without_the_workload_api_has_no_capabilities():
    async with running_cluster("none") as cluster:
        found = await read_capabilities(cluster.client, namespace=NAMESPACE)
        assert (found.dialects, found.holds_gangs, found.scheduling_versions) == ((), False, ())


async def test_capabilities_are_read_once(cluster):
    first = await read_capabilities(cluster.client, namespace=NAMESPACE)
    before = dict(cluster.client.statistics().requests)
    assert await read_capabilities(cluster.client, namespace=NAMESPACE) is first
    assert dict(cluster.client.statistics().requests) == before


async def test_capability_that_may_not_be_read_is_unknown(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, method="POST", times=None))
    found = await read_capabilities(cluster.client, namespace=NAMESPACE)
    assert (set(found.fields.values()), found.holds_gangs) == ({None}, None)
    assert "403" in found.gates[0].evidence


async def submit_after_dry_run(cluster, spec, api=None):
    return await submit(
        api or cluster.client,
        spec,
        task_request(KEY, "x", dry_run=True),
        discovered=cluster.discovered,
    )


async def test_dry_run_takes_one_more_request(cluster):
    process = CrashingClient(cluster.client)
    submission = await submit_after_dry_run(cluster, GANG_OF_4, process)
    assert process.requests[:4] == ["LIST jobs", FIND_KUEUE, "POST jobs", "POST jobs"]
    cluster.check_one_live_gang(submission)
    assert (await submit_after_dry_run(cluster, GANG_OF_4)).requests == 1


async def test_field_that_the_server_refuses_is_named_and_nothing_is_created(cluster):
    refused = GangSpec(image="a", workers=2, pod_overrides={"spec": {"dnsPolicy": "Sometimes"}})
    with pytest.raises(InvalidGangSpec, match="dnsPolicy") as caught:
        await submit_after_dry_run(cluster, refused)
    assert "spec.template.spec.dnsPolicy" in {problem.path for problem in caught.value.problems}
    assert cluster.jobs() == []


async def test_a_link_that_would_be_dropped_is_found_before_anything_is_created():
    async with running_cluster("none") as cluster:
        cluster.ignore_scheduling_fields()
        process = CrashingClient(cluster.client)
        with pytest.raises(GangUnsupported, match="dropped"):
            await submit_after_dry_run(cluster, GANG_OF_4, process)
        assert process.requests == ["LIST jobs", FIND_KUEUE, "POST jobs"]
        assert cluster.jobs() == []


async def test_a_preferred_gang_falls_back_before_it_is_created():
    async with running_cluster("none") as cluster:
        cluster.ignore_scheduling_fields()
        submission = await submit_after_dry_run(cluster, GangSpec(image="a", workers=4, gang="preferred"))
        assert submission.decision.startswith("basic:the server dropped")
        assert len(submission.notes) == 1
        cluster.check_one_live_gang(submission)


async def test_missing_permission_is_reported_with_its_step(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, method="POST", times=None))
    with pytest.raises(SubmissionFailed, match="validate the Job by a dry run"):
        await submit_after_dry_run(cluster, GANG_OF_4)


async def test_a_failed_dry_run_is_repeated(cluster):
    cluster.faults.add(Fault(FaultKind.DROP_AFTER, method="POST", query="dryRun"))
    cluster.check_one_live_gang(await submit_after_dry_run(cluster, GANG_OF_4))


async def test_submission_of_an_id_can_have_a_dry_run(cluster):
    with pytest.raises(InvalidGangSpec, match="dnsPolicy"):
        await submit(
            cluster.client,
            GangSpec(image="a", pod_overrides={"spec": {"dnsPolicy": "Sometimes"}}),
            id_request("op", dry_run=True),
            discovered=cluster.discovered,
        )
    assert cluster.jobs() == []

"""Discovery for gangs that name a scheduler, and for versions of the Workload API that are newer than the provider."""

import pytest

from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.cluster.served_resources import discover
from airflow_provider_gangjobs.exceptions import GangUnsupported
from airflow_provider_gangjobs.gang.schedulers.workload_api import PodGroupDialect
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission import capabilities
from airflow_provider_gangjobs.submission.capabilities import discover_for, why_unusable
from gangjobs_sandbox.api import Fault, FaultKind
from tests.provider.submission_cluster import KEY, NAMESPACE, running_cluster
from tests.submission_requests import task_request


def gang(**parameters):
    return GangSpec(image="trainer:1", workers=2, **parameters)


async def sent(cluster, spec):
    """The number of requests that discovery sends for a gang, after those for any gang."""
    await discover(cluster.client)
    before = sum(cluster.client.statistics().requests.values())
    await discover_for(cluster.client, spec, namespace=NAMESPACE)
    return sum(cluster.client.statistics().requests.values()) - before


@pytest.mark.parametrize("named", [{}, {"gang_scheduler": "native"}, {"scheduler_name": "mine"}])
async def test_a_gang_that_names_no_other_scheduler_costs_no_request(cluster, named):
    assert await sent(cluster, gang(**named)) == 0


async def test_only_the_api_group_of_the_named_scheduler_is_read(cluster):
    assert await sent(cluster, gang(gang_scheduler="volcano")) == 1
    assert await sent(cluster, gang(gang_scheduler="yunikorn")) == 0


async def test_a_scheduler_that_is_not_installed_is_refused_and_nothing_is_created(cluster):
    with pytest.raises(GangUnsupported, match="volcano cannot be used: the cluster does not serve podgroups"):
        await GangService(cluster.client).submit(gang(gang_scheduler="volcano"), submission_id="a")
    assert cluster.jobs() == []


async def test_dry_runs_accept_a_version_that_keeps_the_link_and_the_group(cluster):
    assert await why_unusable(cluster.client, PodGroupDialect("v1beta1"), NAMESPACE) == ""
    assert cluster.jobs() == []


async def test_dry_runs_refuse_a_version_with_other_fields():
    async with running_cluster("1.36") as cluster:
        assert "refuses a dry run" in await why_unusable(cluster.client, PodGroupDialect("v1"), NAMESPACE)
        assert await why_unusable(cluster.client, PodGroupDialect("v1alpha2"), NAMESPACE) != ""


async def test_newer_version_whose_dry_run_has_no_answer_is_unknown_and_tried_again(cluster, monkeypatch):
    monkeypatch.setattr(capabilities, "newer_dialects", lambda served: [PodGroupDialect("v1beta1")])
    monkeypatch.setattr(capabilities, "select_dialect", lambda served: None)
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
    await cluster.client.delete(JOBS, name, NAMESPACE)
    assert (await submitted())[1].rpartition("-")[2] != application.rpartition("-")[2]

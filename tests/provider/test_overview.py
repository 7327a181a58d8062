"""The overview of all gangs of a namespace: one diagnosis for each, or none, in a bounded number of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.gang_lists import GangName
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.view import NOT_READ
from airflow_provider_gangjobs.tracking.gang_listing import find_gangs
from airflow_provider_gangjobs.tracking.overview import Overview, read_overview
from tests.airflow.polling import wait_for
from tests.manifests import SUSPENDED_MANIFEST
from tests.provider.cli_gangs import CliGangs
from tests.sandbox_faults import arm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.service import GangService
    from gangjobs_sandbox.thread import SandboxThread


@pytest.fixture(scope="module")
def tonight(embedded: SandboxThread) -> Iterator[CliGangs]:
    """A namespace with a gang that runs, two that wait, one that failed, and one that has succeeded."""
    gangs = CliGangs(embedded)
    gangs.create_namespace()
    gangs.submit("train", "sleep 600")
    gangs.submit("big", "true", workers=4, resources={"cpu": "3"})
    gangs.submit("kept", "true", manifest=SUSPENDED_MANIFEST)
    gangs.submit("fail", "exit 3")
    gangs.submit("load", "true")
    wanted = {"train": Phase.RUNNING, "big": Phase.ASSEMBLING, "fail": Phase.FAILED, "load": Phase.SUCCEEDED}
    for name, phase in wanted.items():
        gangs.wait_for(gangs.refs[name], phase)
    yield gangs
    gangs.delete_all()


@pytest.mark.parametrize("name", ["train-", "-train", "train.", "a_b", "ü"])
def test_name_that_no_job_can_have_is_the_name_of_no_gang(tonight: CliGangs, name: str) -> None:
    assert tonight.run(lambda service: find_gangs(service.client, service.namespace, GangName((name,)))) == []


async def read(service: GangService) -> Overview:
    return await read_overview(service.client, service.namespace, installation="")


def by_task(overview: Overview) -> dict[str, tuple[str, str]]:
    return {gang.task_id: (str(gang.phase), gang.category) for gang in overview.gangs}


def test_each_gang_has_the_diagnosis_that_its_job_and_waiting_pods_show(tonight: CliGangs) -> None:
    found = tonight.run(read)

    assert by_task(found) == {
        "train": ("running", "Running"),
        "big": ("assembling", "NeverFits"),
        "kept": ("queued", "KeptSuspended"),
        "fail": ("failed", "ApplicationFailed"),
        "load": ("succeeded", "Succeeded"),
    }
    (big,) = (gang for gang in found.gangs if gang.task_id == "big")
    assert big.requests == {"cpu": "12"}
    assert found.free["cpu"] > 0
    assert [(queue, dag.dag_id, dag.held["cpu"], dag.wanted["cpu"], dag.never["cpu"]) for queue, dag in found.uses] == [
        ("", "etl", "200m", "200m", "12")
    ]


def test_gang_holds_its_nodes_before_its_ranks_run(embedded: SandboxThread) -> None:
    gangs = CliGangs(embedded)
    gangs.create_namespace()
    missing = {"name": "data", "secret": {"secretName": "missing"}}
    gangs.submit("starts", "true", workers=2, resources={"cpu": "100m"}, volumes=[missing])

    def use() -> list[tuple[object, object]]:
        return [(dag.held, dag.wanted) for _, dag in gangs.run(read).uses]

    wait_for("nodes for both ranks", lambda: use() == [({"cpu": "200m"}, {})])
    gangs.delete_all()


def test_gang_whose_job_has_not_changed_is_not_judged_again(tonight: CliGangs) -> None:
    async def read_twice(service: GangService) -> tuple[Overview, Overview]:
        first = await read(service)
        return first, await read_overview(service.client, service.namespace, installation="", before=first)

    first, second = ({gang.task_id: gang for gang in found.gangs} for found in tonight.run(read_twice))

    assert first == second
    is_kept = {name: first[name] is gang for name, gang in second.items()}
    assert is_kept == {"train": True, "load": True, "big": False, "kept": False, "fail": True}


def test_number_of_requests_does_not_depend_on_the_gangs(tonight: CliGangs) -> None:
    async def count(service: GangService) -> dict[str, int]:
        await read(service)
        return dict(service.client.statistics().requests)

    requests = tonight.run(count)

    # Jobs, pods that wait, their groups, Events of the autoscaler. Kueue is not installed, which is discovered once.
    # Nodes and pods of the cluster are read once a minute, and the rights to do so are asked for. Pods and outcomes are
    # read of the gang that failed.
    assert sum(requests.values()) <= 10


def test_what_cannot_be_read_is_unknown(tonight: CliGangs) -> None:
    arm(tonight.sandbox, path=f"/namespaces/{tonight.namespace}/pods", code=403)
    found = tonight.run(read)

    (big,) = (gang for gang in found.gangs if gang.task_id == "big")
    assert (big.category, big.summary) == ("Unknown", NOT_READ)


def test_gangs_of_tasks_of_other_installations_are_left_out(tonight: CliGangs) -> None:
    async def read_other(service: GangService) -> Overview:
        spec = GangSpec(image="a", workers=1, command=["true"], manifest=SUSPENDED_MANIFEST)
        await service.submit(spec, submission_id=f"by-hand-{tonight.namespace}")
        return await read_overview(service.client, service.namespace, installation="other")

    assert [gang.submission_id for gang in tonight.run(read_other).gangs] == [f"by-hand-{tonight.namespace}"]

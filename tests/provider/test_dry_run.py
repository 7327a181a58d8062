"""`dry_run()` prints the objects that a submission creates, without a cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG

from airflow_provider_gangjobs.decorators.gang_job import gang_job_task
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.preview import JOB_UID, WORKLOAD_UID, preview, to_yaml
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from tests.provider.submission_cluster import KEY, OBJECTS, running_cluster


class OwnText(str):
    """As of ruamel.yaml or numpy."""


class OwnNumber(int):
    """As of ruamel.yaml."""


class Image(StrEnum):
    TRAINER = "trainer:1"


SPECS = {
    "texts and numbers of types of their own": GangSpec(
        image=Image.TRAINER, workers=OwnNumber(2), command=[OwnText("a")], env={"A": OwnText("b")}
    ),
    "a gang with files": GangSpec(image="trainer:1", workers=4, files={"train.py": "pass\n"}),
    "plain pods": GangSpec(image="trainer:1", workers=2, gang="off"),
    "one pod": GangSpec(image="trainer:1"),
    "roles": GangSpec(roles={"head": {"image": "a"}, "worker": {"image": "b", "workers": 2}}),
}


def is_within(shown: Any, stored: Any) -> bool:
    """Return whether all that is shown is stored. UIDs, the claim, and what steps change after the creation differ."""
    if isinstance(shown, dict):
        return all(
            name in ("uid", "gangjobs.airflow/claim", "suspend", "gangjobs.airflow/job-uid")
            or is_within(value, stored.get(name))
            for name, value in shown.items()
        )
    if isinstance(shown, list):
        return len(shown) == len(stored) and all(map(is_within, shown, stored))
    return shown == stored or shown in (JOB_UID, WORKLOAD_UID)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
async def test_preview_has_the_objects_that_a_submission_creates(spec: GangSpec) -> None:
    shown = preview(spec, KEY)
    async with running_cluster("1.37") as cluster:
        await cluster.submit(spec)
        stored = {
            (one["kind"], one["metadata"]["name"]): one
            for resource in OBJECTS
            for one in ({"kind": resource.kind, **found} for found in cluster.objects(resource))
        }

    assert {(one["kind"], one["metadata"]["name"]) for one in shown} == stored.keys()
    for one in shown:
        found = stored[one["kind"], one["metadata"]["name"]]
        assert is_within({name: one[name] for name in one if name in ("metadata", "spec", "data")}, found)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_yaml_has_the_same_objects(spec: GangSpec) -> None:
    shown = preview(spec, KEY)
    assert tuple(yaml.safe_load_all(to_yaml(shown))) == shown


def test_task_prints_its_objects_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    with DAG("etl", schedule=None):
        task = GangJobOperator(task_id="train", image="trainer:1", workers=2, files={"a.py": "import os\nprint(1)\n"})

    task.dry_run()

    printed = capsys.readouterr().out
    kinds = [document["kind"] for document in yaml.safe_load_all(printed)]
    assert kinds == ["Job", "Service", "ConfigMap", "Workload", "PodGroup"]
    assert "a.py: |\n    import os\n" in printed
    assert "*id" not in printed


def test_function_of_the_decorator_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with DAG("etl", schedule=None) as dag:

        @gang_job_task(image="python:3", workers=2)
        def train() -> int:
            return 1

        train()

    dag.get_task("train").dry_run()

    assert "def train()" in capsys.readouterr().out


def test_roles_in_a_queue_are_a_job_set() -> None:
    shown = preview(GangSpec(roles={"head": {"image": "a"}, "w": {"image": "b"}}, queue_name="team"), KEY)
    assert [one["kind"] for one in shown][:2] == ["Job", "JobSet"]


@pytest.mark.parametrize("scheduler", ["volcano", "coscheduling", "yunikorn", "kueue"])
def test_other_schedulers_need_no_cluster(scheduler: str) -> None:
    spec = GangSpec(image="i", workers=2, gang_scheduler=scheduler, queue_name="q" if scheduler == "kueue" else None)
    job = preview(spec, KEY)[0]
    assert read_job(job).placement == f"gang:{scheduler}"


def test_problems_are_those_of_a_submission() -> None:
    with pytest.raises(InvalidGangSpec, match="workers"):
        preview(GangSpec(image="i", workers=0), KEY)
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"backoffLimit": 3, "template": template}}
    with pytest.raises(InvalidGangSpec, match="backoffLimit"):
        preview(GangSpec(manifest=job, workers=2), KEY)

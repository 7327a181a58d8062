"""A real triggerer ends or marks the gangs that the processes of their tasks have left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec, OnFinish, OnKill, Policies
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.kube.well_known import LABEL_INSTALLATION
from airflow_provider_gangjobs.service import GangService
from gangjobs_sandbox.resources import JOBS
from tests.airflow.airflow_home import AirflowHome
from tests.airflow.polling import wait_for
from tests.manifests import SUSPENDED_MANIFEST
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.gang.identity import GangRef
    from gangjobs_sandbox.thread import SandboxThread
    from tests.airflow.api import Api, DagRun

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]
INSTALLATION = "tests"
KEPT_SUSPENDED = GangSpec(image="i", command=["true"], workers=2, manifest=SUSPENDED_MANIFEST)
POLICIES = Policies(OnKill.DELETE, OnFinish.KEEP)


@pytest.fixture(scope="module")
def api(cluster: SandboxThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """An Airflow whose triggerers do not wait long before they ask about a gang."""
    settings = {"GANGJOBS__INSTALLATION_ID": INSTALLATION, "GANGJOBS__SWEEP_GRACE": "5"}
    home = AirflowHome.make(tmp_path_factory.mktemp("sweeping") / "home", **settings)
    home.add_cluster("kubernetes_default", cluster.kubeconfig_path)
    with home.running() as airflow:
        yield airflow.api


def orphan_of(run: DagRun, task: str, cluster: SandboxThread, *, installation: str = INSTALLATION) -> GangRef:
    """Submit a gang that no trigger follows, as Airflow leaves a gang whose trigger no triggerer has started."""
    config = ClusterConfig.from_extras("test", {"kube_config_path": str(cluster.kubeconfig_path)})
    key = TaskKey(run.dag_id, run.run_id, task, installation=installation)

    async def submit() -> GangRef:
        async with GangService.connect(config) as gangs:
            return (await gangs.submit(KEPT_SUSPENDED, key=key, claim="a try", policies=POLICIES)).ref

    return asyncio.run(submit())


def installations(cluster: SandboxThread) -> dict[str, str]:
    """Return the installation of each Job by its UID. Jobs that other tests have left have no installation."""
    jobs = [job["metadata"] for job in cluster.call(lambda it: it.registry.list(JOBS))]
    return {job["uid"]: job["labels"][LABEL_INSTALLATION] for job in jobs if LABEL_INSTALLATION in job["labels"]}


def test_gang_of_an_ended_task_is_swept_and_no_other(api: Api, cluster: SandboxThread) -> None:
    ended, endless = api.trigger("plain"), api.trigger("endless")
    ended.wait_for_task("answer", "success")
    orphan = orphan_of(ended, "answer", cluster)
    foreign = orphan_of(ended, "answer", cluster, installation="staging")
    endless.wait_for_task("gang", "deferred")

    wait_for("the sweep", lambda: orphan.uid not in installations(cluster))

    left = installations(cluster)
    assert sorted(left.values()) == ["staging", INSTALLATION]
    assert left[foreign.uid] == "staging"
    assert endless.task("gang")["state"] == "deferred"


def test_cleared_task_runs_again_after_its_worker_died_before_the_delivery(api: Api, cluster: SandboxThread) -> None:
    run = api.trigger("not_delivered")
    assert run.wait() == "success"
    (first,) = attempts(run, cluster)
    assert not first.is_delivered

    wait_for("the mark of the sweep", lambda: attempts(run, cluster)[0].is_delivered)
    run.clear("gang")
    wait_for("the next try", lambda: run.task("gang")["try_number"] == 2 and run.state == "success")

    assert (first.attempt, run.xcom("gang")) == (0, 1)


def attempts(run: DagRun, cluster: SandboxThread) -> list[StoredGang]:
    """Return the Jobs of a run."""
    jobs = map(read_job, cluster.call(lambda it: it.registry.list(JOBS)))
    return [job for job in jobs if job.record.task is not None and job.record.task.run_id == run.run_id]

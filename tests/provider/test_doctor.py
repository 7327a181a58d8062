"""`gangjobs doctor` names the misconfigurations that keep gangs from running, on the embedded cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.gang.checkup import Finding, Health
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, NAMESPACES
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.service.doctor import KUEUE_CONFIGURATION, KUEUE_NAMESPACE, Examination, examine
from gangjobs_sandbox.api.faults import Fault, FaultKind
from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.resources import JOBS, PODS
from gangjobs_sandbox.thread import running
from tests.provider.submission_cluster import NO_PERMISSION, config
from tests.provider.test_capabilities import ManagedJobs, NewProcess
from tests.sandbox_faults import arm

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.submission_cluster import SubmissionCluster

HERE = Examination(namespace="default")


async def findings_of(cluster: SubmissionCluster, what: Examination = HERE) -> dict[str, Finding]:
    """Return the findings by check, without that of the clocks: the embedded cluster has a time of its own."""
    found = await examine(GangService(cluster.client), what)
    return {finding.check: finding for finding in found if finding.check != "clocks"}


async def problem_of(cluster: SubmissionCluster, check: str, what: Examination = HERE) -> Finding:
    """Return the finding of a check, which is the only problem."""
    found = await findings_of(cluster, what)
    assert [name for name, finding in found.items() if finding.health is Health.PROBLEM] == [check]
    assert found[check].remedy
    return found[check]


async def test_cluster_in_order_has_no_problem(cluster: SubmissionCluster) -> None:
    found = await findings_of(cluster)
    assert {finding.health for finding in found.values()} <= {Health.OK, Health.UNKNOWN}
    assert found["placement"].health is Health.UNKNOWN
    assert cluster.jobs() == []


async def test_clocks_that_differ_are_named(cluster: SubmissionCluster) -> None:
    (finding,) = [each for each in await examine(GangService(cluster.client), HERE) if each.check == "clocks"]
    assert finding.health is Health.PROBLEM
    assert "NTP" in finding.remedy


async def test_cluster_that_does_not_answer_is_the_only_finding() -> None:
    async with Client(config("http://127.0.0.1:1", "t"), retry_for_s=0.1) as client:
        (finding,) = await examine(GangService(client), HERE)
    assert (finding.check, finding.health) == ("connection", Health.PROBLEM)
    assert "cannot be reached" in finding.what


@dataclass(frozen=True)
class Refusal:
    """An answer of the server, and how the check-up names it."""

    code: int
    message: str
    check: str
    what: str
    remedy: str
    method: str = "POST"
    path: str = "/jobs"


REFUSALS = {
    "expired credentials": Refusal(
        401, "Unauthorized", "connection", "401", "Renew the credentials", method="GET", path="/version"
    ),
    "a webhook that refuses": Refusal(
        403, 'admission webhook "a.b" denied the request: no team', "admission of Jobs", "no team", "Change the policy"
    ),
    "a webhook that is away": Refusal(
        500,
        'failed calling webhook "mjob.kb.io": connection refused',
        "admission of Jobs",
        "failed calling webhook",
        "Start the controller of this webhook",
    ),
    "no right to create Jobs": Refusal(
        403, NO_PERMISSION.replace("write", "create"), "admission of Jobs", "is forbidden", "Give the connection"
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
async def test_refusal_is_named_with_its_remedy(cluster: SubmissionCluster, refusal: Refusal) -> None:
    fault = Fault(
        FaultKind.STATUS,
        code=refusal.code,
        method=refusal.method,
        path=refusal.path,
        message=refusal.message,
        times=None,
    )
    cluster.faults.add(fault)
    finding = (await findings_of(cluster))[refusal.check]
    assert finding.health is Health.PROBLEM
    assert refusal.what in finding.what
    assert finding.remedy.startswith(refusal.remedy)


async def test_groups_of_the_cluster_are_read_once(cluster: SubmissionCluster) -> None:
    client = NewProcess(cluster.client)
    await examine(GangService(client), HERE)
    assert client.requests.count("GET /apis") == 1


async def test_rights_are_unknown_if_the_groups_cannot_be_read(cluster: SubmissionCluster) -> None:
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, path="/apis$", times=None))
    client = NewProcess(cluster.client)
    finding = {each.check: each for each in await examine(GangService(client), HERE)}["rights"]
    assert finding.health is Health.UNKNOWN
    assert "it may not be read" in finding.what


async def test_namespace_that_does_not_exist_is_named(cluster: SubmissionCluster) -> None:
    finding = await problem_of(cluster, "admission of Jobs", Examination(namespace="nosuch"))
    assert finding.what == "namespace nosuch does not exist"


async def test_gates_that_are_off_are_named(without_gangs: SubmissionCluster) -> None:
    finding = await problem_of(without_gangs, "Workload API")
    assert "cannot store a gang" in finding.what
    assert "GenericWorkload" in finding.remedy


async def test_queue_without_kueue_is_named(cluster: SubmissionCluster) -> None:
    finding = await problem_of(cluster, "queues", Examination(namespace="default", queue="team"))
    assert finding.what == "queue team is named, and Kueue is not installed"


@pytest.mark.parametrize("text", ["a: [1", "a: !!bool '1'"])
async def test_configuration_of_kueue_that_is_no_yaml_is_unknown(cluster: SubmissionCluster, text: str) -> None:
    await cluster.client.create(NAMESPACES, {"metadata": {"name": KUEUE_NAMESPACE}})
    stored = {"metadata": {"name": KUEUE_CONFIGURATION}, "data": {"config.yaml": text}}
    await cluster.client.create(CONFIGMAPS, stored, KUEUE_NAMESPACE)
    client: Any = ManagedJobs(cluster.client, lambda job: job)
    found = await examine(GangService(client), HERE)
    (finding,) = [each for each in found if each.check == "waitForPodsReady of Kueue"]
    assert finding.health is Health.UNKNOWN
    assert f"ConfigMap {KUEUE_CONFIGURATION} is not YAML" in finding.what


async def test_held_pods_of_a_vanished_gang_are_named(cluster: SubmissionCluster) -> None:
    labels = {"gangjobs.airflow/gang": "train-0", "gangjobs.airflow/job-uid": "gone"}
    metadata = {"name": "train-0-0", "labels": labels, "finalizers": ["gangjobs.airflow/harvest"]}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    cluster.bench.registry.create(PODS, {**pod, "metadata": {**metadata, "namespace": "default"}}, "default")
    finding = await problem_of(cluster, "held pods")
    assert finding.what == "1 pod of gangs that are gone (train-0-0)"


async def test_pods_of_a_gang_that_exists_are_no_leftovers(cluster: SubmissionCluster) -> None:
    await cluster.submit()
    cluster.bench.run()
    assert (await findings_of(cluster))["held pods"].health is Health.OK


def test_command_names_the_remedy_beside_the_problem(
    embedded: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = ["--kubeconfig", str(embedded.kubeconfig_path), "-n", "nosuch"]
    assert main(["doctor", *kubeconfig]) == 1
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["HEALTH", "CHECK", "WHAT"]
    (problem,) = [row for row in rows if row.startswith("problem")]
    assert "namespace nosuch does not exist. Create the namespace, or correct" in problem
    assert main(["doctor", *kubeconfig, "-o", "name"]) == 1
    assert "admission of Jobs" in capsys.readouterr().out.splitlines()


def test_command_prints_json_and_fails_with_a_problem(
    embedded: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = ["--kubeconfig", str(embedded.kubeconfig_path)]
    assert main(["doctor", *kubeconfig, "-o", "json", "-n", "nosuch"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["apiVersion"], printed["kind"]) == ("gangjobs.airflow/v1", "FindingList")
    items: list[dict[str, Any]] = printed["items"]
    assert {"check", "health", "what", "remedy"} == items[0].keys()
    assert "namespace nosuch does not exist" in [item["what"] for item in items]


def test_namespace_is_that_of_the_connection(
    embedded: SandboxThread, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"kube_config_path": str(embedded.kubeconfig_path), "namespace": "nosuch"}
    monkeypatch.setenv("AIRFLOW_CONN_TEAM", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    assert main(["doctor", "--conn-id", "team"]) == 1
    assert "namespace nosuch does not exist" in capsys.readouterr().out


def test_tried_gang_that_may_not_be_deleted_is_named_among_the_findings(capsys: pytest.CaptureFixture[str]) -> None:
    with running(SandboxConfig(nodes=2)) as cluster:
        arm(cluster, method="DELETE", path="/jobs/", code=403, times=None)
        assert main(["doctor", "--kubeconfig", str(cluster.kubeconfig_path), "--try", "--command", "sleep 600"]) == 1
    shown = capsys.readouterr().out
    assert "the API server would store a Job" in shown
    assert "a gang of two pods ran after" in shown
    assert "Run gangjobs delete default/gangjobs-doctor" in shown


def test_gang_that_is_tried_runs_and_is_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    with running(SandboxConfig(nodes=2)) as cluster:
        assert main(["doctor", "--kubeconfig", str(cluster.kubeconfig_path), "--try", "--command", "sleep 600"]) == 0
        jobs = cluster.call(lambda it: it.registry.list(JOBS, "default"))
    assert "a gang of two pods ran after" in capsys.readouterr().out
    assert not [job for job in jobs if job["metadata"]["name"].startswith("gangjobs-doctor")]

"""`gangjobs tidy` and `gangjobs release`, on the embedded cluster."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.ending import submissions
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec, OnFinish, OnKill, Policies
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.capabilities import discover_for
from airflow_provider_gangjobs.submission.submit import submit
from tests.crashes import Crash, CrashingClient, ProcessDied
from tests.manifests import SUSPENDED_MANIFEST
from tests.submission_requests import task_request

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread

KUBECONFIG = "--kubeconfig"


async def submit_incompletely(kubeconfig: str) -> str:
    """Submit a gang in a process that dies after creating the Job, and return the name of the Job."""
    config = ClusterConfig.from_extras("test", {"kube_config_path": kubeconfig})
    async with GangService.connect(config) as gangs:
        key = TaskKey("dag", uuid.uuid4().hex, "task")
        spec = GangSpec(image="a")
        discovered = await discover_for(gangs.client, spec, namespace="default")
        with pytest.raises(ProcessDied):
            await submit(
                CrashingClient(gangs.client, Crash(2, applied=True)),
                spec,
                task_request(key, "x"),
                discovered=discovered,
            )
        (job,) = await gangs.client.list(JOBS, "default", label_selector=f"gangjobs.airflow/task={key.digest}")
        return str(job["metadata"]["name"])


def test_tidy_prints_its_actions(embedded: SandboxThread, capsys):
    kubeconfig = str(embedded.kubeconfig_path)
    name = asyncio.run(submit_incompletely(kubeconfig))
    assert main(["tidy", KUBECONFIG, kubeconfig, "--older-than", "0s", "--dry-run"]) == 0
    assert f"default/{name}: would remove" in capsys.readouterr().out
    assert main(["tidy", KUBECONFIG, kubeconfig, "-A", "--older-than", "0s"]) == 0
    assert f"default/{name}: remove" in capsys.readouterr().out
    assert main(["tidy", KUBECONFIG, kubeconfig, "--older-than", "0s"]) == 0
    assert name not in capsys.readouterr().out


def test_tidy_that_lost_a_race_says_why_it_left_the_gang(embedded: SandboxThread, capsys, monkeypatch):
    kubeconfig = str(embedded.kubeconfig_path)
    name = asyncio.run(submit_incompletely(kubeconfig))

    async def has_changed(*_: object, **__: object) -> bool:
        return False

    with monkeypatch.context() as patched:
        patched.setattr(submissions, "stop", has_changed)
        assert main(["tidy", KUBECONFIG, kubeconfig, "--older-than", "0s"]) == 0
    left = f"default/{name}: leave, because it has changed or was deleted in the meantime"
    assert left in capsys.readouterr().out
    assert main(["tidy", KUBECONFIG, kubeconfig, "--older-than", "0s"]) == 0


def test_tidy_shows_the_decision_and_the_installation_of_each_gang(embedded: SandboxThread, capsys):
    kubeconfig = str(embedded.kubeconfig_path)
    config = ClusterConfig.from_extras("test", {"kube_config_path": kubeconfig})
    policies = Policies(OnKill.DELETE, OnFinish.KEEP)

    async def submit_gang() -> str:
        async with GangService.connect(config) as gangs:
            key = TaskKey("dag", uuid.uuid4().hex, "task", installation="prod")
            spec = GangSpec(image="a", manifest=SUSPENDED_MANIFEST)
            return str((await gangs.submit(spec, key=key, claim="x", policies=policies)).ref)

    gang = asyncio.run(submit_gang())
    assert main(["tidy", KUBECONFIG, kubeconfig, "--dry-run"]) == 0
    assert f"{gang} of installation prod: would leave, because" in capsys.readouterr().out


def test_release_removes_every_finalizer(embedded: SandboxThread, capsys):
    kubeconfig = str(embedded.kubeconfig_path)
    config = ClusterConfig.from_extras("test", {"kube_config_path": kubeconfig})
    name = f"held-{uuid.uuid4().hex[:6]}"

    async def hold_one() -> None:
        async with GangService.connect(config) as gangs:
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "finalizers": [FINALIZER_HARVEST]},
                "spec": {"containers": [{"name": "main", "image": "a"}], "schedulingGates": [{"name": "a/b"}]},
            }
            await gangs.client.create(PODS, pod, "default")

    async def finalizers() -> list[str]:
        async with GangService.connect(config) as gangs:
            stored = await gangs.client.get(PODS, name, "default")
            await gangs.client.delete(PODS, name, "default")
            return list(stored["metadata"].get("finalizers") or ())

    asyncio.run(hold_one())
    assert main(["release", KUBECONFIG, kubeconfig, "--gang", ""]) == 0  # as with a variable that is not set
    assert " 0 released" in capsys.readouterr().out
    assert main(["release", KUBECONFIG, kubeconfig]) == 0
    assert re.search(r"[1-9]\d* released, 0 failed", capsys.readouterr().out)
    assert main(["release", KUBECONFIG, kubeconfig, "--gang", "typo"]) == 4
    assert "namespace default has neither a Job typo nor pods of such a Job" in capsys.readouterr().err
    assert asyncio.run(finalizers()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["tidy", KUBECONFIG, "/no/such"], 3, "gangjobs: the file /no/such does not exist"),
        (["release", "--gang", "a", "-A"], 1, "gangjobs: --gang names a Job of one namespace"),
    ],
    ids=["no kubeconfig", "a gang of all namespaces"],
)
def test_error_of_a_command_is_printed_with_its_exit_code(arguments, code, message, capsys):
    assert main(arguments) == code
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("age", ["1", "1w", "-1h", ""])
def test_invalid_age_is_refused(age, capsys):
    with pytest.raises(SystemExit) as end:
        main(["tidy", f"--older-than={age}"])
    assert end.value.code == 2
    assert "is not an age such as 30m, 2h or 1d" in capsys.readouterr().err

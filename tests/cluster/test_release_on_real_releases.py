"""Pods without a follower are released in each way of docs/installation.md, under the documented Role.

The test runs the kubectl commands of that page.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.cluster.test_submission_faults import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.tenant import Tenant

PAGE = Path(__file__).resolve().parents[2] / "docs" / "installation.md"
WITHOUT_THE_PROVIDER = "Without the provider, these commands"
SLEEP = "import time; time.sleep(600)"
WORKERS = 2


def by_command(tenant: Tenant) -> None:
    command = [sys.executable, "-m", "airflow_provider_gangjobs.cli.main", "release", "-n", tenant.namespace]
    for released in (WORKERS, 0):
        completed = subprocess.run(
            [*command, "--kubeconfig", str(tenant.kubeconfig)], capture_output=True, text=True, check=True
        )
        assert f"{released} released, 0 failed" in completed.stdout


def by_hook(tenant: Tenant) -> None:
    extra = {"kube_config_path": str(tenant.kubeconfig), "namespace": tenant.namespace}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": extra}))
        for count in (WORKERS, 0):
            released = GangJobHook("kubernetes_default").release_finalizers(namespace=tenant.namespace)
            assert (released.released, released.failed) == (count, 0)


def documented_lines() -> tuple[str, str]:
    """Return the command that lists held pods, and the command that releases those of a namespace."""
    found = re.search(rf"{WITHOUT_THE_PROVIDER}.*?```sh\n(.*?)\n(kubectl .*?)```", PAGE.read_text(), re.DOTALL)
    assert found, f"{PAGE} has no kubectl command after {WITHOUT_THE_PROVIDER!r}"
    return found[1], found[2]


def by_kubectl(tenant: Tenant) -> None:
    look, free = documented_lines()
    held = _sh(look, tenant.plane.folder / "admin.kubeconfig").splitlines()
    assert len(held) >= WORKERS
    for count in (WORKERS, 0):
        assert _sh(free.replace("NAMESPACE", tenant.namespace), tenant.kubeconfig).count("patched") == count


def _sh(line: str, kubeconfig: Path) -> str:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    completed = subprocess.run(["sh", "-ec", line], env=environment, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, ""), completed
    return completed.stdout


needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@pytest.mark.parametrize("release", [by_command, by_hook, pytest.param(by_kubectl, marks=needs_kubectl)])
async def test_pods_that_nobody_harvests_are_released(tenant: Tenant, release: Callable[[Tenant], None]) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(WORKERS, code=SLEEP, cpu="100m", termination_grace_s=1))

        async def phases() -> list[str]:
            return [pod["status"]["phase"] for pod in await gangs.client.list(PODS, tenant.namespace)]

        async def run() -> bool:
            return await phases() == ["Running"] * WORKERS

        async def have_ended() -> bool:
            return await phases() == ["Failed"] * WORKERS

        async def are_gone() -> bool:
            return await phases() == []

        await until(run)
        await gangs.client.delete(JOBS, submission.ref.name, tenant.namespace)  # the provider would release the pods
        await until(have_ended)
        held = await gangs.client.list(PODS, tenant.namespace)
        assert all(FINALIZER_HARVEST in pod["metadata"]["finalizers"] for pod in held)
        await asyncio.to_thread(release, tenant)
        await until(are_gone)
    assert tenant.forbidden_requests() == []

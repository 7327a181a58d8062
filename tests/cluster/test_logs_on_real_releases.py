"""A real API server fetches logs from the nodes of the sandbox, as it does from any kubelet."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.spec import Logs
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant

SPEAK = "import os; print('rank', os.environ['RANK'], 'speaks'); print('and ends')"
KUBECTL = shutil.which("kubectl")


async def test_logs_of_all_ranks_come_back(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(2, code=SPEAK))
        await follow_gang(tenant, submission)
        logs = await gangs.logs(submission.ref, Logs.ALL)
    assert [(log.rank, log.text, log.problem) for log in logs] == [
        (rank, f"rank {rank} speaks\nand ends\n", "") for rank in (0, 1)
    ]


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed (Debian: kubernetes-client)")
async def test_kubectl_reads_the_logs_of_a_rank(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(2, code=SPEAK))
        await follow_gang(tenant, submission)
    command = [str(KUBECTL), f"--kubeconfig={tenant.kubeconfig}", "logs", f"job/{submission.ref.name}", "--tail=1"]
    completed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert completed.stdout == "and ends\n"

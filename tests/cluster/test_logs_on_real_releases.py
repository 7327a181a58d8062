"""A real API server fetches logs from the nodes of the sandbox, as it does from any kubelet."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event
from airflow_provider_gangjobs.gang.spec import LogOptions, Logs
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.tracking.logs.copy import TaskLog, copy_logs
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.submission.submission import Submission
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


FAIL_AFTER_WRITING = """
import os, sys, time
if os.environ["RANK"] == "0":
    print(*range(20_000), sep="\\n", flush=True)
    time.sleep(300)
time.sleep(3)
sys.exit("rank 1 has failed")
"""


@pytest.mark.parametrize("streams", [[0], []], ids=["streamed", "selected"])
async def test_log_of_rank_0_is_whole_if_another_rank_fails(tenant: Tenant, streams: list[int]) -> None:
    """The Job controller deletes the pod of rank 0, so the triggerer reads its log before it releases the pod."""
    lines: list[str] = []
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(2, code=FAIL_AFTER_WRITING))
        event = await wait_with_logs(tenant, submission, lines, stream_ranks=streams)
        pods = [pod.name for pod in event.ranks if pod.rank == 0]
        outcomes = await gangs.outcomes(submission.ref)
        await copy_logs(
            gangs.client,
            submission.ref,
            LogOptions(),
            TaskLog(lines.extend, positions=event.streamed, whole=event.whole_logs),
            outcomes=outcomes,
        )
    assert pods
    written = [line.removeprefix("[rank 0] ") for line in lines if line.startswith("[rank 0] ")]
    assert [line for line in written if not line.startswith("(")] == [str(number) for number in range(20_000)]
    assert not [line for line in written if "left out" in line or "no log" in line]
    assert "[rank 1] rank 1 has failed" in lines


async def wait_with_logs(tenant: Tenant, submission: Submission, lines: list[str], **args: Any) -> GangEvent:
    """Wait for the end of a gang as a trigger does, which streams logs."""
    log: Any = logging.Logger("trigger")
    handler = logging.Handler()
    handler.emit = lambda record: lines.extend(record.getMessage().split("\n"))  # type: ignore[method-assign]
    log.addHandler(handler)
    ref, more = submission.ref, {"claim": "somebody", "stream_bytes_max": 2**24, "kept_bytes_max": 2**24}
    arguments = TriggerArgs(
        kubernetes_conn_id="c",
        namespace=ref.namespace,
        name=ref.name,
        uid=ref.uid,
        kept_logs="rank0+failed",
        **more,
        **args,
    )
    return await wait_for_event(arguments, "ended", log, config=tenant.config)


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed (Debian: kubernetes-client)")
async def test_kubectl_reads_the_logs_of_a_rank(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(2, code=SPEAK))
        await follow_gang(tenant, submission)
    command = [str(KUBECTL), f"--kubeconfig={tenant.kubeconfig}", "logs", f"job/{submission.ref.name}", "--tail=1"]
    completed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert completed.stdout == "and ends\n"

"""Record the terminal session of the page on the command line: `python -m scripts.cli_session`.

The session runs on a sandbox with two nodes, on which somebody else has submitted four gangs. A test runs it, too, and
compares what the commands print with what is recorded, apart from times.
"""

from __future__ import annotations

import asyncio
import io
import re
import shlex
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.gang.identity import Claim, TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec, OnFinish, OnKill, Policies
from airflow_provider_gangjobs.gang.state.phase import Phase, phase_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submission import SubmissionRequest, TaskRule
from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.thread import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.gang.identity import GangRef
    from gangjobs_sandbox.thread import SandboxThread

RECORDED: Final = Path(__file__).parents[1] / "docs" / "samples" / "cli-session.txt"
COMMANDS: Final = (
    "gangjobs list",
    "gangjobs why etl train",
    "gangjobs why report score",
    "gangjobs logs report score --rank 1",
    "gangjobs top",
    "gangjobs why report",
    "gangjobs leaks --older-than 0s",
    "gangjobs cancel etl load --reason 'wrong day'",
)
GANGS: Final = {
    ("etl", "load"): (2, "2", "sleep 600", Phase.RUNNING),
    ("etl", "train"): (4, "1500m", "true", Phase.ASSEMBLING),
    ("report", "score"): (2, "100m", 'test $RANK = 0 || { echo "no such column: price" >&2; exit 1; }', Phase.FAILED),
    ("report", "send"): (2, "100m", "true", Phase.SUCCEEDED),
}
"""By DAG and task: the number of ranks, the CPU of each, their script, and the phase that the gang reaches."""
WIDTH: Final = 88
CONTINUED: Final = " " * 6
WAIT_S: Final = 120
_TIMES: Final = re.compile(r"\b(?:\d+[dhms]){1,2}\b|\d{4}-\d\d-\d\d \d\d:\d\d")


def session(sandbox: SandboxThread) -> str:
    """Submit the gangs, run the commands, and return what a terminal shows."""
    for (dag_id, task_id), (ranks, cpu, script, phase) in GANGS.items():
        _run(sandbox, _submit(dag_id, task_id, ranks, cpu, script), phase)
    kubeconfig = ["--kubeconfig", str(sandbox.kubeconfig_path)]
    return "\n".join("\n".join(_call(command, kubeconfig)) for command in COMMANDS)


def wrapped(text: str) -> str:
    """Return a session in the width of the page. What continues a line is indented."""
    wrap = textwrap.TextWrapper(WIDTH, subsequent_indent=CONTINUED, break_long_words=False, break_on_hyphens=False)
    return "\n".join(part for line in text.splitlines() for part in wrap.wrap(line) or [""])


def without_times(text: str) -> str:
    """Return a session without what differs from one run to the next: times, and the widths of columns and lines."""
    whole = text.replace(f"\n{CONTINUED}", " ")
    return re.sub(r" +", " ", _TIMES.sub("TIME", whole))


def _submit(dag_id: str, task_id: str, ranks: int, cpu: str, script: str) -> tuple[GangSpec, TaskKey]:
    spec = GangSpec(image="app:1", workers=ranks, resources={"cpu": cpu}, command=["sh", "-c", script])
    return spec, TaskKey(dag_id, "scheduled__2026-08-01", task_id)


def _run(sandbox: SandboxThread, gang: tuple[GangSpec, TaskKey], phase: Phase) -> None:
    """Submit a gang, and wait until its Job shows the phase."""
    config = ClusterConfig.from_extras("session", {"kube_config_path": str(sandbox.kubeconfig_path)})

    async def submit() -> None:
        async with GangService.connect(config) as gangs, asyncio.timeout(WAIT_S):
            spec, key = gang
            policies = Policies(OnKill.DELETE, OnFinish.KEEP)
            claim = Claim("somebody", policies, labels=key.labels(1))
            ref = (await gangs.submit(spec, SubmissionRequest(key=key, claim=claim, rule=TaskRule()))).ref
            while await _phase(gangs, ref) is not phase:  # noqa: ASYNC110 - the sandbox runs in another thread
                await asyncio.sleep(0.1)

    asyncio.run(submit())


async def _phase(gangs: GangService, ref: GangRef) -> Phase:
    return phase_of(read_job(await gangs.client.get(JOBS, ref.name, ref.namespace)))


def _call(command: str, options: list[str]) -> Iterator[str]:
    """Yield the command, what it prints, and its exit code if that is not 0."""
    yield f"$ {command}"
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        code = main([*shlex.split(command)[1:], *options])
    yield from printed.getvalue().splitlines()
    if code:
        yield f"$ echo $?\n{code}"


def record() -> None:
    """Run the session on a sandbox of its own, and write it into the documentation."""
    with running(SandboxConfig(nodes=2)) as sandbox:
        RECORDED.write_text(f"{wrapped(session(sandbox))}\n")


if __name__ == "__main__":
    record()

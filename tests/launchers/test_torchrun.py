"""Gangs with `launch="torchrun"` on a cluster whose nodes have PyTorch."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.exceptions import AppFailed
from airflow_provider_gangjobs.gang.spec import Rendezvous
from tests.launchers import pytorch
from tests.launchers.programs import needs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provider.task_runner import Task

pytestmark = needs(pytorch.PYTORCH.unavailable())

PROGRAM = Path(__file__).parents[2] / "dags_examples" / "include" / "train_torch.py"
FAILS_ON_RANK_1 = """
import train_torch

def load_share(rank, world_size):
    if rank == 1:
        raise ValueError("share 1 has no rows")
    return load(rank, world_size)

load, train_torch.load_share = train_torch.load_share, load_share
train_torch.main()
"""


@pytest.fixture
def torch_task(task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Task]:
    """Make a task with two ranks that runs a program beside the program of the example."""
    monkeypatch.setenv("PATH", f"{pytorch.PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]

    def make(program: str, **parameters: Any) -> Task:
        files = {"train_torch.py": PROGRAM.read_text(), "main.py": program}
        given = {"launch": "torchrun", "rendezvous": Rendezvous(port=port), "files": files, "logs": "all"}
        return task("", command=["/gang/files/main.py"], **{**given, **parameters})

    return make


def test_rank_whose_process_failed_first_is_named_with_its_error(
    torch_task: Callable[..., Task], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AppFailed) as raised:
        torch_task(FAILS_ON_RANK_1).execute()

    assert (raised.value.rank, raised.value.exit_code) == (1, 1)
    assert raised.value.evidence.startswith("Rank 1 exited with code 1")
    assert "ValueError: share 1 has no rows" in raised.value.evidence
    log = capsys.readouterr().out
    assert 'raise ValueError("share 1 has no rows")' in log
    assert "ChildFailedError" in log

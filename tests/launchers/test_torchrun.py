"""Gangs with `launch="torchrun"` on a cluster whose nodes have PyTorch without CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.launchers.programs import needs, without_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provider.task_runner import Task

pytestmark = needs(without_torch())

FOR_TORCH_1 = {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1"}
"""The default values of these options do not work in torchrun 1.13 with Python 3.11, which Debian 12 has together."""

SUM = """
import json, os
import torch
from torch import distributed

distributed.init_process_group("gloo")
total = torch.tensor([distributed.get_rank()])
distributed.all_reduce(total)
if os.environ["LOCAL_RANK"] == "0":
    with open(os.environ["GANG_RESULT_PATH"], "w") as result:
        json.dump([distributed.get_world_size(), os.environ["GROUP_RANK"], total.item()], result)
"""


def test_processes_of_all_ranks_add_up_their_ranks(task: Callable[..., Task]) -> None:
    env = {"PET_NPROC_PER_NODE": "2", **FOR_TORCH_1}
    given = {"launch": "torchrun", "env": env, "results": "all", "files": {"sum.py": SUM}}
    results = task("", command=["python", "/gang/files/sum.py"], **given).execute()

    assert results == [[4, "0", 6], [4, "1", 6]]

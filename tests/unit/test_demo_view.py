"""The output of the demo: a display that is redrawn on a terminal, and one line for each change elsewhere."""

import io
import re
from datetime import UTC, datetime

from rich.console import Console

from gangjobs_sandbox.cli.summary import Snapshot
from scripts.demo_view import View


def cluster(phase):
    status = {"ready": 4} if phase == "Running" else {"conditions": [{"type": "Complete", "status": "True"}]}
    job = {"metadata": {"name": "gang"}, "spec": {"parallelism": 4}, "status": status}
    pods = [{"metadata": {"name": f"gang-{rank}"}, "status": {"phase": phase}} for rank in range(4)]
    return Snapshot([], [job], pods, datetime.now(UTC))


def shown(*, is_terminal):
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=100, highlight=False)
    with View(console) as view:
        with view.step("prepare"):
            pass
        view.show([{"task_id": "train", "state": "deferred"}], cluster("Running"), "epoch 1")
        view.show([{"task_id": "train", "state": "deferred"}], cluster("Running"), "epoch 2")
        view.show([{"task_id": "train", "state": "success"}], cluster("Succeeded"), None)
    return output.getvalue()


def test_without_a_terminal_each_change_is_one_line():
    prepared, *lines = [line.split(" s  ", 1)[1] for line in shown(is_terminal=False).splitlines()]
    assert re.fullmatch(r"prepare: \d+\.\d s", prepared)
    assert lines == [
        "task train: deferred",
        "gang gang: running",
        "pods: 4 Running",
        "rank 0: epoch 1",
        "task train: success",
        "gang gang: succeeded",
        "pods: 4 Succeeded",
    ]


def test_last_picture_on_a_terminal_shows_everything():
    picture = shown(is_terminal=True).rpartition("task train")[2]
    assert "success" in picture
    assert "succeeded" in picture
    assert "4 Succeeded" in picture
    assert "epoch 2" in picture

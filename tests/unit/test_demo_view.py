"""How the demo looks: a picture that is redrawn on a terminal, a line per change elsewhere."""

import importlib.util
import io
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from gangjobs_sandbox.cli.summary import Snapshot

SCRIPT = Path(__file__).parents[2] / "scripts" / "demo_view.py"


@pytest.fixture(scope="module")
def demo_view():
    spec = importlib.util.spec_from_file_location("demo_view", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("demo_view", None)


def cluster(phase):
    status = {"ready": 4} if phase == "Running" else {"conditions": [{"type": "Complete", "status": "True"}]}
    job = {"metadata": {"name": "gang"}, "spec": {"parallelism": 4}, "status": status}
    pods = [{"metadata": {"name": f"gang-{rank}"}, "status": {"phase": phase}} for rank in range(4)]
    return Snapshot([], [job], pods, datetime.now(UTC))


def shown(demo_view, *, is_terminal):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100, highlight=False)
    with demo_view.View(console) as view:
        with view.step("prepare"):
            pass
        view.show([{"task_id": "train", "state": "deferred"}], cluster("Running"), "epoch 1")
        view.show([{"task_id": "train", "state": "deferred"}], cluster("Running"), "epoch 2")
        view.show([{"task_id": "train", "state": "success"}], cluster("Succeeded"), None)
    return console.file.getvalue()


def test_without_a_terminal_each_change_is_one_line(demo_view):
    prepared, *lines = [line.split(" s  ", 1)[1] for line in shown(demo_view, is_terminal=False).splitlines()]
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


def test_last_picture_on_a_terminal_shows_everything(demo_view):
    picture = shown(demo_view, is_terminal=True).rpartition("task train")[2]
    assert "success" in picture
    assert "succeeded" in picture
    assert "4 Succeeded" in picture
    assert "epoch 2" in picture

"""A benchmark or a test that needs a program that was not built names the command that builds it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cluster.control_plane import ControlPlane, ControlPlaneError

if TYPE_CHECKING:
    from pathlib import Path


def test_control_plane_that_was_not_built_names_the_command_that_builds_it(tmp_path: Path) -> None:
    plane = ControlPlane("none", tmp_path / "controlplane", tmp_path / "plane")
    with pytest.raises(ControlPlaneError, match=r"no control plane of Kubernetes 1\.37: run `make clusters`"):
        plane.start()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("benchmark", ["wait", "queues"])
def test_benchmark_without_a_control_plane_names_the_command_that_builds_it(benchmark: str, tmp_path: Path) -> None:
    environment = {**os.environ, "GANGJOBS_KUBE_ASSETS": str(tmp_path)}
    command = [sys.executable, "-m", f"benchmarks.{benchmark}"]
    run = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 1
    assert "run `make clusters`" in run.stderr.splitlines()[-1]

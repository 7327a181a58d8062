"""A gang scheduler beside the default scheduler of a real control plane: its definitions, settings and process."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING, Final

import yaml

from scripts.ports import free_port
from tests.cluster.control_plane import MISSING_BINARY_ADVICE, die_with_parent, skip_or_fail
from tests.queues.schedulers.build import BUILDER, PROGRAMS, binary, controllers, folder
from tests.replies import accepted, wait_until
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.cluster.control_plane import ControlPlane

COSCHEDULING: Final = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "profiles": [
        {
            "schedulerName": "scheduler-plugins-scheduler",
            "plugins": {
                "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
                "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
            },
            "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
        }
    ],
}
# With the action `enqueue`, a gang that never fits blocks the gangs behind it in the queue.
VOLCANO: Final = {
    "actions": "allocate, backfill",
    "tiers": [
        {"plugins": [{"name": name} for name in ("priority", "gang", "conformance")]},
        {"plugins": [{"name": name} for name in ("drf", "predicates", "proportion", "nodeorder")]},
    ],
}


YUNIKORN: Final = "yunikorn"
"""The namespace of YuniKorn."""


def _coscheduling(plane: ControlPlane, work: Path) -> list[str]:
    config = {**COSCHEDULING, "clientConnection": {"kubeconfig": str(plane.folder / "admin.kubeconfig")}}
    (work / "config.yaml").write_text(yaml.safe_dump(config))
    return [
        f"--config={work / 'config.yaml'}",
        f"--secure-port={free_port()}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={work}",
        f"--authentication-kubeconfig={plane.folder / 'admin.kubeconfig'}",
        f"--authorization-kubeconfig={plane.folder / 'admin.kubeconfig'}",
    ]


def _volcano(plane: ControlPlane, work: Path) -> list[str]:
    (work / "config.yaml").write_text(yaml.safe_dump(VOLCANO))
    return [
        f"--kubeconfig={plane.folder / 'admin.kubeconfig'}",
        f"--scheduler-conf={work / 'config.yaml'}",
        "--leader-elect=false",
        f"--listen-address=127.0.0.1:{free_port()}",
        "--enable-healthz=false",
        "--schedule-period=500ms",
    ]


def _yunikorn(plane: ControlPlane, work: Path) -> list[str]:
    """No arguments: YuniKorn reads its settings from ConfigMaps of its namespace. Without them it has defaults."""
    with plane.client() as client:
        accepted(client.post("/api/v1/namespaces", json={"metadata": {"name": YUNIKORN}}))
    return []


ARGUMENTS: Final[dict[str, Callable[[ControlPlane, Path], list[str]]]] = {
    "coscheduling": _coscheduling,
    "volcano": _volcano,
    "yunikorn": _yunikorn,
}


@contextlib.contextmanager
def running_scheduler(name: str, plane: ControlPlane) -> Iterator[Path]:
    """The scheduler while the block runs; yields its log. Without its binary the test is skipped, except in CI."""
    if not BUILDER.is_current(name):
        advice = f"run `python -m tests.queues.schedulers.build {name}`; {MISSING_BINARY_ADVICE}"
        skip_or_fail(f"no scheduler {name}: {advice}")
    work = plane.folder / name
    work.mkdir()
    _define(name, plane)
    kubeconfig = plane.folder / "admin.kubeconfig"
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "NAMESPACE": YUNIKORN}
    with contextlib.ExitStack() as processes:
        if program := controllers(name):
            # Only Volcano needs controllers.
            flags = [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--enable-healthz=false"]
            processes.enter_context(_running([str(program), *flags], work / "controllers.log", environment))
        log = work / "scheduler.log"
        processes.enter_context(
            _running([str(binary(name)), *ARGUMENTS[PROGRAMS[name].scheduler](plane, work)], log, environment)
        )
        yield log


@contextlib.contextmanager
def _running(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """A process while the block runs. The process must not end by itself."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=log.parent, env=environment, preexec_fn=die_with_parent
        )
    try:
        yield
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_S)
        finally:
            process.kill()


def _define(name: str, plane: ControlPlane) -> None:
    """Create the definitions of the scheduler, and wait until they are served."""
    with plane.client() as client:
        for path in sorted((folder(name) / "definitions").glob("*.yaml")):
            for definition in filter(None, yaml.load_all(path.read_text(), yaml.CSafeLoader)):
                accepted(client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=definition))
                spec = definition["spec"]
                served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
                wait_until(lambda served=served: client.get(served).is_success, f"{served} is served")  # type: ignore[misc]

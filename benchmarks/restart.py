"""How long a gang stands still after the program of one rank has died: a restart in place, and a new attempt.

`python -m benchmarks.restart`. Each rank notes when its program starts, and one of them dies at a time, on a sandbox.
With `--kubelet`, the ranks are containers of a kubelet of Kubernetes 1.37, which needs root. A new attempt is what a
retry does: the gang ends, and another one is submitted as soon as that is known. The time of Airflow comes on top of
that.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.service import GangService, follow
from benchmarks.harness import Report, arguments, log_progress, quantile
from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.thread import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.gang.identity import GangRef

LIMIT_S = 600.0
POLL_S = 0.02
PROGRAM = """\
import os, sys, time
life = "/notes/%s-%s" % (os.environ["LIFE"], os.environ.get("GANG_RESTART", "0"))
rank = os.environ["RANK"]
with open("%s-starts-%s" % (life, rank), "w") as note:
    note.write(repr(time.time()))
while not os.path.exists("%s-dies-%s" % (life, rank)):
    time.sleep(0.1)
sys.exit(3)
"""
"""Start, and die when the benchmark says so."""


@dataclass
class Gang:
    """A gang whose programs leave notes in a folder."""

    _service: GangService
    _folder: Path
    _ranks: int
    _restarts: int
    _parameters: dict[str, Any]
    _submitted: list[str] = field(default_factory=list)

    async def submit(self, life: int) -> GangRef:
        """Submit a gang whose programs write this number into their notes."""
        given = {"image": "i", "volumes": [], "volume_mounts": [], **self._parameters}
        given["volumes"] = [*given["volumes"], {"name": "notes", "hostPath": {"path": str(self._folder)}}]
        given["volume_mounts"] = [*given["volume_mounts"], {"name": "notes", "mountPath": "/notes"}]
        spec = GangSpec(
            command=["python3", "-I", "-S", "/gang/files/program.py"],
            files={"program.py": PROGRAM},
            env={"LIFE": str(life)},
            workers=self._ranks,
            resources={"requests": {"cpu": "10m"}},  # a limit would slow the start of the programs
            restarts=self._restarts,
            **given,
        )
        self._submitted.append(f"restart-{self._ranks}-{self._restarts}-{life}")
        return (await self._service.submit(spec, submission_id=self._submitted[-1])).ref

    async def delete(self) -> None:
        """Delete all gangs that were submitted."""
        for submission_id in self._submitted:
            await self._service.delete_submission(submission_id, job=True)

    async def started_at(self, life: int, restart: int = 0) -> float:
        """Wait until the programs of all ranks have started, and return when the last one did."""
        notes = [self._folder / f"{life}-{restart}-starts-{rank}" for rank in range(self._ranks)]
        async with asyncio.timeout(LIMIT_S):
            while not all(note.exists() and note.stat().st_size for note in notes):  # noqa: ASYNC110 - files tell nobody
                await asyncio.sleep(POLL_S)
        return max(float(note.read_text()) for note in notes)

    def kill(self, life: int, restart: int = 0) -> float:
        """Let the program of the middle rank die, and return the time."""
        (self._folder / f"{life}-{restart}-dies-{self._ranks // 2}").touch()
        return time.time()


async def restart_in_place(gang: Gang, rounds: int) -> list[float]:
    """Return the seconds from the death of a rank until all ranks run again in the same pods."""
    await gang.submit(0)
    await gang.started_at(0)
    seconds = []
    for restart in range(rounds):
        died_at = gang.kill(0, restart)
        seconds.append(await gang.started_at(0, restart + 1) - died_at)
    return seconds


async def new_attempts(gang: Gang, rounds: int, config: ClusterConfig) -> list[float]:
    """Return the seconds from the death of a rank until all ranks of another gang run."""
    ref = await gang.submit(0)
    await gang.started_at(0)
    seconds = []
    for life in range(rounds):
        died_at = gang.kill(life)
        await follow(config, ref)
        ref = await gang.submit(life + 1)
        seconds.append(await gang.started_at(life + 1) - died_at)
    return seconds


async def measure(config: ClusterConfig, ranks: int, rounds: int, report: Report, parameters: dict[str, Any]) -> None:
    """Add the figures of a gang of this size, which has further parameters."""
    async with GangService.connect(config) as service:
        for who in ("restart", "new attempt"):
            log_progress(f"{ranks} ranks, {who}")
            with tempfile.TemporaryDirectory() as name:
                gang = Gang(service, Path(name), ranks, rounds if who == "restart" else 0, parameters)
                seconds = await (
                    restart_in_place(gang, rounds) if who == "restart" else new_attempts(gang, rounds, config)
                )
                await gang.delete()
            log_progress(f"{ranks} ranks, {who}: {', '.join(f'{one:.2f} s' for one in seconds)}")
            figures = {"p50_s": median(seconds), "p90_s": quantile(seconds, 0.9), "longest_s": max(seconds)}
            report.add(who=f"{who}, {ranks} ranks", rounds=rounds, **{k: round(v, 2) for k, v in figures.items()})


@contextmanager
def sandbox() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run a sandbox. Yield its kubeconfig, and further parameters of its gangs."""
    with running(SandboxConfig(nodes=2)) as cluster:
        yield cluster.kubeconfig_path, {}


@contextmanager
def kubelet() -> Iterator[tuple[Path, dict[str, Any]]]:
    """The same for a control plane with one kubelet, whose containers have the Python of this machine."""
    from tests.cluster.control_plane import running_plane
    from tests.conformance.targets import Target
    from tests.kubelet.images import FOLDERS_OF_DEBIAN, IMAGE, mounted
    from tests.kubelet.name_server import NameServer
    from tests.kubelet.nodes import Kubelet

    with tempfile.TemporaryDirectory() as name, running_plane("1.37", Path(name, "plane")) as plane:
        kubeconfig = plane.folder / "admin.kubeconfig"
        with Kubelet.running(plane, Path(name, "node")) as node:
            target = Target.of("kubelet", kubeconfig)
            with NameServer.running(target, node.host.address) as names:
                image = {"image": IMAGE, "image_pull_policy": "Never"}
                pod = {"pod_overrides": {"spec": names.pod_fields("default")}}
                yield kubeconfig, {**image, **pod, **mounted(FOLDERS_OF_DEBIAN)}


def main() -> None:
    """Run the benchmark."""
    options = arguments(__doc__, switches={"kubelet": "on a kubelet, with 8 ranks"}, rounds=(10, 2))
    report = Report(
        "restart: from the death of a rank to all ranks running", "the program looks for its end every 0.1 s"
    )
    with kubelet() if options.kubelet else sandbox() as (kubeconfig, parameters):
        config = ClusterConfig.from_extras("restart", {"kube_config_path": str(kubeconfig)})
        for ranks in (4,) if options.quick else (8,) if options.kubelet else (8, 64):
            asyncio.run(measure(config, ranks, options.rounds, report, parameters))
    report.publish(options.out)


if __name__ == "__main__":
    main()

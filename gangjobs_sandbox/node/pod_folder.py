"""The folder of one pod on the node's disk.

`<root>/pods/<uid>/` holds `pod.json`, `hosts`, `home/`, `volumes/<name>/` and, for each run of a container,
`containers/<name>/<run>/`. Only the user can access the folder, because environments hold secrets.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.node.shim.spec import read_json, write_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PodFolder", "pod_folders"]


class PodFolder:
    """The folder of one pod."""

    def __init__(self, root: Path, uid: str) -> None:
        self.uid = uid
        self.path = root / "pods" / uid

    @property
    def exists(self) -> bool:
        return (self.path / "pod.json").exists()

    @property
    def hosts(self) -> str:
        return str(self.path / "hosts")

    @property
    def home(self) -> str:
        return str(self.path / "home")

    def create(self, facts: dict[str, Any]) -> None:
        """Create the folder and store what a restarted node must know. Safe to repeat."""
        for part in ("home", "volumes", "containers"):
            (self.path / part).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)
        write_json(str(self.path / "pod.json"), facts)

    def facts(self) -> dict[str, Any]:
        return read_json(str(self.path / "pod.json"))

    def volume(self, name: str) -> str:
        return str(self.path / "volumes" / name)

    def run(self, container: str, number: int) -> Path:
        """Return the folder of one run of a container. The first run has number 0."""
        return self.path / "containers" / container / str(number)

    def latest_run(self, container: str) -> int | None:
        """Return the number of the last run that was started, or None."""
        folder = self.path / "containers" / container
        numbers = [int(entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
        return max(numbers, default=None)

    def runs(self) -> list[Path]:
        """Return the folders of all runs of all containers."""
        return list(self.path.glob("containers/*/*"))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def pod_folders(root: Path) -> list[PodFolder]:
    """Return the folders of the pods that this node or an earlier node of this root keeps."""
    pods = root / "pods"
    return [PodFolder(root, entry.name) for entry in pods.iterdir()] if pods.is_dir() else []

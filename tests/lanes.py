"""Lanes: environments with another Airflow and another Python, in which the same tests run.

    python -m tests.lanes 3.1 3.11     installs requirements/airflow-3.1.lock with Python 3.11 into .lanes/3.1-3.11
    python -m tests.tiers lane-3.1-3.11    does that, and runs the tests there

A lane says what is supported: the oldest Airflow with the oldest Python, the newest with the newest, and the lowest
versions that pyproject.toml allows. Each lock file has versions of its Airflow's time, because the newest releases of
some libraries break an older Airflow. An Airflow without a lock file of its own is the one of requirements.lock.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import debian_python

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECTS = (".", "gangjobs_sandbox")
LOWEST = "lowest"
"""The name of the lane whose direct dependencies have the lowest versions that pyproject.toml allows."""


class LaneError(Exception):
    """A lane cannot be installed. The message says what to do."""


@dataclass(frozen=True)
class Lane:
    """One Airflow with one Python.

    Attributes:
        airflow: a minor version of Airflow, or `LOWEST`.
        python: a minor version of Python.
    """

    airflow: str
    python: str

    @classmethod
    def named(cls, name: str) -> Lane:
        """Return the lane of a name such as `lane-3.1-3.11`."""
        _, airflow, python = name.split("-")
        return cls(airflow, python)

    @property
    def name(self) -> str:
        return f"lane-{self.airflow}-{self.python}"

    @property
    def folder(self) -> Path:
        return REPOSITORY / ".lanes" / f"{self.airflow}-{self.python}"

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def lock(self) -> Path:
        """The versions of this lane's packages.

        Raises:
            LaneError: there are none for this Airflow.
        """
        own, newest = REPOSITORY / "requirements" / f"airflow-{self.airflow}.lock", REPOSITORY / "requirements.lock"
        if own.exists():
            return own
        if re.search(rf"^apache-airflow=={re.escape(self.airflow)}\.", newest.read_text(), flags=re.MULTILINE):
            return newest
        known = sorted(path.stem.removeprefix("airflow-") for path in own.parent.glob("*.lock"))
        raise LaneError(
            f"no pins for Airflow {self.airflow}: known are {', '.join(known)}, and the one of {newest.name}"
        )

    def install(self) -> None:
        """Install the lane, unless it is installed already.

        Raises:
            LaneError: there are no pins for this Airflow, or the Python cannot be had.
        """
        lock, marker = self.lock, self.folder / ".installed"
        inputs = (lock, *(REPOSITORY / project / "pyproject.toml" for project in PROJECTS))
        state = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
        if marker.exists() and marker.read_text() == state:
            return
        print(f"installing {lock.relative_to(REPOSITORY)} with Python {self.python} into {self.folder}", flush=True)
        _uv(self, "venv", "--clear", "--python", _interpreter(self.python), str(self.folder))
        hashes = ["--require-hashes"] if "--hash=" in lock.read_text() else []
        into = ("--python", str(self.interpreter))
        _uv(self, "pip", "sync", *into, *hashes, str(lock))
        editable = (argument for project in PROJECTS for argument in ("--editable", str(REPOSITORY / project)))
        _uv(self, "pip", "install", *into, "--no-deps", *editable)
        marker.write_text(state)


LANES = (Lane("3.1", "3.11"), Lane("3.2", "3.12"), Lane("3.3", "3.13"), Lane("3.3", "3.14"), Lane(LOWEST, "3.11"))
OLDEST = LANES[0]


def _interpreter(version: str) -> str:
    """Return the path of a Python that uv may not look for: this one, one of pyenv, or one of Debian's packages.

    Otherwise the version itself, whose Python uv finds or downloads.
    """
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys._base_executable  # type: ignore[attr-defined,no-any-return]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python"), key=lambda path: int(path.parts[-3].rpartition(".")[2]))
    if found:
        return str(found[-1])
    if version == debian_python.VERSION and shutil.which(f"python{version}") is None and debian_python.is_possible():
        debian_python.install()
        return str(debian_python.INTERPRETER)
    return version


def _uv(lane: Lane, *arguments: str) -> None:
    program = shutil.which("uv") or str(REPOSITORY / ".tools" / "bin" / "uv")
    if subprocess.run([program, "--quiet", *arguments], check=False).returncode:
        raise LaneError(
            f"{lane.name} cannot be installed (see above). Without Python {lane.python}: install it with pyenv or uv."
        )


def main() -> None:
    try:
        Lane(sys.argv[1], sys.argv[2]).install()
    except LaneError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

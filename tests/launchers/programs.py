"""Install the launchers that the tests run: `python -m tests.launchers.programs`.

As root on Debian or Ubuntu, the command installs OpenSSH, Open MPI and MPICH. The module mpi4py belongs to the Python
of the system, so the tests run their programs by that Python. As root on Debian, the command also unpacks PyTorch and
Open MPI 5 of Debian 13 into folders of their own (`tests/launchers/pytorch.py`, `tests/launchers/openmpi.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.airflow.debian import install
from tests.launchers.openmpi import OPEN_MPI_5
from tests.launchers.pytorch import PYTORCH

PYTHON: Final = "/usr/bin/python3"
SSH_PACKAGES: Final = ("openssh-client", "openssh-server")
MPI_PACKAGES: Final = (*SSH_PACKAGES, "openmpi-bin", "mpich", "python3-mpi4py")
UNPACKED: Final = (PYTORCH, OPEN_MPI_5)


def without_sshd() -> str:
    """Return why this machine cannot run the script of an MPI gang; an empty text if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "sshd of one gang needs root on Linux, where each rank has an address and host names of its own"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    names = ("ssh", "sshd", "ssh-keygen", "setpriv", "unshare")
    return _missing([name for name in names if shutil.which(name, path=path) is None], SSH_PACKAGES)


def without_mpi() -> str:
    """Return why this machine cannot run MPI programs on a gang; an empty text if it can."""
    programs = [name for name in ("mpirun.openmpi", "mpirun.mpich") if shutil.which(name) is None]
    return without_sshd() or _missing([*programs, *_missing_module("mpi4py")], MPI_PACKAGES)


def without_open_mpi_5() -> str:
    """Return why this machine cannot run programs of Open MPI 5 on a gang; an empty text if it can."""
    return without_mpi() or OPEN_MPI_5.unavailable()


def needs(reason: str) -> pytest.MarkDecorator:
    """Return the mark of tests that are skipped for the reason, if there is one, and fail in CI."""
    return pytest.mark.skipif(bool(reason) and not os.environ.get("CI"), reason=reason)


def _missing(names: list[str], packages: tuple[str, ...]) -> str:
    return f"not installed: {', '.join(names)} (Debian, Ubuntu: apt-get install {' '.join(packages)})" if names else ""


def _missing_module(name: str) -> list[str]:
    """Return the module in a list if the Python of the system cannot find it."""
    program = f"import importlib.util; raise SystemExit(importlib.util.find_spec({name!r}) is None)"
    found = Path(PYTHON).exists() and subprocess.run([PYTHON, "-c", program], check=False).returncode == 0
    return [] if found else [f"the module {name} of {PYTHON}"]


def main() -> int:
    if without_mpi():
        install("MPI", *MPI_PACKAGES)
    for packages in UNPACKED:
        if os.geteuid() == 0 and not packages.is_installed():
            try:
                packages.install()
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                print(f"{packages.title} is not installed: {error}")
    reasons = [reason for reason in (without_mpi(), *(each.unavailable() for each in UNPACKED)) if reason]
    for reason in reasons:
        print(f"{reason}: the tests that need it are skipped")
    return 1 if reasons and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())

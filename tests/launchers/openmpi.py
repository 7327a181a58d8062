"""Open MPI 5 of Debian 13 in a folder, and volumes by which a container has it instead of the Open MPI of this machine.

Debian 12 has Open MPI 4, whose launcher is ORTE. The launcher of Open MPI 5 is PRRTE, which has other variables. The
unpacked packages include the shells, the tools, and OpenSSH, which the script of a gang runs. So all programs of a
container with these volumes are those of Debian 13, as in an image of Debian 13.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.launchers.debian13 import UnpackedPackages

SHELL_PACKAGES: Final = ("bash", "coreutils", "dash", "findutils", "grep", "sed")
MPI_PACKAGES: Final = ("openmpi-bin", "openssh-client", "openssh-server", "python3-mpi4py")
MOUNTED: Final = ("usr", "etc/openmpi")
"""The folders that differ between the two releases of Debian."""
ROUTES: Final = {"OMPI_MCA_reachable": "weighted"}


def _configure(part: Path, _: Path) -> None:
    """Link the launcher, as `update-alternatives` does when the packages are configured."""
    (part / "usr" / "bin" / "mpirun").symlink_to("mpirun.openmpi")


def container_parameters() -> dict[str, Any]:
    """Return parameters of a gang whose containers have the programs of Debian 13.

    Open MPI 5 asks the kernel for the route to the other ranks. On the sandbox, where all pods have the network
    interfaces of the machine, this route leads to no interface that it uses, so it must compare addresses instead.
    """
    names = {path: path.replace("/", "-") for path in MOUNTED}
    volumes = [{"name": name, "hostPath": {"path": str(OPEN_MPI_5.folder / path)}} for path, name in names.items()]
    mounts = [{"name": name, "mountPath": f"/{path}", "readOnly": True} for path, name in names.items()]
    return {"volumes": volumes, "volume_mounts": mounts, "env": ROUTES}


OPEN_MPI_5: Final = UnpackedPackages(
    "Open MPI 5", "openmpi5", (*SHELL_PACKAGES, *MPI_PACKAGES), Path(__file__), _configure
)

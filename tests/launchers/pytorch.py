"""PyTorch of Debian 13 in a folder, and a `torchrun` that uses it.

PyPI has PyTorch for CPUs only together with CUDA, which is several gigabytes, and Debian 12 has version 1.13, whose
torchrun does not work with the Python 3.11 of Debian 12: its default values of `--redirects` and `--tee` depend on an
iteration over flags that Python 3.11 has changed. So the packages of Debian 13 are unpacked. The program `torchrun` in
the folder `programs` gives its processes the `/usr` of these packages, in a mount namespace of its own.

Debian builds PyTorch without libuv, and torchrun 2.6 needs libuv to create its store, unless it is told otherwise: by a
variable, and in the static rendezvous by an argument, which is added to the two unpacked files that create the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.launchers.debian13 import UnpackedPackages

DISTRIBUTED: Final = "python3/dist-packages/torch/distributed"
STORES: Final = {
    "elastic/rendezvous/static_tcp_rendezvous.py": "multi_tenant=True,",
    "rendezvous.py": "is_master=False,",
}
"""An argument of the one store that each file creates whatever the variable `USE_LIBUV` is."""

TORCHRUN: Final = """\
#!/bin/sh
# Run torchrun with the /usr of this folder, which only this process and its children see.
export USE_LIBUV=0
exec unshare --mount -- sh -c 'mount --bind "$0" /usr && exec /usr/bin/torchrun "$@"' "{usr}" "$@"
"""


def _configure(part: Path, folder: Path) -> None:
    _link_alternatives(part / "usr" / "lib")
    _avoid_libuv(part / "usr" / "lib")
    program = part / "programs" / "torchrun"
    program.parent.mkdir()
    program.write_text(TORCHRUN.format(usr=folder / "usr"))
    program.chmod(0o755)


def _link_alternatives(lib: Path) -> None:
    """Link BLAS and LAPACK, as `update-alternatives` does when the packages are configured."""
    for name in ("blas/libblas.so.3", "lapack/liblapack.so.3"):
        for library in lib.glob(f"*/{name}"):
            (library.parents[1] / library.name).symlink_to(name)


def _avoid_libuv(lib: Path) -> None:
    """Let torchrun and the processes that it starts create their stores without libuv.

    Raises:
        RuntimeError: PyTorch has changed.
    """
    for name, argument in STORES.items():
        path = lib / DISTRIBUTED / name
        code = path.read_text()
        if code.count(argument) != 1:
            raise RuntimeError(f"{name} of PyTorch has changed: {argument} is not there once")
        path.write_text(code.replace(argument, f"{argument} use_libuv=False,"))


PYTORCH: Final = UnpackedPackages("PyTorch", "pytorch", ("python3-torch",), Path(__file__), _configure)
PROGRAMS: Final = PYTORCH.folder / "programs"
"""The folder with the program `torchrun`."""

"""PyTorch of Debian 13 in a folder, and a `torchrun` that uses it.

PyPI has PyTorch for CPUs only together with CUDA, which is several gigabytes, and Debian 12 has version 1.13, whose
torchrun does not work with the Python 3.11 of Debian 12: its default values of `--redirects` and `--tee` depend on an
iteration over flags that Python 3.11 has changed. So the packages of Debian 13 are downloaded and unpacked by apt and
dpkg, from the mirror that apt uses on this machine. Nothing is installed. The program `torchrun` in the folder gives
its processes the `/usr` of these packages, in a mount namespace of its own.

Debian builds PyTorch without libuv, and torchrun 2.6 needs libuv to create its store, unless it is told otherwise: by a
variable, and in the static rendezvous by an argument, which is added to the two unpacked files that create the store.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.cluster.controlplane.build import assets_root

SUITE: Final = "trixie"
PACKAGES: Final = ("base-files", "python3-torch")
FOLDER: Final = assets_root().with_name("pytorch")
"""The folder with `usr`, the unpacked packages, with `bin`, the program `torchrun`, and with a fingerprint."""
PROGRAMS: Final = ("apt-get", "dpkg-deb", "mount", "tar", "unshare")
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DISTRIBUTED: Final = "python3/dist-packages/torch/distributed"
STORES: Final = {
    "elastic/rendezvous/static_tcp_rendezvous.py": "multi_tenant=True,",
    "rendezvous.py": "is_master=False,",
}
"""An argument of the one store that each file creates whatever the variable `USE_LIBUV` is."""
PART_S: Final = 900
"""How long a part of the installation may take."""

TORCHRUN: Final = """\
#!/bin/sh
# Run torchrun with the /usr of this folder, which only this process and its children see.
export USE_LIBUV=0
exec unshare --mount -- sh -c 'mount --bind "$0" /usr && exec /usr/bin/torchrun "$@"' "{usr}" "$@"
"""


def unavailable() -> str:
    """Return why PyTorch is not here, and what to do; an empty text if it is."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "torchrun of another Debian needs root on Linux, for a mount namespace"
    if not is_installed():
        return "no PyTorch: run `python -m tests.launchers.programs` as root on Debian"
    return ""


def is_installed() -> bool:
    """Return whether the folder exists and was made by the present code."""
    stamp = FOLDER / "fingerprint"
    return stamp.is_file() and stamp.read_text() == fingerprint()


def fingerprint() -> str:
    """Return a text that changes when this module changes."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def install() -> None:
    """Install PyTorch into its folder, whose fingerprint is written when it is complete.

    Raises:
        RuntimeError: this is not Debian, or a program is missing.
        subprocess.CalledProcessError: the packages cannot be downloaded or unpacked.
    """
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not KEYRING.exists():
        raise RuntimeError(f"not on this machine: {', '.join(missing or [str(KEYRING)])}")
    print(f"installing PyTorch of Debian {SUITE} into {FOLDER}", flush=True)
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent, prefix="pytorch-") as name:
        part = Path(name) / "part"
        for package in _download(Path(name) / "apt"):
            _unpack(package, part)
        _link_alternatives(part / "usr" / "lib")
        _avoid_libuv(part / "usr" / "lib")
        program = part / "bin-of-folder" / "torchrun"
        program.parent.mkdir()
        program.write_text(TORCHRUN.format(usr=FOLDER / "usr"))
        program.chmod(0o755)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        (part / "usr").rename(FOLDER / "usr")
        program.parent.rename(FOLDER / "bin")
        (FOLDER / "fingerprint").write_text(fingerprint())


def mirror() -> str:
    """Return the address of the Debian mirror that apt uses on this machine.

    Raises:
        RuntimeError: apt has no mirror of Debian.
    """
    query = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]
    found = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    if not found:
        raise RuntimeError("apt has no mirror of Debian; `apt-get update` reads the lists of a mirror")
    return found[0]


def _download(folder: Path) -> list[Path]:
    """Download the packages and all that they depend on. The package with the base folders comes first."""
    for name in ("lists/partial", "cache/archives/partial", "parts"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {SUITE} main\n")
    options = {
        "Dir::State": folder,
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": folder / "parts",
        "Dir::Etc::PreferencesParts": folder / "parts",
        "Dir::Etc::Preferences": folder / "preferences",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "-q", "-y", *(f"-o{name}={value}" for name, value in options.items())]
    for words in (["update"], ["install", "--download-only", *PACKAGES]):
        subprocess.run([*apt, *words], stdout=subprocess.DEVNULL, check=True, timeout=PART_S)
    return sorted((folder / "cache" / "archives").glob("*.deb"), key=lambda path: path.name.startswith("base-") < 1)


def _unpack(package: Path, root: Path) -> None:
    """Unpack a package. Folders such as `/lib` are links into `/usr`, which `base-files` contains, and stay links."""
    root.mkdir(exist_ok=True)
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as files:
        unpack = ["tar", "-x", "--keep-directory-symlink", "-C", root]
        subprocess.run(unpack, stdin=files.stdout, check=True, timeout=PART_S)
    if files.returncode:
        raise subprocess.CalledProcessError(files.returncode, files.args)


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

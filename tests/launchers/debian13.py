"""Packages of Debian 13 that are unpacked into a folder of their own. Nothing is installed.

The packages, and all that they depend on, are downloaded and unpacked by apt and dpkg, from the mirror of Debian that
apt uses on this machine. Programs of the folder run where its `usr` is mounted as `/usr`, in a mount namespace.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.cluster.controlplane.build import assets_root

if TYPE_CHECKING:
    from collections.abc import Callable

SUITE: Final = "trixie"
PROGRAMS: Final = ("apt-get", "dpkg-deb", "mount", "tar", "unshare")
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PART_S: Final = 900
"""How long a part of the installation may take."""


@dataclass(frozen=True)
class UnpackedPackages:
    """Packages of Debian 13 in a folder below the cache of the tests.

    Attributes:
        title: what messages call the packages.
        name: the name of the folder.
        packages: the packages that are unpacked, with all that they depend on.
        module: the file of the module that defines the packages. The folder is out of date when this file has changed.
        configure: does what the packages do when they are configured. It gets the folder with `usr` and `etc`, and the
            folder where these will be.
    """

    title: str
    name: str
    packages: tuple[str, ...]
    module: Path
    configure: Callable[[Path, Path], None]

    @property
    def folder(self) -> Path:
        """The folder with `usr`, `etc`, and a fingerprint."""
        return assets_root().with_name(self.name)

    def unavailable(self) -> str:
        """Return why the packages are not here, and what to do; an empty text if they are."""
        if sys.platform != "linux" or os.geteuid() != 0:
            return f"{self.title} of another Debian needs root on Linux, for a mount namespace"
        if not self.is_installed():
            return f"no {self.title}: run `python -m tests.launchers.programs` as root on Debian"
        return ""

    def is_installed(self) -> bool:
        """Return whether the folder exists and was made by the present code."""
        stamp = self.folder / "fingerprint"
        return stamp.is_file() and stamp.read_text() == self.fingerprint()

    def fingerprint(self) -> str:
        """Return a text that changes when the code changes that makes the folder."""
        return hashlib.sha256(Path(__file__).read_bytes() + self.module.read_bytes()).hexdigest()

    def install(self) -> None:
        """Make the folder, whose fingerprint is written when it is complete.

        Raises:
            RuntimeError: this is not Debian, or a program is missing.
            subprocess.CalledProcessError: the packages cannot be downloaded or unpacked.
        """
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing or not KEYRING.exists():
            raise RuntimeError(f"not on this machine: {', '.join(missing or [str(KEYRING)])}")
        folder = self.folder
        print(f"installing {self.title} of Debian {SUITE} into {folder}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{self.name}-") as name:
            part = Path(name) / "part"
            for package in download(self.packages, Path(name) / "apt"):
                unpack(package, part)
            self.configure(part, folder)
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)
            (folder / "fingerprint").write_text(self.fingerprint())


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


def download(packages: tuple[str, ...], folder: Path, suite: str = SUITE) -> list[Path]:
    """Download packages and all that they depend on. The package with the base folders comes first.

    The apt is one of its own, which knows one suite and no installed package.
    """
    for name in ("lists/partial", "cache/archives/partial", "parts"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n")
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
    for words in (["update"], ["install", "--download-only", "base-files", *packages]):
        subprocess.run([*apt, *words], stdout=subprocess.DEVNULL, check=True, timeout=PART_S)
    return sorted((folder / "cache" / "archives").glob("*.deb"), key=lambda path: path.name.startswith("base-") < 1)


def unpack(package: Path, root: Path) -> None:
    """Unpack a package. Folders such as `/lib` are links into `/usr`, which `base-files` contains, and stay links."""
    root.mkdir(exist_ok=True)
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as files:
        extract = ["tar", "-x", "--keep-directory-symlink", "-C", str(root)]
        subprocess.run(extract, stdin=files.stdout, check=True, timeout=PART_S)
    if files.returncode:
        raise subprocess.CalledProcessError(files.returncode, files.args)

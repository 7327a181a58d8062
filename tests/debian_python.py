"""A Python that this machine does not have, from the packages of a newer Debian. Nothing is installed.

    python -m tests.debian_python    unpacks it into the cache of the tests

The packages, with the C library and the others that they depend on, come from the mirror of Debian that apt uses on
this machine. `patchelf` makes the interpreter find these libraries, so it runs as any other program, also in a virtual
environment, and wheels work.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.cluster.controlplane.build import assets_root
from tests.launchers import debian13
from tests.launchers.debian13 import KEYRING, PART_S, PROGRAMS, download, unpack

VERSION: Final = "3.14"
SUITE: Final = "forky"
FOLDER: Final = assets_root().with_name(f"python-{VERSION}")
INTERPRETER: Final = FOLDER / "usr" / "bin" / f"python{VERSION}"
REPOSITORY: Final = Path(__file__).resolve().parent.parent
IMPORTED: Final = "import bz2, ctypes, lzma, sqlite3, ssl, uuid, venv, zlib"
"""What shows that the libraries of the interpreter are found."""


def is_possible() -> bool:
    """Return whether this machine has what the installation needs."""
    return KEYRING.exists() and all(map(shutil.which, PROGRAMS))


def install() -> None:
    """Unpack the Python, unless it is there.

    Raises:
        subprocess.CalledProcessError: the packages cannot be downloaded, unpacked, or used.
    """
    stamp = FOLDER / "fingerprint"
    if stamp.is_file() and stamp.read_text() == _fingerprint():
        return
    print(f"unpacking Python {VERSION} of Debian {SUITE} into {FOLDER}", flush=True)
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent, prefix=f"{FOLDER.name}-") as name:
        for package in download((f"python{VERSION}",), Path(name), SUITE):
            unpack(package, FOLDER)
    _use_own_libraries(INTERPRETER, FOLDER / "usr" / "lib")
    subprocess.run([INTERPRETER, "-c", IMPORTED], check=True)
    stamp.write_text(_fingerprint())


def _fingerprint() -> str:
    return hashlib.sha256(Path(__file__).read_bytes() + Path(debian13.__file__).read_bytes()).hexdigest()


def _use_own_libraries(program: Path, libraries: Path) -> None:
    """Let a program load the C library and all others from a folder, and so do the modules that the program loads."""
    (loader,) = libraries.glob("**/ld-linux-*.so.*")
    paths = f"{loader.parent}:{libraries}"
    uv = shutil.which("uv") or str(REPOSITORY / ".tools" / "bin" / "uv")
    patchelf = [uv, "tool", "run", "--quiet", "patchelf", "--set-interpreter", loader]
    subprocess.run([*patchelf, "--force-rpath", "--set-rpath", paths, program], check=True, timeout=PART_S)


if __name__ == "__main__":
    install()

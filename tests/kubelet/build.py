"""Build the kubelets that are missing, and install what they need: `python -m tests.kubelet.build [1.36 1.37]`.

Each release becomes one static binary `<assets>/<release>/kubelet`, from the Kubernetes version that the control plane
of the release has. A build takes half a minute where the control plane has been built, and six minutes with a cold Go
build cache. As root on Debian or Ubuntu, the command installs containerd, the network plugins, busybox, D-Bus,
systemd-logind and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.airflow.debian import install
from tests.cluster.controlplane import build as controlplane
from tests.cluster.controlplane.build import (
    Builder,
    assets_root,
    digest,
    go,
    linker_flags,
    pinned_version,
)

MODULE: Final = Path(controlplane.__file__).resolve().parent
"""The Go module of the control planes, whose package `kubelet` is the kubelet."""
RELEASES: Final = ("1.36", "1.37")
PACKAGES: Final = ("containerd", "containernetworking-plugins", "busybox-static", "dbus", "iproute2", "systemd")
PROGRAMS: Final = ("containerd", "ctr", "ip", "nsenter", "unshare")
SHUTDOWN_PROGRAMS: Final = ("dbus-daemon", "dbus-send", "unshare")
"""Programs that only the tests of a node's shutdown need."""
BUSYBOX: Final = Path("/bin/busybox")
NETWORK_PLUGINS: Final = Path("/usr/lib/cni")
LOGIND: Final = Path("/lib/systemd/systemd-logind")
ADVICE: Final = f"Debian, Ubuntu: apt-get install {' '.join(PACKAGES)}"


def binary(release: str) -> Path:
    """Return where the kubelet of `release` is, once built."""
    return assets_root() / release / "kubelet"


def fingerprint(release: str) -> str:
    """Return a text that changes when anything that the binary is made from changes."""
    return digest((MODULE / "kubelet" / "main.go", *_module_files(release)))


def build(release: str) -> None:
    """Build one release. The binary gets its final name only when it is complete."""
    target = binary(release)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name("kubelet.part")
    with tempfile.TemporaryDirectory() as folder:
        # The kubelet has a few packages that no other component has. They are added to a copy of the pinned files, so
        # that the control planes need no new build.
        pins, *sums = _module_files(release)
        copy = Path(folder) / pins.name
        copy.write_bytes(pins.read_bytes())
        copy.with_suffix(".sum").write_bytes(b"".join(part.read_bytes() for part in sums))
        command = (
            *(go(), "build", f"-modfile={copy}", "-mod=mod", "-trimpath"),
            *("-ldflags", linker_flags(release), "-o", str(unfinished), "./kubelet"),
        )
        subprocess.run(command, cwd=MODULE, check=True, env={**os.environ, "CGO_ENABLED": "0"})
    unfinished.replace(target)


def missing_programs() -> list[str]:
    """Return the programs that are not installed."""
    return _missing(PROGRAMS, (BUSYBOX, NETWORK_PLUGINS / "bridge"))


def missing_shutdown_programs() -> list[str]:
    """Return the programs for the shutdown of a node that are not installed."""
    return _missing(SHUTDOWN_PROGRAMS, (LOGIND,))


def _missing(programs: tuple[str, ...], files: tuple[Path, ...]) -> list[str]:
    missing = [name for name in programs if shutil.which(name) is None]
    return missing + [str(path) for path in files if not path.exists()]


def unavailable() -> str:
    """Return why this machine cannot run a kubelet; an empty text if it can."""
    if sys.platform != "linux":
        return "a kubelet needs Linux"
    if os.geteuid() != 0:
        return "a kubelet needs root"
    if missing := missing_programs():
        return f"not installed: {', '.join(missing)} ({ADVICE})"
    return ""


def _module_files(release: str) -> list[Path]:
    """Return the module file of the control plane, its checksums, and those that only the kubelet needs.

    `pin.sh` writes one file with all checksums. The releases with a file of their own for the kubelet are older than
    the kubelet of the tests.
    """
    pins = [MODULE / "releases" / f"{release}.{kind}" for kind in ("mod", "sum")]
    return [path for path in (*pins, MODULE / "kubelet" / f"{release}.sum") if path.exists()]


def stamp(program: Path) -> Path:
    """Return the file with the fingerprint of a kubelet, whose folder has a control plane too."""
    return program.with_name("kubelet.fingerprint")


BUILDER: Final = Builder(
    "kubelet ",
    {release: pinned_version(release) for release in RELEASES},
    binary=binary,
    fingerprint=fingerprint,
    build=build,
    stamp=stamp,
)


def main(releases: list[str]) -> int:
    if missing_programs() or missing_shutdown_programs():
        install("containerd", *PACKAGES)
    if reason := unavailable():
        print(f"{reason}: the tests with a kubelet are skipped")
        return 1 if os.environ.get("CI") else 0
    return BUILDER.build_missing(releases or RELEASES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

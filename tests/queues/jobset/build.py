"""Build the JobSet controller if it is missing: `python -m tests.queues.jobset.build`.

The controller becomes the folder `<assets>/jobset-<version>` with the static binary `controller`, the definition of
JobSets and the webhook configurations. The assets folder is the one of the control planes. The module file of Kueue
0.19 requires JobSet and pins the versions for both, so a build after that of Kueue compiles few packages. A build takes
some four minutes on two cores when Go's build cache is cold. The binary is kept until the module file changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.cluster.controlplane.build import (
    Builder,
    assets_root,
    digest,
    go,
    module_source,
)

PINS: Final = Path(__file__).resolve().parents[1] / "kueue" / "releases" / "0.19"
"""The module file and the checksums, without the ends of their names."""
MODULE: Final = "sigs.k8s.io/jobset"
VERSION: Final = "v0.12.0"
NAME: Final = "jobset"
MANIFESTS: Final = {"definitions": "config/components/crd/bases", "webhooks": "config/components/webhook"}


def folder() -> Path:
    """Where the controller and its manifests are, once built."""
    return assets_root() / f"{NAME}-{VERSION}"


def binary(_: str = NAME) -> Path:
    """The controller, once built."""
    return folder() / "controller"


def fingerprint(_: str = NAME) -> str:
    """Changes when anything that the binary is made from changes."""
    return digest([Path(f"{PINS}.{kind}") for kind in ("mod", "sum")], text=VERSION)


def build(_: str = NAME) -> None:
    """Build the controller; the binary appears under its final name only when it is whole."""
    target = folder()
    target.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "CGO_ENABLED": "0"}
    unfinished = target / "controller.part"
    options = ("-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", str(unfinished))
    with tempfile.TemporaryDirectory(prefix="jobset-") as work:
        for kind in ("mod", "sum"):
            shutil.copyfile(f"{PINS}.{kind}", Path(work) / f"go.{kind}")
        subprocess.run([go(), "build", *options, MODULE], cwd=work, check=True, env=environment)
        source = module_source(MODULE, VERSION, work=Path(work))
    for kind, path in MANIFESTS.items():
        shutil.rmtree(target / kind, ignore_errors=True)
        shutil.copytree(source / path, target / kind, copy_function=shutil.copyfile)
    unfinished.replace(binary())


BUILDER: Final = Builder(
    "",
    {NAME: VERSION},
    binary=binary,
    fingerprint=fingerprint,
    build=build,
)


if __name__ == "__main__":
    sys.exit(BUILDER.build_missing(sys.argv[1:] or (NAME,)))

"""Build the gang schedulers that are missing: `python -m tests.queues.schedulers.build [volcano ...]`.

Each scheduler becomes one folder `<assets>/<name>-<version>` with the static binary `scheduler` and the definitions of
its resources. The assets folder is the one of the control planes. A build takes some minutes on two cores when Go's
build cache is cold, and seconds when it is warm. A binary is kept until its module file changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.controlplane.build import (
    Builder,
    assets_root,
    digest,
    go,
    module_source,
)

MODULES: Final = Path(__file__).resolve().parent / "modules"


@dataclass(frozen=True)
class Program:
    """A scheduler in a published Go module.

    Attributes:
        scheduler: what the provider calls the scheduler; each version of it is a program of its own.
        modules: the folder of `MODULES` whose go.mod and go.sum pin all dependencies.
        package: the main package, below the module.
        controllers: the main package of its controllers, if the scheduler needs them.
        definitions: files with the CustomResourceDefinitions, as a pattern below the module; empty if there are none.
    """

    scheduler: str
    modules: str
    module: str
    version: str
    package: str
    definitions: str = ""
    controllers: str = ""


PROGRAMS: Final = {
    # The module names Kubernetes 1.34.7, of which not all parts are published; it is built with 1.34.4.
    "coscheduling": Program(
        "coscheduling",
        "scheduler-plugins",
        "sigs.k8s.io/scheduler-plugins",
        "v0.34.7",
        "cmd/scheduler",
        "manifests/coscheduling/crd.yaml",
    ),
    # The scheduler places no pod of a queue before the controllers have opened the queue.
    "volcano": Program(
        "volcano",
        "volcano",
        "volcano.sh/volcano",
        "v1.14.1",
        "cmd/scheduler",
        "config/crd/*/bases/*.yaml",
        "cmd/controller-manager",
    ),
    "volcano-1.10": Program(
        "volcano",
        "volcano-1.10",
        "volcano.sh/volcano",
        "v1.10.0",
        "cmd/scheduler",
        "config/crd/*/bases/*.yaml",
        "cmd/controller-manager",
    ),
    "yunikorn": Program("yunikorn", "yunikorn", "github.com/apache/yunikorn-k8shim", "v1.8.0", "pkg/cmd/shim"),
}


def folder(name: str) -> Path:
    """Return the folder of the scheduler and its definitions."""
    program = PROGRAMS[name]
    return assets_root() / f"{program.scheduler}-{program.version}"


def binary(name: str) -> Path:
    """Return the path of the scheduler."""
    return folder(name) / "scheduler"


def controllers(name: str) -> Path | None:
    """Return the path of the controllers; `None` if the scheduler needs none."""
    return folder(name) / "controllers" if PROGRAMS[name].controllers else None


def fingerprint(name: str) -> str:
    """Return a text that changes when anything changes that the binary is built from."""
    program = PROGRAMS[name]
    return digest([MODULES / program.modules / file for file in ("go.mod", "go.sum")], text=repr(program))


def build(name: str) -> None:
    """Build one scheduler. The binary gets its final name only when it is complete."""
    program, target = PROGRAMS[name], folder(name)
    target.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "CGO_ENABLED": "0"}
    work = MODULES / program.modules
    unfinished = target / "scheduler.part"
    for package, output in ((program.controllers, target / "controllers"), (program.package, unfinished)):
        if package:
            options = ("-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", str(output))
            command = [go(), "build", *options, f"{program.module}/{package}"]
            subprocess.run(command, cwd=work, check=True, env=environment)
    source = module_source(program.module, program.version, work=work)
    (target / "definitions").mkdir(exist_ok=True)
    for path in source.glob(program.definitions) if program.definitions else ():
        shutil.copyfile(path, target / "definitions" / path.name)
    unfinished.replace(binary(name))


BUILDER: Final = Builder(
    "",
    {name: program.version for name, program in PROGRAMS.items()},
    binary=binary,
    fingerprint=fingerprint,
    build=build,
)


if __name__ == "__main__":
    sys.exit(BUILDER.build_missing(sys.argv[1:] or list(PROGRAMS)))

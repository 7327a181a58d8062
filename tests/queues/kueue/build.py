"""Build the Kueue managers that are missing: `python -m tests.queues.kueue.build [0.15 0.19]`.

Each release becomes one folder `<assets>/kueue-<release>` with the static binary `manager`, the definitions of Kueue's
resources and the webhook configurations. The assets folder is the one of the control planes. A build takes some six
minutes on two cores when Go's build cache is cold, and seconds when it is warm. A binary is kept until its module file
changes.
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

HERE: Final = Path(__file__).resolve().parent
RELEASES: Final = {"0.15": "v0.15.0", "0.19": "v0.19.2"}
MODULE: Final = "sigs.k8s.io/kueue"
CERTIFICATES_OF_METRICS: Final = '"/etc/kueue/metrics/certs"'
"""Without its own certificate management, Kueue reads a certificate from this folder, also if it serves no metrics. The
program is built with the value of an environment variable in its place."""
CERTIFICATES_VARIABLE: Final = "KUEUE_CERTIFICATES"
VISIBILITY_PORT_VARIABLE: Final = "KUEUE_VISIBILITY_PORT"
VISIBILITY: Final = "pkg/visibility"
VISIBILITY_OPTIONS: Final = HERE / "visibility_options.go"
OPTIONS_READY: Final = "\tif err := o.SecureServing.MaybeDefaultWithSelfSignedCerts("
"""The statement of the server of the visibility API after which its options do not change any more."""
MANIFESTS: Final = {
    "crds": "config/components/crd/bases",
    "webhooks": "config/components/webhook",
    "visibility": "config/components/visibility",
}


def folder(release: str) -> Path:
    """Return the folder of the manager and the manifests of `release`."""
    return assets_root() / f"kueue-{release}"


def binary(release: str) -> Path:
    """Return the path of the manager of `release`."""
    return folder(release) / "manager"


def fingerprint(release: str) -> str:
    """Return a text that changes when anything changes that the binary is built from."""
    pins = [HERE / "releases" / f"{release}.{kind}" for kind in ("mod", "sum")]
    return digest((*pins, VISIBILITY_OPTIONS), text=RELEASES[release])


def build(release: str) -> None:
    """Build one release. The binary gets its final name only when it is complete."""
    target = folder(release)
    target.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "CGO_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="kueue-") as name:
        work = Path(name)
        for kind in ("mod", "sum"):
            shutil.copyfile(HERE / "releases" / f"{release}.{kind}", work / f"go.{kind}")
        source = module_source(MODULE, RELEASES[release], work=work)
        main = (source / "cmd/kueue/main.go").read_text()
        assert CERTIFICATES_OF_METRICS in main, "the folder of the certificates has another name in this release"
        main = main.replace(CERTIFICATES_OF_METRICS, f'os.Getenv("{CERTIFICATES_VARIABLE}")')
        (work / "main.go").write_text(main.replace(f'"{MODULE}/{VISIBILITY}"', '"gangjobs.test/kueue/visibility"'))
        _copy_visibility(source, work)
        options = (
            "-mod=readonly",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags=-s -w",
            "-o",
            str(target / "manager.part"),
        )
        subprocess.run([go(), "build", *options, "."], cwd=work, check=True, env=environment)
        for kind, path in MANIFESTS.items():
            shutil.rmtree(target / kind, ignore_errors=True)
            shutil.copytree(source / path, target / kind, copy_function=shutil.copyfile)
    (target / "manager.part").replace(binary(release))


def _copy_visibility(source: Path, work: Path) -> None:
    """Copy Kueue's package that serves the visibility API, and let it call `applyEnvironment`."""
    server = (source / VISIBILITY / "server.go").read_text()
    assert OPTIONS_READY in server, "the server of the visibility API has other options in this release"
    (work / "visibility").mkdir()
    (work / "visibility" / "server.go").write_text(
        server.replace(OPTIONS_READY, f"\tapplyEnvironment(o)\n{OPTIONS_READY}")
    )
    shutil.copyfile(VISIBILITY_OPTIONS, work / "visibility" / VISIBILITY_OPTIONS.name)


BUILDER: Final = Builder(
    "Kueue ",
    RELEASES,
    binary=binary,
    fingerprint=fingerprint,
    build=build,
)


if __name__ == "__main__":
    sys.exit(BUILDER.build_missing(sys.argv[1:] or list(RELEASES)))

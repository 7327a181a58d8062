"""The control planes under test: the sandbox of each release, and the real ones.

`GANGJOBS_CONFORMANCE` selects: `sandbox` (the default), `real`, or a comma separated list of names such as
`sandbox-1.36,real-1.36`. `GANGJOBS_CONFORMANCE_KUBECONFIG` is the kubeconfig of another cluster to test.
The control planes have no nodes. A test creates the nodes that it needs.
"""

from __future__ import annotations

import base64
import os
import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx
import yaml

from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.thread import running
from tests.cluster.control_plane import running_plane
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
GIVEN = "GANGJOBS_CONFORMANCE_KUBECONFIG"
"""The kubeconfig, with a token, of a cluster that is tested instead of the targets."""

SANDBOXES = tuple(f"sandbox-{release}" for release in ("1.36", "1.37", "none"))
NEWEST_SANDBOX = "sandbox-1.37"
REAL = tuple(f"real-{release}" for release in ("1.36", "1.37"))
BY_NAME_ONLY = ("real-none",)
"""1.37 with its default settings. Its API is that of `real-1.37` without gangs, so it is tested only if it is named."""


@dataclass(frozen=True)
class Target:
    """One running control plane, and its administrator's access."""

    name: str
    """`sandbox-1.36`, `real-1.36`..."""
    url: str
    token: str = field(repr=False)
    trust: ssl.SSLContext = field(repr=False)
    kubeconfig: Path

    @property
    def release(self) -> str:
        """`1.36`, `1.37`, or `none`, which serves no Workload API."""
        return self.name.partition("-")[2]

    @property
    def is_real(self) -> bool:
        return self.name.startswith("real-")

    def client(self, token: str | None = None) -> httpx.Client:
        """A bare HTTP client; the administrator's unless `token` is given."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.url, verify=self.trust, headers=headers, timeout=TIMEOUT_S, trust_env=False)

    @classmethod
    def of(cls, name: str, kubeconfig: Path) -> Self:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        if inline := cluster.get("certificate-authority-data"):
            trust = ssl.create_default_context(cadata=base64.b64decode(inline).decode())
        else:
            trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
        return cls(name, cluster["server"], user["token"], trust, kubeconfig)


def chosen() -> tuple[str, ...]:
    """The targets of this run."""
    if GIVEN in os.environ:
        return ("given",)
    named = os.environ.get("GANGJOBS_CONFORMANCE", "sandbox").split(",")
    groups = tuple(name for name in SANDBOXES + REAL if name in named or name.partition("-")[0] in named)
    return groups + tuple(name for name in BY_NAME_ONLY if name in named)


@contextmanager
def started(
    name: str, folder: Path, *, workload_with_job: bool = False, service_accounts: bool = False
) -> Iterator[Target]:
    """Run a control plane of this name. Skips the test if it is a real one that has not been built."""
    kind, _, release = name.partition("-")
    if kind == "given":
        yield Target.of(name, Path(os.environ[GIVEN]))
        return
    if kind == "real":
        with running_plane(
            release, folder, workload_with_job=workload_with_job, service_accounts=service_accounts
        ) as plane:
            yield Target.of(name, plane.folder / "admin.kubeconfig")
        return
    config = SandboxConfig(nodes=0, kubernetes=release, workload_with_job=workload_with_job)
    with running(config) as sandbox:
        yield Target.of(name, sandbox.kubeconfig_path)

"""A controller with webhooks beside a real control plane: a certificate, webhooks by URL, and a process."""

from __future__ import annotations

import base64
import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from scripts.ports import free_port
from tests.cluster.certificates import write_certificate
from tests.replies import accepted, is_healthy, wait_until
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from tests.cluster.control_plane import ControlPlane


@dataclass
class WebhookController:
    """A controller. `start` and `stop` of a subclass may be called in turn; the definitions and the webhooks stay."""

    name: ClassVar[str]
    before_exec: ClassVar[Callable[[], None] | None] = None
    """Called in the process before it becomes the program. `die_with_parent` also ends what a thread has started."""
    plane: ControlPlane
    port: int = field(default_factory=free_port, kw_only=True)
    """The port of the webhooks."""
    health: int = field(default_factory=free_port, kw_only=True)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    @property
    def work(self) -> Path:
        """The folder of the certificate, the configuration and the log."""
        return self.plane.folder / self.name

    def write_certificate(self) -> None:
        """Write the certificate of the webhooks, before their clients are configured."""
        self.work.mkdir()
        write_certificate(self.work, "webhooks")

    def client_config(self, path: str) -> dict[str, Any]:
        """Return how an API server reaches the webhook of this path."""
        bundle = base64.b64encode((self.work / "tls.crt").read_bytes()).decode()
        return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": bundle}

    def run(self, program: Path, config: Mapping[str, Any], **environment: str) -> None:
        """Start the program with this configuration, and wait until it is ready."""
        common = {
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.health}"},
            "webhook": {"host": "127.0.0.1", "port": self.port, "certDir": str(self.work)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
        }
        file = self.work / "config.yaml"
        file.write_text(yaml.safe_dump({**common, **config}))
        command = [str(program), f"--config={file}", f"--kubeconfig={self.plane.folder / 'admin.kubeconfig'}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | environment, preexec_fn=self.before_exec
            )
        wait_until(self._is_ready, f"{self.name} is ready")

    def stop(self) -> None:
        """Stop the process and wait until it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(TIMEOUT_S)
            finally:
                self._process.kill()

    def create_webhooks(self, manifests: Path, names: Collection[str]) -> None:
        """Create the webhook configurations of a release with the webhooks of these names."""
        with self.plane.client() as client:
            for document in filter(None, yaml.load_all(manifests.read_text(), yaml.CSafeLoader)):
                kept = [hook for hook in document["webhooks"] if hook["name"] in names]
                for hook in kept:
                    hook["clientConfig"] = self.client_config(hook["clientConfig"]["service"]["path"])
                document |= {"webhooks": kept, "metadata": {"name": f"{self.name}-{document['kind'].lower()[:8]}"}}
                path = f"/apis/admissionregistration.k8s.io/v1/{document['kind'].lower()}s"
                accepted(client.post(path, json=document))

    @property
    def _log(self) -> Path:
        return self.work / "controller.log"

    def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"{self.name} ended: {self._log.read_text()[-3000:]}")
        return is_healthy(f"http://127.0.0.1:{self.health}/readyz")

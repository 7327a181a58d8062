"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

TLS, RBAC and the audit log are on, as in a cluster that one would be given. There is no kubelet: nodes join as API
clients. Everything lives in one folder and dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from scripts.ports import free_port
from tests.cluster.certificates import write_certificate
from tests.cluster.controlplane.build import BUILDER, binary
from tests.cluster.releases import COMMON_CONTROLLERS, release_flags
from tests.replies import is_healthy
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

MISSING_BINARY_ADVICE = "run `make clusters`, or point GANGJOBS_KUBE_ASSETS at prebuilt control planes"
READY_WITHIN_S = STOPPED_WITHIN_S = TIMEOUT_S  # the API server may take up to a minute to exit on SIGTERM
NODE_GRACE = "24h"
PR_SET_PDEATHSIG = 1

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlaneError(Exception):
    """The program was not built, or a component did not start; the message has the command, or the end of the log."""


def missing_program(release: str) -> str:
    """Return that the control plane of this release was not built, and the command that builds it."""
    return f"no control plane of Kubernetes {release}: {MISSING_BINARY_ADVICE}"


def skip_or_fail(missing: str) -> NoReturn:
    """End the test whose program is missing: it is skipped, and fails if the variable `CI` is set.

    :param missing: Which program is missing, and what to do.
    """
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class ControlPlane:
    """One running control plane.

    Attributes:
        release: `1.36` or `1.37`, each with gang scheduling; `1.33`, `1.34`, `1.35` or `none`: without.
        binary: the program that is all four components.
        folder: where it keeps its data, certificates and logs.
        workload_with_job: whether the Job controller's own Workload integration is on.
        more_gates: further feature gates of the API server and the scheduler.
        service_accounts: whether the admission of pods looks up their ServiceAccount, and mounts its token.
    """

    release: str
    binary: Path
    folder: Path
    workload_with_job: bool = False
    service_accounts: bool = False
    more_gates: tuple[str, ...] = ()
    admin_token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    port: int = 0
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)
    _admin: httpx.Client | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        """The certificate of the components, which is its own authority."""
        return self._certificates / "tls.crt"

    @property
    def audit_log(self) -> Path:
        """One JSON event a line for every request."""
        return self.folder / "audit.log"

    def start(self) -> None:
        """Start the components in order and wait until each answers.

        Raises:
            ControlPlaneError: the program was not built, or a component did not start.
        """
        if not self.binary.is_file():
            raise ControlPlaneError(missing_program(release_flags(self.release)[0]))
        self.folder.mkdir(parents=True, exist_ok=True)
        etcd_port = self._start_etcd()
        self._start_apiserver(etcd_port)
        self.kubeconfig("admin", self.admin_token)
        self._start_clients()

    def stop(self) -> None:
        """Stop the components, clients first, and wait until they are gone."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        for name in reversed(list(self._processes)):
            process = self._processes.pop(name)
            process.send_signal(signal.SIGKILL if name == "kube-apiserver" else signal.SIGTERM)
            process.wait(STOPPED_WITHIN_S)

    def kubeconfig(self, name: str, token: str, *, namespace: str = "default") -> Path:
        """Write a kubeconfig for `token`; readable by its owner only."""
        path = self.folder / f"{name}.kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": name, "namespace": namespace}}],
            "current-context": "real",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(content))
        return path

    @contextlib.contextmanager
    def client(self, token: str | None = None) -> Iterator[httpx.Client]:
        """A bare HTTP client of the API server; the administrator's unless `token` is given.

        The administrator has one client, which keeps its connections: tests poll with it, and a new connection takes
        more CPU time than three requests.
        """
        if token is None:
            if self._admin is None:
                self._admin = self._new_client(self.admin_token)
            yield self._admin
        else:
            with self._new_client(token) as client:
                yield client

    def _new_client(self, token: str) -> httpx.Client:
        return httpx.Client(
            base_url=self.url,
            verify=ssl.create_default_context(cafile=str(self.ca_file)),
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
            trust_env=False,
        )

    def async_client(self) -> httpx.AsyncClient:
        """A bare client without credentials and without limits, for those who bring their own."""
        trust = ssl.create_default_context(cafile=str(self.ca_file))
        return httpx.AsyncClient(base_url=self.url, verify=trust, timeout=None, limits=httpx.Limits(), trust_env=False)

    def pids(self) -> dict[str, int]:
        """The process id of each running component."""
        return {name: process.pid for name, process in self._processes.items()}

    @contextlib.contextmanager
    def stopped(self, component: str) -> Iterator[None]:
        """Stop a component while the block runs. It keeps its connections and does nothing."""
        pid = self.pids()[component]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def audited(self, *, by: str = "", from_byte: int = 0) -> Iterator[dict[str, Any]]:
        """The audit events so far.

        :param by: the name of a user; only the events of this user. Defaults to the events of all users.
        :param from_byte: a position of the log; only the events from there on.
        """
        with self.audit_log.open() as lines:
            lines.seek(from_byte)
            for line in lines:
                # Most lines are of other users, and decoding them takes seconds.
                if by in line and line.endswith("\n"):
                    event = json.loads(line)
                    if not by or event["user"]["username"] == by:
                        yield event

    # -- components --

    @property
    def _certificates(self) -> Path:
        return self.folder / "certificates"

    def _start_etcd(self) -> int:
        client_port, peer_port = free_port(), free_port()
        self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client_port}",
            f"--advertise-client-urls=http://127.0.0.1:{client_port}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",
            f"--quota-backend-bytes={8 * 2**30}",
        )
        self._wait("etcd", lambda: is_healthy(f"http://127.0.0.1:{client_port}/health"))
        return client_port

    def _start_apiserver(self, etcd_port: int) -> None:
        _, flags = release_flags(self.release)
        self.port = free_port()
        key = self._write_service_account_key()
        self._certificates.mkdir(exist_ok=True)
        write_certificate(self._certificates, "control-plane")
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self.admin_token},admin,admin,"system:masters"\n')
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(AUDIT_POLICY))
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            "--bind-address=127.0.0.1",
            # No Service leads to the API server, and from 1.37 on a loopback address is refused as its endpoint.
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.port}",
            *self._serving_flags(),
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            # The sandbox node is reached by its address; its name is in no DNS.
            "--kubelet-preferred-address-types=InternalIP",
            # No ServiceAccount tokens are mounted: pods run as local processes that talk to nobody.
            *([] if self.service_accounts else ["--disable-admission-plugins=ServiceAccount"]),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/24",
            *self._front_proxy_flags(),
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            # In megabytes. The log is one file; by default it would begin anew after 100 MB.
            "--audit-log-maxsize=100000",
            *_switched_on("runtime-config", flags.runtime_config),
            *self._gates(flags.api_gates),
        )
        with self.client() as client:
            self._wait("kube-apiserver", lambda: client.get("/readyz").status_code == 200)

    def _start_clients(self) -> None:
        _, flags = release_flags(self.release)
        kubeconfig = self.folder / "admin.kubeconfig"
        common = (
            f"--kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            # The defaults (20 to 50 a second) would measure the throttle and nothing else.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )
        ports = {"kube-controller-manager": free_port(), "kube-scheduler": free_port()}
        self._run(
            "kube-controller-manager",
            *common,
            f"--secure-port={ports['kube-controller-manager']}",
            *self._serving_flags(),
            "--controllers=" + ",".join(COMMON_CONTROLLERS + flags.controllers),
            # Hollow nodes say nothing by themselves. A test writes down what this controller would find after a while.
            f"--node-monitor-grace-period={NODE_GRACE}",
            "--node-eviction-rate=100",
            *self._gates(flags.api_gates),
        )
        self._run(
            "kube-scheduler",
            *common,
            f"--secure-port={ports['kube-scheduler']}",
            *self._serving_flags(),
            *self._gates(flags.scheduler_gates),
        )
        for name, port in ports.items():
            self._wait(name, lambda port=port: is_healthy(f"https://127.0.0.1:{port}/healthz"))  # type: ignore[misc]

    def _gates(self, gates: tuple[str, ...]) -> list[str]:
        wanted = (gate for gate in gates if gate != "WorkloadWithJob" or self.workload_with_job)
        return _switched_on("feature-gates", (*wanted, *self.more_gates))

    def _serving_flags(self) -> tuple[str, ...]:
        """The flags with the certificate. Without them each component would generate RSA keys, which takes CPU time."""
        return (f"--tls-cert-file={self.ca_file}", f"--tls-private-key-file={self._certificates / 'tls.key'}")

    def _front_proxy_flags(self) -> list[str]:
        """The flags with which API servers behind this one (aggregation) believe it who sends a request."""
        folder = self.folder / "front-proxy"
        folder.mkdir(exist_ok=True)
        write_certificate(folder, "front-proxy-client")
        return [
            f"--requestheader-client-ca-file={folder / 'tls.crt'}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={folder / 'tls.crt'}",
            f"--proxy-client-key-file={folder / 'tls.key'}",
        ]

    def _write_service_account_key(self) -> Path:
        path = self.folder / "service-account.key"
        path.touch(mode=0o600)
        key = ec.generate_private_key(ec.SECP256R1())
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        return path

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [str(self.binary), name, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )

    def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if is_ready():
                    return
            ended = self._processes[name].poll() is not None
            if ended or time.monotonic() > deadline:
                log = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
                raise ControlPlaneError(f"{name} {'ended' if ended else 'was not ready in time'}:\n{log}")
            time.sleep(0.05)


def _switched_on(flag: str, names: Iterable[str]) -> list[str]:
    """The flag with all names set to true; nothing where there are none."""
    settings = ",".join(f"{name}=true" for name in names)
    return [f"--{flag}={settings}"] if settings else []


@contextlib.contextmanager
def running_plane(release: str, folder: Path, **settings: Any) -> Iterator[ControlPlane]:
    """A control plane while the block runs. Without its binary the test is skipped, except in CI.

    :param settings: Further fields of the control plane.
    """
    built, _ = release_flags(release)
    if not BUILDER.is_current(built):
        skip_or_fail(missing_program(built))
    plane = ControlPlane(release, binary(built), folder, **settings)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(folder / "etcd", ignore_errors=True)

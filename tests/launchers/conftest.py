"""A cluster on this machine, and the Secret of its MPI gangs."""

from __future__ import annotations

import base64
import subprocess
from typing import TYPE_CHECKING

import pytest

from gangjobs_sandbox.resources import SECRETS
from tests.provider.conftest import connection, embedded, task

if TYPE_CHECKING:
    from pathlib import Path

    from gangjobs_sandbox.thread import SandboxThread

__all__ = ["connection", "embedded", "task"]

SECRET = "mpi-ssh"


def new_key(folder: Path) -> Path:
    """Create a private SSH key."""
    path = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


@pytest.fixture(scope="session")
def ssh_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("keys"))


def create_secret(cluster: SandboxThread, key: Path) -> None:
    """Create the Secret that the examples name, as `kubectl create secret` does."""
    data = {"ssh-privatekey": base64.b64encode(key.read_bytes()).decode()}
    secret = {"metadata": {"name": SECRET}, "type": "kubernetes.io/ssh-auth", "data": data}
    cluster.call(lambda it: it.registry.create(SECRETS, secret))


@pytest.fixture(scope="session")
def secret(embedded: SandboxThread, ssh_key: Path) -> str:
    """Name of a Secret with a key."""
    create_secret(embedded, ssh_key)
    return SECRET

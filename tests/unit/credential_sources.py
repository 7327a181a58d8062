"""Connections, kubeconfigs, and the files of a pod, from which tests load credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from airflow_provider_gangjobs.cluster.auth.credentials import load_access
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from tests.unit.fault_server import SECRET

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_gangjobs.cluster.auth.credentials import Access


def config_of(**extras: Any) -> ClusterConfig:
    """Return the configuration of an Airflow connection with these extras."""
    return ClusterConfig.from_extras("k8s", extras)


def load(**extras: Any) -> Access:
    """Load the credentials of an Airflow connection with these extras."""
    return load_access(config_of(**extras))


def write_kubeconfig(path: Path, content: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return str(path)


def service_account(directory: Path, *, authority: bytes) -> Path:
    """Write the files that a pod has of its ServiceAccount."""
    directory.mkdir()
    (directory / "token").write_text(f"{SECRET}\n")
    (directory / "ca.crt").write_bytes(authority)
    return directory

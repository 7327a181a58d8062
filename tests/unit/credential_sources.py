"""Connections, kubeconfigs, exec plugins, and the files of a pod, from which tests load credentials."""

from __future__ import annotations

import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from airflow_provider_gangjobs.cluster.auth.credentials import load_access
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from tests.unit.fault_server import SECRET, kubeconfig

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


# -- Programs that print credentials, for tests of exec plugins ------------------------------------------------------

V1 = "client.authentication.k8s.io/v1"
HEAD = f"""
import json, os, sys, time
def answer(**status):
    print(json.dumps({{"apiVersion": "{V1}", "kind": "ExecCredential", "status": status}}))
"""


@dataclass
class Plugin:
    """An exec plugin, which is a program that prints credentials. The program counts its runs in a file.

    The function `answer` of the program prints an `ExecCredential` with the given status.
    """

    directory: Path
    body: str

    def __post_init__(self) -> None:
        self.path.write_text(
            f"#!{sys.executable}\nopen({str(self.runs_path)!r}, 'a').write('run\\n')\n{HEAD}{self.body}\n"
        )
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    @property
    def path(self) -> Path:
        return self.directory / "plugin"

    @property
    def runs_path(self) -> Path:
        return self.directory / "runs"

    @property
    def runs(self) -> int:
        return len(self.runs_path.read_text().splitlines()) if self.runs_path.exists() else 0

    def user(self, **fields: Any) -> dict[str, Any]:
        """Return the user of a kubeconfig whose credentials come from this program."""
        return {"exec": {"apiVersion": V1, "command": str(self.path), "interactiveMode": "Never", **fields}}

    def config(self, *, cluster: dict[str, Any] | None = None, **fields: Any) -> ClusterConfig:
        content = kubeconfig("http://here", user=self.user(**fields), cluster=cluster)
        return ClusterConfig.from_extras("k8s", {"kube_config": content})

    def load(self, **fields: Any) -> Access:
        return load_access(self.config(**fields))

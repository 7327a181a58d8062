"""Reads a cluster for the demo's display: nodes, Jobs, pods and a log line, by plain GETs."""

from __future__ import annotations

import base64
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from gangjobs_sandbox.cli.summary import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

REQUEST_TIMEOUT_S = 5.0
INDEX = "batch.kubernetes.io/job-completion-index"


class Cluster:
    """The cluster of a kubeconfig, as far as its namespace `default` goes."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._client = httpx.Client(
            base_url=cluster["server"],
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cadata=authority),
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
        )
        self._pods: list[dict[str, Any]] = []

    def snapshot(self) -> Snapshot:
        self._pods = self._list("/api/v1/namespaces/default/pods")
        jobs = self._list("/apis/batch/v1/namespaces/default/jobs")
        return Snapshot(self._list("/api/v1/nodes"), jobs, self._pods, datetime.now(UTC))

    def last_line_of_rank_0(self) -> str | None:
        """The last line that the newest pod of rank 0 has printed, if its log can be read."""
        for pod in reversed(self._pods):
            if (pod["metadata"].get("labels") or {}).get(INDEX) == "0" and pod["status"].get("phase") != "Pending":
                log = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/log?tailLines=1"
                try:
                    answer = self._client.get(log)
                except httpx.TransportError:
                    return None
                return answer.text.strip() or None if answer.is_success else None
        return None

    def _list(self, path: str) -> list[dict[str, Any]]:
        """Empty, too, if the cluster is too busy to answer: the next look is half a second away."""
        try:
            items: list[dict[str, Any]] = self._client.get(path).raise_for_status().json()["items"]
        except httpx.TransportError:
            return []
        return items

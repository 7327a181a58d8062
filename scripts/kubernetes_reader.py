"""Read nodes, Jobs, pods and a log line of the embedded cluster of a script, with plain GET requests."""

from __future__ import annotations

import base64
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from airflow_provider_gangjobs.kube.well_known import LABEL_GANG
from gangjobs_sandbox.cli.summary import Snapshot, job_phase

if TYPE_CHECKING:
    from pathlib import Path

REQUEST_TIMEOUT_S = 5.0
LIVE_PHASES = {"suspended", "assembling", "running"}
LABEL_INDEX = "batch.kubernetes.io/job-completion-index"


class Cluster:
    """The namespace `default` and the nodes of a kubeconfig's cluster."""

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

    def close(self) -> None:
        self._client.close()

    def snapshot(self) -> Snapshot:
        self._pods = self._list("/api/v1/namespaces/default/pods")
        jobs = self._list("/apis/batch/v1/namespaces/default/jobs")
        return Snapshot(self._list("/api/v1/nodes"), jobs, self._pods, datetime.now(UTC))

    def live_gangs(self) -> list[str]:
        """Return the names of the gangs that have not ended, of all namespaces. A gang with roles has several Jobs.

        Raises:
            httpx.HTTPError: the cluster does not answer, or refuses the request.
        """
        response = self._client.get("/apis/batch/v1/jobs", params={"labelSelector": LABEL_GANG})
        jobs = [job for job in response.raise_for_status().json()["items"] if job_phase(job) in LIVE_PHASES]
        return sorted({f"{job['metadata']['namespace']}/{job['metadata']['labels'][LABEL_GANG]}" for job in jobs})

    def last_line_of_rank_0(self) -> str | None:
        """Return the last log line of the newest pod of rank 0; `None` if the log cannot be read."""
        for pod in reversed(self._pods):
            if (pod["metadata"].get("labels") or {}).get(LABEL_INDEX) == "0" and pod["status"].get(
                "phase"
            ) != "Pending":
                log = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/log?tailLines=1"
                try:
                    response = self._client.get(log)
                except httpx.TransportError:
                    return None
                # A line that is written during the response is in the response, too.
                lines = response.text.split("\n") if response.is_success else []
                return next((line.strip() for line in reversed(lines) if line.strip()), None)
        return None

    def _list(self, path: str) -> list[dict[str, Any]]:
        """Return the items; an empty list if the cluster does not answer. The caller reads again soon."""
        try:
            items: list[dict[str, Any]] = self._client.get(path).raise_for_status().json()["items"]
        except httpx.TransportError:
            return []
        return items

"""A client of the fault injection of the cluster. A fault can delay a request or its response, and reports its hits."""

from __future__ import annotations

import base64
import ssl
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from tests.airflow.polling import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAULTS = "/sandbox/faults"
FOREVER_S = 3600.0


@dataclass(frozen=True)
class FaultClient:
    """Arms faults. Each fault applies to the first request that it matches."""

    http: httpx.Client

    @classmethod
    @contextmanager
    def of(cls, kubeconfig: Path) -> Iterator[FaultClient]:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        token = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        verify = ssl.create_default_context(cadata=authority)
        with httpx.Client(base_url=cluster["server"], headers=token, verify=verify, trust_env=False) as http:
            yield cls(http)

    def hold_before(self, method: str, path: str, **fault: Any) -> int:
        """Let the next such request wait, and never execute it. Return the number of the fault."""
        return self.arm(kind="delay", delay_s=FOREVER_S, method=method, path=path, **fault)

    def hold_after(self, method: str, path: str) -> int:
        """Execute the next such request, and never send its response. Return the number of the fault."""
        return self.arm(kind="half-open", method=method, path=path)

    def note(self, *, query: str) -> int:
        """Record all such requests without any fault. Return the number by which `hits` finds them."""
        return self.arm(kind="delay", query=query, times=None)

    def arm(self, **fault: Any) -> int:
        return int(self.http.post(FAULTS, json=fault).raise_for_status().json()["id"])

    def hits(self, number: int) -> list[dict[str, Any]]:
        """Return the requests that the fault has hit."""
        history = self.http.get(FAULTS).raise_for_status().json()["history"]
        return [hit for hit in history if hit["fault"] == number]

    def wait_for_hit(self, number: int) -> None:
        wait_for("the request that is waited for", lambda: self.hits(number))

    def disarm(self) -> None:
        self.http.delete(FAULTS).raise_for_status()

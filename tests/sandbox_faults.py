"""Faults of a sandbox that runs in another thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from gangjobs_sandbox.thread import SandboxThread


def arm(sandbox: SandboxThread, kind: str = "status", **conditions: Any) -> None:
    """Let requests fail from now on, with the fields of `gangjobs_sandbox.api.faults.Fault`."""
    _faults(sandbox, "POST", {"kind": kind, **conditions})


def disarm(sandbox: SandboxThread) -> None:
    """Remove all faults."""
    _faults(sandbox, "DELETE")


def _faults(sandbox: SandboxThread, method: str, body: dict[str, Any] | None = None) -> None:
    headers = {"Authorization": f"Bearer {sandbox.token}"}
    httpx.request(method, f"{sandbox.url}/sandbox/faults", json=body, headers=headers, verify=False).raise_for_status()

"""Detects emptyDir volumes that exceed their size limits. A kubelet evicts such pods.

The rule and the message are those of `emptyDirLimitEviction` (pkg/kubelet/eviction/eviction_manager.go).
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangjobs_sandbox.node.pod_folder import PodFolder

__all__ = ["GRACE_EVICTED_S", "wait_for_excess"]

GRACE_EVICTED_S = 1.0
_BLOCK_BYTES = 512
"""The unit of `st_blocks`."""


async def wait_for_excess(spec: Mapping[str, Any], folder: PodFolder, *, interval_s: float) -> str:
    """Wait until a volume of the pod exceeds its limit. Returns the message of the eviction."""
    limits = _limits(spec)
    while limits:
        await asyncio.sleep(interval_s)
        for name, limit in limits.items():
            if await asyncio.to_thread(_used_bytes, folder.volume(name)) > quantity.parse(limit):
                return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    return await asyncio.Future()


def _limits(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the limit of each volume that has one. The kernel enforces the limits of volumes in memory."""
    sources = {volume["name"]: volume.get("emptyDir") or {} for volume in spec.get("volumes") or ()}
    return {
        name: str(source["sizeLimit"])
        for name, source in sources.items()
        if source.get("sizeLimit") and source.get("medium") != "Memory" and quantity.parse(source["sizeLimit"]) > 0
    }


def _used_bytes(path: str) -> int:
    """Return the disk space that a folder takes. Files may disappear meanwhile."""
    used = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                used += os.lstat(os.path.join(folder, name)).st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                continue
    return used

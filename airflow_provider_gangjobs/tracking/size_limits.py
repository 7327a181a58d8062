"""From which sizes on a follower treats a gang as large, and in which parts it processes the gang."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SizeLimits:
    """The limits of one follower, in pods."""

    reindexed_max: int = 64
    """The index of a larger gang is kept. Ten thousand small gangs would need too much memory for their indexes."""
    batch_pods: int = 250
    """How many pods are processed before other tasks of the loop may run: some 5 ms of work."""
    listed_at_once_max: int = 500
    """One page. A larger gang (a list of 100,000 pods is 600 MB) is listed only if waiting does not help."""
    lag_per_pod_s: float = 1e-3
    """How long to wait for a watch of pods that is behind the watch of Jobs, in seconds for each pod."""


DEFAULT_LIMITS = SizeLimits()

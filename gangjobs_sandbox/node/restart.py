"""Decides whether a container runs again, and after which delay.

The rules are those of the kubelet. The first restart is immediate. Later restarts wait for 10 s, doubled each time up
to five minutes. The delay is reset after a run of ten minutes.
"""

from __future__ import annotations

from gangjobs_sandbox.node.pod_state import Kind

__all__ = ["Backoff", "is_restarted"]

_DELAY_MAX_FACTOR = 30
"""A maximum of five minutes with the default first delay of ten seconds."""
_RESET_FACTOR = 60
"""Ten minutes with the default first delay."""


def is_restarted(kind: Kind, restart_policy: str, exit_code: int) -> bool:
    """Return whether a container of this kind restarts after this exit code."""
    if kind is Kind.SIDECAR:
        return True
    if kind is Kind.INIT:
        return exit_code != 0 and restart_policy != "Never"
    return {"Always": True, "OnFailure": exit_code != 0, "Never": False}[restart_policy]


class Backoff:
    """The delays before the restarts of one container, in seconds."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._next_s = 0.0

    def delay_s(self, *, ran_s: float) -> float:
        """Return the delay after a run of `ran_s` seconds."""
        if ran_s >= self._first_s * _RESET_FACTOR:
            self._next_s = 0.0
        delay, doubled = self._next_s, self._next_s * 2
        self._next_s = min(doubled or self._first_s, self._first_s * _DELAY_MAX_FACTOR)
        return delay

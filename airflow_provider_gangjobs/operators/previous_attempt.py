"""What a task does while pods of an earlier attempt still run: it waits, without a worker if possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.identity import GangRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.exceptions import DeadlineExceeded, PreviousAttemptRunning

WORKER_WAIT_S: Final = 10.0
"""For how long a worker waits before it defers the task: about as long as a deferral and a resumption take."""


def ref_of(previous: PreviousAttemptRunning) -> GangRef:
    """Return the gang whose pods run."""
    namespace, _, name = previous.ref.partition("/")
    return GangRef(namespace, name, previous.uid)


def deadline_error(event: Mapping[str, Any]) -> DeadlineExceeded:
    """Return the error of a task whose time limit has passed while it waited for the pods of an earlier attempt."""
    from airflow_provider_gangjobs.exceptions import DeadlineExceeded

    limited_by, pods = str(event.get("reason", "")), event.get("pods")
    left = "it is not known whether its pods have ended" if pods is None else f"{pods} of its pods had not ended"
    return DeadlineExceeded(
        ref=f"of the previous attempt ({event.get('gang')})",
        phase="still ending",
        seconds=None,
        waiting_for=f"After {event.get('waited_s')} s, {left}",
        advice=f"Shorten termination_grace, or raise {limited_by}",
        limited_by=limited_by,
    )


__all__ = ["WORKER_WAIT_S", "deadline_error", "ref_of"]

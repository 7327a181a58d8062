"""The end of a task whose gang runs on: `wait_until="submitted"` and `wait_until="running"`.

The Job says from its creation that the gang outlives its task. So from the moment at which Airflow has stored the
success of the task, nothing ends the gang on behalf of the task, even if the process of the task dies at once. A
success callback then gives up the claim, after which the task instance cannot end the gang in any state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.airflow_api.task_state import is_success, read_state
from airflow_provider_gangjobs.exceptions import GangJobError

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent


class HandOver:
    """Gives up the claim of a gang, once Airflow has stored the success of its task."""

    def __init__(self, gangs: TaskGangs, ref: GangRef, log: Logger) -> None:
        self.gangs = gangs
        self.ref = ref
        self.log = log

    def deliver_accepted(self, ti: Any) -> None:
        """Give up the claim if Airflow's API server has stored the success of the task. A fault is logged.

        :param ti: The task instance of the context.
        """
        from airflow_provider_gangjobs.cluster.errors import ClusterError

        state = read_state(ti, ti.get_task_states, self.log)
        if not is_success(state):
            message = "Gang %s is kept for the next try, because the state of the task at Airflow's API server is %s"
            self.log.warning(message, self.ref, state)
            return
        ref, claim = self.ref, self.gangs.claim
        try:
            handed_over = self.gangs.call(lambda service: service.hand_over(ref, claim))
        except (ClusterError, GangJobError) as error:
            self.log.warning("The claim of gang %s could not be given up: %s", ref, error)
            return
        self.log.info("Gang %s %s", ref, "runs on after its task" if handed_over else "is gone, or has another owner")


def submitted_event(ref: GangRef) -> GangEvent:
    """Return the event of a gang whose task ends when the gang is submitted."""
    from airflow_provider_gangjobs.gang.outcome.event import Status, build_event
    from airflow_provider_gangjobs.gang.state.phase import Phase

    return build_event(ref, Status.RUNNING, Phase.SUBMITTED)


def is_handed_over(event: GangEvent) -> bool:
    """Return whether the gang has reached the state at which its task ends with success."""
    from airflow_provider_gangjobs.gang.outcome.event import Status

    return event.status in (Status.RUNNING, Status.SUCCEEDED)


__all__ = ["HandOver", "is_handed_over", "submitted_event"]

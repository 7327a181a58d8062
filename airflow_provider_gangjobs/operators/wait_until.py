"""The end of a task whose gang runs on: `wait_until="submitted"` and `wait_until="running"`.

The Job says from its creation that the gang outlives its task. So from the moment at which Airflow has stored the
success of the task, nothing ends the gang on behalf of the task, even if the process of the task dies at once. A
success callback then gives up the claim, after which the task instance cannot end the gang in any state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_gangjobs.exceptions import GangJobError, Problem
from airflow_provider_gangjobs.gang.spec import WaitUntil
from airflow_provider_gangjobs.hooks.task_state import is_success, read_state

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.operators.task_gangs import TaskGangs


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


class _Limits(Protocol):
    """The limits among the parameters of a task, in seconds."""

    max_disruptions: int
    queue_timeout_s: Any
    assemble_timeout_s: Any
    run_timeout_s: Any


def limit_problems(task: _Limits, wait_until: WaitUntil | str) -> tuple[Problem, ...]:
    """Return the problems of limits that nobody enforces after the task has ended.

    The API server enforces the sum of `assemble_timeout` and `run_timeout` (`gang.render.time_limit`).
    """
    if wait_until not in (WaitUntil.SUBMITTED, WaitUntil.RUNNING):
        return ()
    what = f'is not enforced after the end of the task with wait_until="{WaitUntil(wait_until)}"'
    both = "Give both assemble_timeout and run_timeout, which the API server enforces together"
    is_submitted = wait_until == WaitUntil.SUBMITTED
    has_assemble, has_run = task.assemble_timeout_s is not None, task.run_timeout_s is not None
    checks = (
        ("max_disruptions", task.max_disruptions, "Let a task that waits for the end submit further attempts"),
        ("queue_timeout", is_submitted and task.queue_timeout_s is not None, 'Use wait_until="running"'),
        ("assemble_timeout", is_submitted and has_assemble and not has_run, both),
        ("run_timeout", has_run and not has_assemble, both),
    )
    return tuple(Problem(name, what, remedy) for name, is_wrong, remedy in checks if is_wrong)


__all__ = ["HandOver", "is_handed_over", "limit_problems", "submitted_event"]

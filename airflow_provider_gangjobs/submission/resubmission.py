"""Submit a gang again while a try of a task lasts, after an attempt was lost to a disruption of the cluster.

The rule is `disruption_of`. The functions that submit and wait are given, so that a worker may wait for the gang itself
or leave the wait to a triggerer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.gang.outcome.disruption import disruption_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.submission.adopt_or_submit import LostAttempt
    from airflow_provider_gangjobs.submission.record import Submission


def resubmit_while_disrupted(
    event: GangEvent,
    *,
    max_disruptions: int,
    submit_next: Callable[[GangEvent], Submission],
    wait: Callable[[Submission], GangEvent],
) -> GangEvent:
    """Submit further attempts after the one that ended with `event`, until an attempt is not lost or none is allowed.

    :param max_disruptions: How many attempts in a row may be lost and replaced.
    :param submit_next: Submits the attempt that follows the one that ended with this event.
    :param wait: Waits for the end of an attempt and returns its event. May raise instead, to wait elsewhere.
    :return: The event of the last attempt.
    """
    while (disruption := disruption_of(event, allowed=max_disruptions)) is not None and disruption.is_allowed:
        event = wait(submit_next(event))
    return event


def lost_attempt(event: GangEvent, *, max_disruptions: int) -> LostAttempt:
    """Return what the attempt that follows a failed one has to know: its number and how many were lost in a row."""
    from airflow_provider_gangjobs.submission.adopt_or_submit import LostAttempt

    disruption = disruption_of(event, allowed=max_disruptions)
    return LostAttempt(event.attempt or 0, disruption.carried_over if disruption else 0)


__all__ = ["lost_attempt", "resubmit_while_disrupted"]

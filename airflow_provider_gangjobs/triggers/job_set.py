"""The trigger of JobSetSensor: waits for the end of a JobSet that belongs to somebody else."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_gangjobs.airflow_api.error_log import log_failure
from airflow_provider_gangjobs.airflow_api.masking import mask_event
from airflow_provider_gangjobs.airflow_api.task_state import with_task_instance
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import (
    CONNECTION_MAX_AGE_S,
    CONNECTION_READ_FOR_S,
    shared_service,
)
from airflow_provider_gangjobs.attempt.triggerer.log_streaming import sleep_until_resumable
from airflow_provider_gangjobs.attempt.triggerer.metrics import report_metrics
from airflow_provider_gangjobs.cluster.loop_local import CLIENT, import_in_thread
from airflow_provider_gangjobs.exceptions import GangJobError, JobSetUnavailable
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, Status, build_event
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow.sdk.types import Logger

NOT_SERVED: Final = "JobSetsNotServed"
"""Reason of the event if the cluster serves no JobSets that the provider knows."""


@dataclass(frozen=True, kw_only=True)
class JobSetArgs:
    """Arguments of a wait for a JobSet, as JSON values. No secret may be among them.

    The names and types of the fields are a contract: after an upgrade, Airflow creates the triggers of tasks that are
    already deferred with the arguments that an earlier release stored. A new field needs a default.

    :param kubernetes_conn_id: Id of an Airflow connection of type `kubernetes`.
    :param namespace: Namespace of the JobSet.
    :param name: Name of the JobSet.
    :param uid: UID of the JobSet; empty if it did not exist when the wait began.
    :param must_exist: Whether the connection must exist in Airflow.
    """

    kubernetes_conn_id: str
    namespace: str
    name: str
    uid: str = ""
    must_exist: bool = False

    @property
    def ref(self) -> GangRef:
        """The JobSet to wait for."""
        return GangRef(self.namespace, self.name, self.uid)


class JobSetTrigger(BaseTrigger):
    """Wait for the end of a JobSet and yield one event.

    The trigger has no `on_kill`: the JobSet belongs to somebody else. The trigger stores no state: after a restart of
    the triggerer, the trigger reads the cluster again.

    :param args: The fields of `JobSetArgs`, as keyword arguments.
    """

    def __init__(self, **args: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.args = JobSetArgs(**args)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments with which Airflow creates this trigger again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", asdict(self.args)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the JobSet, and yield one event."""
        await import_in_thread(*CLIENT, "airflow_provider_gangjobs.tracking.watch.awaited")
        started = asyncio.get_running_loop().time()
        with report_metrics():
            event = await wait_for_job_set(self.args, self.log)
        if self.task_instance is not None:  # with `dag.test()`, no worker has to end first
            await sleep_until_resumable(started)
        yield TriggerEvent(with_task_instance(mask_event(event).to_payload(), self.task_instance))  # type: ignore[no-untyped-call]


async def wait_for_job_set(args: JobSetArgs, log: Logger) -> GangEvent:
    """Wait until the JobSet has ended, and return the event. The function raises only when it is cancelled.

    The status of the event is `error` if the JobSet cannot be read, which says nothing about the JobSet.
    """
    try:
        return await _wait(args, log)
    except JobSetUnavailable as error:
        return _error_event(args, "Refused" if error.is_served else NOT_SERVED, error.cause)
    except Exception as error:  # a secrets backend may raise anything
        log_failure(log, error, f"JobSet {args.ref} cannot be watched in this process")
        known = isinstance(error, GangJobError)
        return _error_event(
            args, type(error).__name__, str(error) if known else f"{type(error).__name__}; the log has the details"
        )


async def _wait(args: JobSetArgs, log: Logger) -> GangEvent:
    from airflow_provider_gangjobs.tracking.watch.awaited import follow_job_set

    hook = GangJobHook(args.kubernetes_conn_id, must_exist=args.must_exist)
    config = await hook.aconfig(retry_for_s=CONNECTION_READ_FOR_S, max_age_s=CONNECTION_MAX_AGE_S)
    async with shared_service(config) as service:
        return await follow_job_set(service.client, args.ref, lambda line: log.info("%s", line))


def _error_event(args: JobSetArgs, reason: str, message: str) -> GangEvent:
    return build_event(args.ref, Status.ERROR, Phase.SUBMITTED, reason=reason, message=message)


__all__ = ["NOT_SERVED", "JobSetArgs", "JobSetTrigger", "wait_for_job_set"]

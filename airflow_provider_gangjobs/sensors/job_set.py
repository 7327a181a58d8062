"""JobSetSensor: a task that waits for a JobSet that another program has created.

Importing this module imports no client library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from msgspec.structs import asdict as struct_to_dict

from airflow_provider_gangjobs.airflow_api.configuration import default_deferrable
from airflow_provider_gangjobs.airflow_api.exceptions import AirflowSkipException
from airflow_provider_gangjobs.airflow_api.task_log import ErrorRules, skip_with_never_fail
from airflow_provider_gangjobs.airflow_api.task_state import is_of_earlier_try
from airflow_provider_gangjobs.attempt.deferral import sensor_timeout
from airflow_provider_gangjobs.exceptions import (
    GangJobError,
    InvalidGangSpec,
    JobSetDeleted,
    JobSetFailed,
    JobSetUnavailable,
    Problem,
)
from airflow_provider_gangjobs.kube.names import problem_with_dns_label, problem_with_dns_subdomain
from airflow_provider_gangjobs.kube.text import to_sentence
from airflow_provider_gangjobs.parameters.checks import refuse, refuse_triggerer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

UNTIL: Final = ("succeeded", "ended")


class JobSetSensor(ErrorRules, BaseSensorOperator):
    """Wait for the end of a JobSet (`jobset.x-k8s.io`) that another program has created.

    The sensor changes nothing in the cluster: it neither suspends nor deletes the JobSet. The JobSet may be created
    after the sensor has started. As soon as the sensor has seen a JobSet of the name, it waits for this JobSet, and not
    for another one that gets the name later.

    If a request fails, the sensor waits and looks again. If the cluster serves no JobSets, or refuses to show them, the
    sensor fails with `JobSetUnavailable`, which says nothing about the JobSet.

    :param job_set: Name of the JobSet, or a mapping with `name` and, optionally, `namespace` and `uid`. With a `uid`,
        the sensor does not wait for a JobSet that does not exist. (templated)
    :param namespace: Namespace of the JobSet. Defaults to the namespace of the mapping or of the connection.
        (templated)
    :param until: State that the JobSet reaches: `succeeded` (the default), or `ended`, with or without success.
    :param kubernetes_conn_id: Id of an Airflow connection of type `kubernetes`. Defaults to `kubernetes_default`.
        (templated)
    :param deferrable: Whether the sensor waits in the triggerer, on one watch of JobSets for each namespace, which all
        triggers share. Defaults to Airflow's `[operators] default_deferrable` if that option was set, else to true.
        Otherwise the sensor looks every `poke_interval` seconds, with one request.
    :param kwargs: Parameters of `BaseSensorOperator`. `timeout` limits the whole wait, also while the sensor is
        deferred. With `soft_fail`, the sensor is skipped if the JobSet fails or the time is over.

    The sensor returns `namespace`, `name`, `uid`, and `status` (`succeeded`, `failed`, `deleted` or `replaced`) of the
    JobSet.
    """

    template_fields: Sequence[str] = ("job_set", "namespace", "kubernetes_conn_id")
    ui_color = "#d7e6f4"

    def __init__(
        self,
        *,
        job_set: str | Mapping[str, Any],
        namespace: str | None = None,
        until: str = "succeeded",
        kubernetes_conn_id: str = "kubernetes_default",
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        refuse_triggerer(kwargs)
        super().__init__(**kwargs)
        self.job_set = job_set
        self.namespace = namespace
        self.until = until
        self.kubernetes_conn_id = kubernetes_conn_id
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        if until not in UNTIL:
            raise InvalidGangSpec((Problem("until", f"is {until!r}", f"Give one of {', '.join(UNTIL)}"),))
        self._seen: GangRef | None = None
        """The JobSet that a poke of this process has found."""

    def execute(self, context: Context) -> Any:
        """Look once, and then wait in the triggerer, or look every `poke_interval` seconds."""
        if self.deferrable:
            first = self.poke(context)
            if first.is_done:
                return first.xcom_value
            self._defer()
        return super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the sensor."""
        with skip_with_never_fail(self):
            return super().resume_execution(next_method, next_kwargs, context)

    def _defer(self) -> None:
        from airflow_provider_gangjobs.triggers.job_set import JobSetTrigger

        limit = sensor_timeout(self.timeout, self.execution_timeout)
        hook, _, ref = self._target()
        trigger = JobSetTrigger(
            kubernetes_conn_id=self.kubernetes_conn_id, must_exist=bool(hook.exists), **struct_to_dict(ref)
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=limit)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the value of the sensor, or raise the error of the JobSet.

        A try that Airflow resumes with the event of an earlier try begins with `execute` (`airflow_api.task_state`).
        """
        if is_of_earlier_try(event, context["ti"]):
            return self.execute(context)
        from airflow_provider_gangjobs.gang.outcome.event import GangEvent

        return self._finish(GangEvent.from_payload(event))

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the JobSet once. A failed request is no answer, and the sensor looks again later.

        Raises:
            JobSetFailed, JobSetDeleted: the JobSet has ended without success.
            JobSetUnavailable: the cluster serves no JobSets, or refuses the request.
        """
        from airflow_provider_gangjobs.cluster.errors import ClusterError
        from airflow_provider_gangjobs.tracking.awaited_watch import look_at_job_set

        hook, config, ref = self._target()
        try:
            found, event, line = hook.call(lambda service: look_at_job_set(service.client, ref), config=config)
        except ClusterError as error:
            if not error.transient:
                raise JobSetUnavailable(str(ref), str(error)) from error
            self.log.warning("JobSet %s could not be read: %s", ref, error)
            return PokeReturnValue(False)
        if found.uid:
            self._seen = found
        if event is None:
            self.log.info("%s", line)
            return PokeReturnValue(False)
        return PokeReturnValue(True, self._finish(event))

    def _finish(self, event: GangEvent) -> dict[str, str]:
        from airflow_provider_gangjobs.gang.outcome.event import Status

        has_ended = event.status is not Status.ERROR
        if event.status is Status.SUCCEEDED or (has_ended and self.until == "ended"):
            return {**struct_to_dict(event.ref), "status": event.status.value}
        error = _error_of(event)
        if self.soft_fail and has_ended:
            self.log.warning("The sensor is skipped, because soft_fail is set: %s", error)
            raise AirflowSkipException("The JobSet has not succeeded, and soft_fail is set") from error
        raise error

    def _target(self) -> tuple[GangJobHook, ClusterConfig, GangRef]:
        """Return the cluster, and the JobSet that the rendered parameters name or that a poke has found.

        Raises:
            InvalidGangSpec: the parameter names no JobSet.
        """
        from airflow_provider_gangjobs.gang.identity import GangRef
        from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
        from airflow_provider_gangjobs.service.gangs import DEFAULT_NAMESPACE

        given: Any = {"name": self.job_set} if isinstance(self.job_set, str) else self.job_set
        name: Any = given.get("name") if isinstance(given, Mapping) else given
        remedy = "Give the name of a JobSet, or a mapping with namespace, name and uid"
        refuse(Problem("job_set", wrong, remedy) for wrong in [problem_with_dns_subdomain(name)] if wrong)
        hook = GangJobHook(self.kubernetes_conn_id)
        config = hook.config()
        namespace = str(self.namespace or given.get("namespace") or config.namespace or DEFAULT_NAMESPACE)
        remedy = "Give the name of a namespace"
        refuse(Problem("namespace", wrong, remedy) for wrong in [problem_with_dns_label(namespace)] if wrong)
        return hook, config, self._seen or GangRef(namespace, name, str(given.get("uid") or ""))


def _error_of(event: GangEvent) -> GangJobError:
    from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import NOT_SERVED
    from airflow_provider_gangjobs.gang.outcome.event import Status

    ref = str(event.ref)
    if event.status is Status.ERROR:
        return JobSetUnavailable(ref, event.message, is_served=event.reason != NOT_SERVED)
    if event.status is Status.FAILED:
        return JobSetFailed(ref, event.reason, " ".join(filter(None, (to_sentence(event.message), event.remedy))))
    return JobSetDeleted(ref, event.other_uid)


__all__ = ["JobSetSensor"]

"""GangJobDeleteOperator: deletes gangs, and waits until their pods are gone.

Importing this module imports no client library.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem, SubmissionFailed
from airflow_provider_gangjobs.exceptions.base import DELETION
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.spec import is_whole_number
from airflow_provider_gangjobs.kube.text import pluralize
from airflow_provider_gangjobs.parameters import checks, target_gangs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_provider_gangjobs.gang.awaited import GangSelection
    from airflow_provider_gangjobs.service import GangService

PODS_GONE_WITHIN_S: Final = 600.0
PAUSE_S: Final = 2.0


class GangJobDeleteOperator(target_gangs.GangTargets):
    """Delete gangs, whoever has submitted them: their Jobs, with the recorded outcomes, and their pods.

    Exactly one of `gangs`, `submission_ids` and `external_task_id` says which gangs. All attempts of a task or of a
    submission id are deleted. The task succeeds when no pod of these gangs runs any more, and returns the list of the
    references of the gangs that it has deleted.

    A task that waits for the end of such a gang fails with `GangDeleted`, and is not retried. Safe to repeat: a retry
    continues where the try before it has stopped.

    :param gangs: Name of a Job, a reference with `namespace`, `name` and `uid` (such as the XCom `gang` of
        `GangJobOperator`, or its result with `wait_until="submitted"`), or a list of them. A gang that is given with
        its `uid` is not mistaken for a later gang of the same name. (templated)
    :param submission_ids: Id of a submission, as `GangJobHook.submit` takes it, or a list of ids. (templated)
    :param external_task_id: Id of the task whose gangs are deleted. (templated)
    :param external_dag_id: Id of the DAG of this task. Defaults to the DAG of the operator. (templated)
    :param external_run_id: Id of the DAG run of this task. Defaults to the run of the operator. (templated)
    :param external_map_index: Map index of this task, or a list of map indexes. Defaults to an unmapped task.
        (templated)
    :param namespace: Namespace of the gangs. Defaults to the namespace of the references or of the connection.
        (templated)
    :param ignore_missing: Whether the task succeeds if a gang does not exist. Defaults to false. A retry never fails
        because of a missing gang, which the try before it may have deleted.
    :param pods_gone_within: How long the task waits for the end of the pods: a `timedelta`, or seconds. `None` means no
        limit. Defaults to ten minutes.
    :param kubernetes_conn_id: Id of an Airflow connection of type `kubernetes`. Defaults to `kubernetes_default`.
        (templated)
    :param kwargs: Parameters of `BaseOperator`.
    """

    template_fields: Sequence[str] = (
        *target_gangs.GangTargets.template_fields,
        "external_task_id",
        "external_dag_id",
        "external_run_id",
        "external_map_index",
    )

    def __init__(
        self,
        *,
        external_task_id: str | None = None,
        external_dag_id: str | None = None,
        external_run_id: str | None = None,
        external_map_index: int | str | Iterable[int] | None = None,
        ignore_missing: bool = False,
        pods_gone_within: timedelta | float | None = PODS_GONE_WITHIN_S,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.external_task_id = external_task_id
        self.external_dag_id = external_dag_id
        self.external_run_id = external_run_id
        self.external_map_index = external_map_index
        self.ignore_missing = ignore_missing
        self.pods_gone_within_s = checks.to_seconds(pods_gone_within)
        kinds = ("gangs", "submission_ids", "external_task_id")
        target_gangs.require_one_kind(**{name: getattr(self, name) for name in kinds})
        checks.refuse(self._ignored_parameters())
        target_gangs.require_readable(self)
        if not checks.is_templated(external_map_index):
            self._map_indexes()
        checks.refuse(checks.flag_problems("ignore_missing", ignore_missing))
        checks.refuse(checks.duration_problems("pods_gone_within", self.pods_gone_within_s))

    def _ignored_parameters(self) -> Iterator[Problem]:
        """Yield a problem for each parameter that describes a task, if the gangs are not those of a task."""
        what = "is given without external_task_id, and the other parameters say which gangs"
        for name in ("external_dag_id", "external_run_id", "external_map_index"):
            if self.external_task_id is None and getattr(self, name) is not None:
                yield Problem(name, what, "Leave it out, or give external_task_id and nothing else that selects gangs")

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Delete the gangs, and return their references when their pods have ended.

        Raises:
            AirflowFailException: a gang does not exist, or a template has rendered to no gang.
            SubmissionFailed: pods of the gangs still run after `pods_gone_within`.
            ClusterError: the API server refuses a request.
        """
        from airflow_provider_gangjobs.hooks.gang_job import GangJobHook

        hook = GangJobHook(self.kubernetes_conn_id)
        config = hook.config()
        ti = context["ti"]
        selection = target_gangs.read_selection(self, default_namespace=config.namespace, tasks=self._tasks(ti))
        may_be_missing = self.ignore_missing or ti.try_number > 1
        deleted_by = f"task {ti.dag_id}.{ti.task_id} of run {ti.run_id}"

        async def act(service: GangService) -> list[GangRef]:
            return await self._delete(service, selection, deleted_by, may_be_missing=may_be_missing)

        return [asdict(ref) for ref in hook.call(act, config=config)]

    def _tasks(self, ti: Any) -> list[TaskKey]:
        """Return the task instances that `external_task_id` and the related parameters describe, by map index."""
        from airflow_provider_gangjobs.airflow_api.configuration import installation_id

        if self.external_task_id is None:
            return []
        for name in ("external_task_id", "external_dag_id", "external_run_id"):
            if (value := getattr(self, name)) is not None:
                _require_id(name, value)
        dag_id, run_id = self.external_dag_id or ti.dag_id, self.external_run_id or ti.run_id
        installation, task_id = installation_id(), self.external_task_id
        return [TaskKey(dag_id, run_id, task_id, number, installation) for number in self._map_indexes()]

    def _map_indexes(self) -> list[int]:
        indexes = [-1] if self.external_map_index is None else target_gangs.as_list(self.external_map_index)
        numbers = [checks.parse_whole_number(index) for index in indexes]
        if not all(is_whole_number(number, -1) for number in numbers):
            what = f"is {self.external_map_index!r:.80}, not a whole number of -1 or more"
            remedy = (
                "Give a number or a list of numbers. A template gives text; "
                "for a list, set render_template_as_native_obj"
            )
            raise InvalidGangSpec((Problem("external_map_index", what, remedy),))
        return numbers

    async def _delete(
        self, service: GangService, selection: GangSelection, deleted_by: str, *, may_be_missing: bool
    ) -> list[GangRef]:
        gangs = await service.list_gangs(selection)
        missing = set(selection.names or ()) - {ref.name for ref in gangs}
        if (missing or not gangs) and not may_be_missing:
            what = f"Gang {', '.join(sorted(missing))} does not exist" if missing else "No such gang exists"
            raise AirflowFailException(
                f"{what} in namespace {selection.namespace}. Set ignore_missing=True if this is no error."
            )
        for ref in gangs:
            await service.delete(ref, deleted_by=deleted_by)
            self.log.info("Gang %s is deleted", ref)
        # A try before this one may have deleted a Job whose pods still run.
        gone = [GangRef(selection.namespace, name, uid) for name, uid in (selection.names or {}).items() if uid]
        await self._wait_for_pods(service, [*{*gangs, *gone}])
        return gangs

    async def _wait_for_pods(self, service: GangService, gangs: list[GangRef]) -> None:
        from airflow_provider_gangjobs.ending.release import count_running

        client, clock = service.client, service.client.clock
        end = math.inf if self.pods_gone_within_s is None else clock.monotonic() + self.pods_gone_within_s
        while running := sum([await count_running(client, ref) for ref in gangs]):
            if clock.monotonic() >= end:
                runs = "runs" if running == 1 else "run"
                cause = f"{pluralize(running, 'pod')} still {runs} after {self.pods_gone_within_s:g} s"
                names = ", ".join(map(str, gangs))
                step = "wait for the end of the pods"
                advice = "Check the nodes of the pods, then run the task again"
                raise SubmissionFailed(names, step, cause, advice=advice, operation=DELETION)
            self.log.info("Pods of the deleted gangs that still run: %d", running)
            await clock.sleep(PAUSE_S)


def _require_id(name: str, value: Any) -> None:
    """Refuse what a template has rendered to another value than an id, or to the text of such a value.

    Raises:
        InvalidGangSpec: the value is no id.
    """
    remedy = "Give the id itself"
    if not isinstance(value, str):
        raise InvalidGangSpec((Problem(name, f"is {value!r:.80}", remedy),))
    target_gangs.refuse_text_of_value(name, value, remedy)


__all__ = ["GangJobDeleteOperator"]

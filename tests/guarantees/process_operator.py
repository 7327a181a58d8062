"""The operator and the trigger of a task, whose requests a `Process` sends, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG
from msgspec.structs import asdict
from sqlalchemy.util import await_only, greenlet_spawn

from airflow_provider_gangjobs.airflow_api.task_state import is_running_try
from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.task_gangs import StartGuard, TaskGangs
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from airflow_provider_gangjobs.gang.identity import TaskKey
    from tests.guarantees.processes import Process


class _ProcessGangs(TaskGangs, kw_only=True):
    """The gangs of a try, whose requests run on the running event loop, in the process of the worker."""

    process: Process

    @contextmanager
    def session(self) -> Iterator[Any]:
        yield SimpleNamespace(call=self._call)

    def _call(self, action: Callable[[GangService], Awaitable[Any]]) -> Any:
        self._client = self.process.client()
        return await_only(action(GangService(self._client)))  # type: ignore[arg-type]


COMMON: Final[Mapping[str, Any]] = {
    "image": "i",
    "workers": 2,
    "resources": {"cpu": "1"},
    "deferrable": True,
    "kubernetes_conn_id": "virtual",
    "end_from_trigger": False,
}
"""The parameters of each operator, unless a test gives others."""


class ProcessOperator(GangJobOperator):
    """An operator whose requests the process of a worker sends."""

    process: Process
    report_key: Callable[[TaskKey], None]

    @classmethod
    def make(
        cls, process: Process, dag_id: str, task_id: str, report_key: Callable[[TaskKey], None], **parameters: Any
    ) -> ProcessOperator:
        """Return a new operator, as each process creates it from the DAG file.

        :param report_key: Called with the key of the task when the operator has computed it.
        """
        with DAG(dag_id, schedule=None):
            operator = cls(task_id=task_id, **{**COMMON, **parameters})
        operator.process, operator.report_key = process, report_key
        return operator

    def _new_start_guard(self, ti: Any) -> StartGuard:
        clock = asyncio.get_running_loop().time
        ask = partial(greenlet_spawn, is_running_try, ti, self.log)
        return StartGuard(ask, started=None, clocks=(clock,))

    def _open_gangs(self, context: Any, **options: Any) -> TaskGangs:
        found = super()._open_gangs(context, **options)
        self.report_key(found.key)
        return _ProcessGangs(**asdict(found), process=self.process)


class ProcessHook(GangJobHook):
    """A hook whose requests the process of a triggerer sends."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process

    async def aconfig(self, **_: Any) -> Any:
        return self.process.config

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[GangService]:
        yield GangService(self.process.client())

    async def afollow(self, ref: Any, *, report: Any = lambda _: None, config: Any = None, **options: Any) -> Any:
        options = {name: value for name, value in options.items() if value is not None}
        return await follow(self.process.config, ref, FollowOptions(report=report, **options))


class ProcessTriggerArgs(TriggerArgs, frozen=True, kw_only=True):
    """The arguments of a trigger, with a hook in the process of the triggerer."""

    process: Process

    @classmethod
    def of(cls, args: TriggerArgs, process: Process) -> ProcessTriggerArgs:
        return cls(**asdict(args), process=process)

    @property
    def hook(self) -> GangJobHook:
        return ProcessHook(self.process)

"""What a trigger is told: which gang to wait for, by ids and numbers only.

Airflow stores the arguments of a deferral as plain JSON in its database, so nothing secret may be among
them: credentials come from the connection, and everything else about the gang from the cluster.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook


@dataclass(frozen=True, kw_only=True)
class TriggerArgs:
    """Arguments of the triggers. A contract: deferred tasks of an earlier release bring them back."""

    kubernetes_conn_id: str
    namespace: str
    name: str
    uid: str
    claim: str = ""
    """Id of the task instance that answers for the gang. Without it a kill leaves the gang alone."""
    attempt: int | None = None
    queue_timeout_s: float | None = None
    assemble_timeout_s: float | None = None
    run_timeout_s: float | None = None
    must_exist: bool = False
    """Whether the worker found the connection in Airflow, so that a triggerer that does not is mistaken."""
    deadline: float | None = None
    """Unix time, by the API server's clock, when the task's `execution_timeout` has passed. Airflow 3 ignores it while
    a task is deferred."""
    execution_timeout_s: float | None = None
    """What `deadline` was computed from, for the message."""
    delete_on_kill: bool = True
    """Whether a kill of the task by a user deletes the gang."""
    disruptions: int = 0
    """How many attempts in a row were lost to disruptions before this one. It is told with the end, Job or no Job."""
    tracking_errors: int = 0
    """How many deferrals in a row before this one ended because the gang could not be followed. After some the trigger
    waits for a while before it tries again."""

    @property
    def ref(self) -> GangRef:
        return GangRef(self.namespace, self.name, self.uid)

    @property
    def deadlines(self) -> Deadlines:
        return Deadlines(self.queue_timeout_s, self.assemble_timeout_s, self.run_timeout_s)

    @property
    def hook(self) -> GangJobHook:
        return GangJobHook(self.kubernetes_conn_id, must_exist=self.must_exist)

    def to_kwargs(self) -> dict[str, Any]:
        """Plain JSON values, without those at their default."""
        return {name: value for name, value in asdict(self).items() if value != getattr(type(self), name, _REQUIRED)}


_REQUIRED = object()

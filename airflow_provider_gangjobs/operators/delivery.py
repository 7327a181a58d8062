"""A task whose gang is delivered or handed over after Airflow has stored the success of the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_gangjobs.gang.spec import OnFinish, Policies, WaitUntil
from airflow_provider_gangjobs.operators.task_parameters import GangTaskParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow.sdk import Context

    from airflow_provider_gangjobs.tracking.follow import FollowUntil


class Delivery(Protocol):
    """What is left to do after the success of the task: `Completion` or `HandOver`."""

    def deliver_accepted(self, ti: Any) -> None:
        """Deliver the gang if Airflow's API server has stored the success of the task."""


class DeliveredTask(GangTaskParameters):
    """The base class of `GangJobOperator` with the success callback that delivers the gang."""

    _to_deliver: Delivery | None = None

    @property
    def on_success_callback(self) -> list[Callable[[Context], Any]]:
        """The callback that delivers the gang, followed by the callbacks of the user.

        Airflow calls them after it has reported the success of the task. The gang may be delivered only after the API
        server has accepted the report. Until then, a fault of the process, of `post_execute`, of an XCom backend or of
        the API server can still fail the task, and the next try must find the gang.
        """
        return [_deliver, *self._on_success]

    @on_success_callback.setter
    def on_success_callback(self, given: Callable[[Context], Any] | Iterable[Callable[[Context], Any]] | None) -> None:
        callbacks = () if given is None else (given,) if callable(given) else given
        self._on_success = [callback for callback in callbacks if callback is not _deliver]

    def deliver(self, ti: Any) -> None:
        """Mark the gang as delivered, and apply `on_finish`, if Airflow has stored the success of the task.

        Does nothing before the gang has succeeded.

        :param ti: The task instance of the context.
        """
        if self._to_deliver is not None:
            self._to_deliver.deliver_accepted(ti)

    def _push_xcom(self, context: Context, key: str, value: Any) -> None:
        """Push an XCom that describes the gang. A fault of the XCom backend is logged.

        The gang runs or has ended. The task must go on to wait for it, or to report its end.
        """
        if not self.do_xcom_push:
            return
        try:
            context["ti"].xcom_push(key, value)
        except Exception as error:  # an XCom backend may raise anything
            self.log.warning("XCom %s could not be pushed (%s). The task goes on", key, type(error).__name__)

    @property
    def _policies(self) -> Policies:
        ends_with_gang = self.wait_until is WaitUntil.ENDED
        return Policies(self.kill_policy, self.on_finish if ends_with_gang else OnFinish.KEEP, self.wait_until)

    @property
    def _until(self) -> FollowUntil:
        return "running" if self.wait_until is WaitUntil.RUNNING else "ended"


def _deliver(context: Context) -> None:
    task = context["task"]
    assert isinstance(task, DeliveredTask)
    task.deliver(context["ti"])


__all__ = ["DeliveredTask"]

"""The base class of `callbacks`: what a user may run when the phase of a gang changes.

A DAG file imports this module, so it imports no other module of the provider.

The parameter `callbacks`: classes, which a deferral stores as dotted paths because the triggerer calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pendulum import DateTime

    from airflow_provider_gangjobs.gang.identity import GangRef

__all__ = ["GangJobCallback", "load_callback", "path_problems", "require_importable", "to_paths"]


class GangJobCallback:
    """Methods that the provider calls while it follows a gang. A subclass overrides them.

    The methods run in the process that follows the gang: in the triggerer if the task is deferred, otherwise in the
    worker. So a subclass is in a module that both processes can import, such as a module of the plugins folder, and not
    in a DAG file. They run in a thread, in the order of the changes, beside the wait for the gang: they delay neither
    an event nor a deadline, and an error is logged and changes nothing. A method may be a coroutine function. A method
    should set a timeout for whatever it waits for: a callback with three calls that do not end within a minute and
    still run is not called again in this process.

    A triggerer that restarts observes the gang again, and calls the method for the present phase again. A phase that
    lasts less than three seconds may be left out. The triggerer's threads cannot read XComs or variables.
    """

    @staticmethod
    def on_phase_change(
        *,
        gang: GangRef,
        task: Mapping[str, Any],
        phase: str,
        previous: str | None,
        message: str,
        since: DateTime | None,
        **kwargs: Any,
    ) -> Any:
        """Act on another phase of the gang.

        :param gang: Namespace, name and uid of the Job.
        :param task: `dag_id`, `run_id`, `task_id` and `map_index` of the task.
        :param phase: `submitted`, `queued`, `assembling`, `running`, `finishing`, `succeeded`, `failed` or `deleted`.
        :param previous: The phase before; `None` at the first observation of this process.
        :param message: The line in the log of the task, such as `assembling: 8 pods, 3 placed`.
        :param since: When the phase began, in UTC, by the clock of the API server; `None` if this is unknown.
        :param kwargs: Further values, which later releases may add.
        """


def load_callback(path: str) -> Any:
    """Return the class at a dotted path.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such class, or the class has no method `on_phase_change`.
    """
    module, _, name = path.rpartition(".")
    callback = getattr(import_module(module), name)
    _ = callback.on_phase_change
    return callback


DAG_FILE_PREFIX: Final = "unusual_prefix_"
"""Airflow gives the module of a DAG file a name with this prefix, under which no other process can import it."""
REMEDY: Final = "Give a class of a module that worker and triggerer can import, such as a module of the plugins folder"


def to_paths(given: Any) -> tuple[Any, ...]:
    """Return the dotted paths of one class or path, several, or none. A value that is neither a class
    nor a path is returned unchanged."""
    items = () if given is None else given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    return tuple(f"{item.__module__}.{item.__qualname__}" if isinstance(item, type) else item for item in items)


def path_problems(paths: Sequence[Any]) -> tuple[Problem, ...]:
    """Return the problems of paths that no other process can import."""
    return tuple(Problem("callbacks", what, REMEDY) for path in paths if (what := _problem(path)))


def _problem(path: Any) -> str:
    if not isinstance(path, str):
        return f"has {path!r:.80}, which is neither a class nor a dotted path"
    module, _, name = path.rpartition(".")
    if module.partition(".")[0].startswith(DAG_FILE_PREFIX):
        return f"has the class {name} of the DAG file, which the triggerer cannot import"
    if not module or not all(part.isidentifier() for part in path.split(".")):
        return f"has {path!r}, which is not the dotted path of a class in a module"
    return ""


def require_importable(paths: Sequence[str]) -> None:
    """Import the classes in this worker, before anything is created. The triggerer has the same modules.

    Raises:
        InvalidGangSpec: a class cannot be imported, or has no method `on_phase_change`.
    """
    if not paths:
        return

    problems = []
    for path in paths:
        try:
            load_callback(path)
        except Exception as error:  # the import of a module may raise anything
            problems.append(Problem("callbacks", f"{path} cannot be used: {type(error).__name__}: {error}", REMEDY))
    if problems:
        raise InvalidGangSpec(tuple(problems))

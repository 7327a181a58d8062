"""Whether a task can start its gang in the triggerer, and what its trigger is given.

Airflow's scheduler defers such a task itself, so no worker has read the DAG file when the trigger begins. The trigger
gets the parameters of the operator as JSON in the serialized DAG, makes the operator of them again, and renders its
templates. What JSON cannot hold, or only a worker can resolve, starts in a worker (`reason_for_worker`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from enum import Enum
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.bases.operator import get_merged_defaults
from airflow.sdk.definitions.mappedoperator import DictOfListsExpandInput, ListOfDictsExpandInput, OperatorPartial
from airflow.triggers.base import BaseTrigger, StartTriggerArgs
from msgspec import Struct

from airflow_provider_gangjobs.airflow_api.configuration import (
    conf,
    default_deferrable,
    ends_from_trigger,
    starts_from_trigger,
)
from airflow_provider_gangjobs.airflow_api.task_end import applying
from airflow_provider_gangjobs.gang.checkpoints import is_object_store
from airflow_provider_gangjobs.parameters.checks import is_file_path, is_manifest_file
from airflow_provider_gangjobs.parameters.declaration import PARAMETERS, convert

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider_gangjobs.parameters.python_function import ExtractedSource

TRIGGER: Final = "airflow_provider_gangjobs.triggers.gang_job.GangStartTrigger"
KNOWN_OPERATORS: Final = frozenset(
    {
        "airflow_provider_gangjobs.decorators.gang_job.GangJobDecoratedOperator",
        "airflow_provider_gangjobs.operators.gang_job.GangJobOperator",
    }
)
"""The operators that the trigger can make again. A subclass may do something else."""
START_BYTES_MAX: Final = 32 * 1024
"""How large the parameters may be. The scheduler, the database and the triggerer handle them for each task instance."""
_NOT_PASSED: Final = frozenset(
    {
        "self",
        "kwargs",
        "start_from_trigger",
        "end_from_trigger",
        "python_callable",
        "multiple_outputs",
        "rank_resources",
    }
)
_OF_DAG: Final = ("user_defined_macros", "user_defined_filters", "jinja_environment_kwargs")
"""Settings of a DAG that change what its templates mean, and that no serialized DAG has."""
_COMMON: Final = ("do_xcom_push", "execution_timeout", "render_template_as_native_obj")
"""The parameters of Airflow's own operator that the start of a gang needs."""
_OF_WORKER: Final = ("pre_execute", "on_execute_callback", "run_as_user", "map_index_template")
_ORDERED: Final = frozenset({"env", "roles"})
"""Parameters whose order counts: ranks are numbered by the order of roles, and a variable may name the ones before."""
_DEFAULT_POOL: Final = "default_pool"
_DEFAULT_PRIORITY: Final = 1


class NeedsWorkerError(Exception):
    """Only a worker can start the gang. The text says why."""


class TriggererStart(Struct, frozen=True):
    """Whether the triggerer can start the gang of a task."""

    reason: str
    """Why a worker starts the gang; empty if the triggerer can."""
    arguments: StartTriggerArgs | None = None
    """What Airflow's scheduler creates the trigger with; `None` if a worker starts the gang."""


# -- the rule ------------------------------------------------------------------------------------------------


def reason_for_worker(
    kind: type,
    parameters: Mapping[str, Any],
    given: Mapping[str, Any],
    dag: Any = None,
    source: ExtractedSource | None = None,
) -> str:
    """Return why the gang of a task starts in a worker; empty if it may start in the triggerer.

    :param kind: The class of the operator.
    :param parameters: The parameters that describe the gang, before their templates are rendered.
    :param given: The parameters of Airflow's own operator.
    """
    if reason := next((reason for reason, applies in _reasons(kind, given, dag) if applies), ""):
        return reason
    try:
        _require_parameters(parameters)
        size = len(json.dumps(to_plain(parameters))) + (0 if source is None else len(source.text))
    except NeedsWorkerError as error:
        return str(error)
    if size > START_BYTES_MAX:
        return f"the parameters have {size} bytes, and the trigger is given at most {START_BYTES_MAX}"
    return ""


def _reasons(kind: type, given: Mapping[str, Any], dag: Any) -> Iterator[tuple[str, Any]]:
    """Yield each reason that is no value of a parameter of the gang, and whether it applies."""
    yield "this Airflow is older than 3.3", not hasattr(BaseTrigger, "on_kill")
    yield f"{kind.__name__} may do more than the operator of the provider", path_of(kind) not in KNOWN_OPERATORS
    deferrable = given.get("deferrable")
    yield "deferrable is false", not (default_deferrable() if deferrable is None else deferrable)
    yield (
        "[triggerer] queues_enabled is true, and Airflow gives no queue to the trigger, which would wait for ever",
        conf.getboolean("triggerer", "queues_enabled", fallback=False),
    )
    pool, priority = given.get("pool") or _DEFAULT_POOL, given.get("priority_weight") or _DEFAULT_PRIORITY
    yield f"the triggerer takes no slot of pool {pool}", pool != _DEFAULT_POOL
    yield f"the triggerer follows no priority_weight, which is {priority}", priority != _DEFAULT_PRIORITY
    limits = (given.get(name) for name in ("max_active_tis_per_dag", "max_active_tis_per_dagrun"))
    yield (
        "the triggerer ignores max_active_tis_per_dag and max_active_tis_per_dagrun",
        any(limit is not None for limit in limits),
    )
    of_worker = [name for name in _OF_WORKER if given.get(name)]
    yield f"only a worker reads {', '.join(of_worker)}", of_worker
    for name in _OF_DAG:
        yield f"only a worker knows {name} of the DAG", getattr(dag, name, None)


def path_of(kind: type) -> str:
    """Return the dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _require_parameters(parameters: Mapping[str, Any]) -> None:
    if parameters.get("result_storage") is not None:
        raise NeedsWorkerError("only a worker checks result_storage")
    if is_object_store(parameters.get("checkpoints")):
        raise NeedsWorkerError("only a worker checks checkpoints in an object store")
    if is_manifest_file(parameters.get("manifest")):
        raise NeedsWorkerError("only a worker has the folder of the DAG, where manifest names a file")
    files = parameters.get("files")
    for name, value in files.items() if isinstance(files, Mapping) else ():
        if is_file_path(value):
            raise NeedsWorkerError(f"only a worker has the folder of the DAG, where files.{name} names a file")


def to_plain(value: Any, path: str = "") -> Any:
    """Return a value of the operator's parameters as a value of JSON.

    Raises:
        NeedsWorkerError: JSON cannot hold the value.
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: to_plain(item, f"{path}.{key}" if path else key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    raise NeedsWorkerError(f"{path} is a {type(value).__name__}, which only a worker resolves")


# -- what the trigger is given ---------------------------------------------------------------------------------


def start_of(operator: Any, source: ExtractedSource | None = None, **more: Any) -> TriggererStart:
    """Return whether the triggerer can start the gang of an operator, and with which arguments.

    :param source: The function of a decorated task.
    :param more: Parameters that are no attributes of the operator.
    """
    kind: Any = type(operator)
    attributes, defaults = vars(operator), defaults_of(kind)
    names = {name: PARAMETERS[name].attribute if name in PARAMETERS else name for name in defaults}
    values = {name: attributes.get(attribute) for name, attribute in names.items()} | more
    parameters = {name: value for name, value in values.items() if not _is_default(value, defaults.get(name))}
    given = {**attributes, "pre_execute": operator._pre_execute_hook}  # noqa: SLF001 - Airflow has no public name
    if reason := reason_for_worker(kind, parameters, given, operator.dag if operator.has_dag() else None, source):
        return TriggererStart(reason)
    common = {name: getattr(operator, name) for name in _COMMON}
    end = operator.end_facts if operator.wants_trigger_end else None
    return _start(
        kind, parameters, common, source, end, **({"is_dag_result": True} if operator.returns_dag_result else {})
    )


def start_of_mapped(operator: Any, values: Any, source: ExtractedSource | None = None) -> TriggererStart:
    """Return whether the triggerer can start the gangs of a mapped operator, and with which arguments.

    :param operator: Airflow's mapped operator.
    :param values: The values over which it is mapped: lists by parameter, or a list of mappings.
    """
    shared = _shared(operator)
    names = (*defaults_of(operator.operator_class), *(("op_args", "op_kwargs", "rank_resources") if source else ()))
    known = {name: shared[name] for name in names if shared.get(name) is not None}
    parameters = {name: convert(name, value) if name in PARAMETERS else value for name, value in known.items()}
    kind = operator.operator_class
    if reason := reason_for_worker(kind, parameters, {**shared, **parameters}, operator.dag, source):
        return TriggererStart(reason)
    try:
        require_literal(values, is_classic=source is None)
    except NeedsWorkerError as error:
        return TriggererStart(str(error))
    common = {name: shared[name] for name in _COMMON if name in shared}
    mapped = {"mapped": list(values)} if isinstance(values, Mapping) else {}
    return _start(kind, parameters, common, source, _end_of_mapped(operator, shared), **mapped)


def wants_start(operator: Any) -> bool:
    """Return whether the triggerer shall start the gangs of a mapped operator, if it can."""
    wanted = _shared(operator).get("start_from_trigger")
    return bool(starts_from_trigger() if wanted is None else wanted)


def _shared(operator: Any) -> Mapping[str, Any]:
    """Return what all task instances of a mapped operator have in common.

    A worker applies the `default_args` when it makes the operator of one value.
    """
    given, _ = get_merged_defaults(operator.dag, operator.task_group, None, None)
    return {**given, **operator.partial_kwargs}


def _end_of_mapped(operator: Any, shared: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return what decides whether a mapped task may end in the triggerer, as far as its shared parameters say."""
    wanted = shared.get("end_from_trigger")
    if not (ends_from_trigger() if wanted is None else wanted):
        return None
    return applying(
        outlets=bool(shared.get("outlets")),
        post_execute=shared.get("post_execute") is not None,
        on_success_callback=bool(shared.get("on_success_callback")),
        multiple_outputs=bool(shared.get("multiple_outputs")),
        extra_links=bool(operator.operator_extra_links),
    )


def _start(
    kind: type,
    parameters: Mapping[str, Any],
    common: Mapping[str, Any],
    source: ExtractedSource | None,
    end: Sequence[str] | None,
    **more: Any,
) -> TriggererStart:
    """Return the arguments with which the triggerer starts a gang.

    :param end: What decides whether the triggerer may also end the task; `None` if nobody wants that.
    """
    start: dict[str, Any] = {
        "operator": path_of(kind),
        "parameters": to_plain(parameters),
        "common": to_plain({name: value for name, value in common.items() if value is not None}),
        **more,
    }
    if source is not None:
        start["source"] = asdict(source)
    if end is not None:
        start["end"] = list(end)
    # One text, because Airflow encodes nested values again at each of the places where it stores them.
    arguments = StartTriggerArgs(
        trigger_cls=TRIGGER, next_method="execute_complete", trigger_kwargs={"start": json.dumps(start)}
    )
    return TriggererStart("", arguments)


@cache
def defaults_of(operator: Any) -> Mapping[str, Any]:
    """Return the default of each parameter of an operator that the classes of this provider have."""
    constructors = [vars(kind).get("__init__") for kind in reversed(operator.__mro__) if _is_ours(kind)]
    parameters = (inspect.signature(each).parameters for each in constructors if each is not None)
    return {name: one.default for each in parameters for name, one in each.items() if name not in _NOT_PASSED}


def _is_default(value: Any, default: Any) -> bool:
    # The operator makes an empty tuple of None, and `stream_logs=()` is no default.
    if value is None or (value == () and default is None):
        return True
    # `stream_logs=1` is rank 1, and equals the default True.
    return isinstance(value, bool) is isinstance(default, bool) and bool(value == default)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


# -- mapped tasks ----------------------------------------------------------------------------------------------


def require_literal(values: Any, *, is_classic: bool) -> None:
    """Check that the values of a mapping are part of the DAG file.

    :param values: The value of Airflow's expand input: lists by parameter, or a list of mappings.
    :param is_classic: The values are parameters of the operator, and not arguments of a function.

    Raises:
        NeedsWorkerError: a value is known only to a worker.
    """
    by_name = isinstance(values, Mapping)
    lists = values.values() if by_name else [values]
    if not all(isinstance(each, (list, tuple)) for each in lists):
        raise NeedsWorkerError("the task is mapped over values that only a worker resolves")
    to_plain(values, "expand")
    for row in [{name: item} for name, items in values.items() for item in items] if by_name else values:
        for name, value in row.items():
            if (not is_classic or name in _ORDERED) and _has_order(value):
                raise NeedsWorkerError(f"a database may change the order of {name}, over which the task is mapped")
        if is_classic:
            _require_parameters(row)


def _has_order(value: Any) -> bool:
    """Return whether a value of JSON has an object of several names, whose order PostgreSQL does not keep."""
    if isinstance(value, Mapping):
        return len(value) > 1 or any(map(_has_order, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_order, value))


def task_parameters(start: Mapping[str, Any], mapped: Any, map_index: int | None) -> dict[str, Any]:
    """Return the parameters of one task instance.

    :param start: What the trigger was given.
    :param mapped: The values over which the task is mapped; `None` if it is not mapped.

    Raises:
        NeedsWorkerError: the mapped values are not part of the DAG file.
    """
    parameters, is_decorated = dict(start["parameters"]), "source" in start
    if mapped is None:
        return parameters
    require_literal(mapped, is_classic=not is_decorated)
    # A database may change the order of the names, by which Airflow counts the map indexes.
    expand_input: Any = (
        DictOfListsExpandInput({name: mapped[name] for name in start["mapped"]})
        if isinstance(mapped, Mapping)
        else ListOfDictsExpandInput(mapped)
    )
    values, _ = expand_input.resolve({"ti": SimpleNamespace(map_index=map_index)})
    if not is_decorated:
        return parameters | dict(values)
    return parameters | {"op_kwargs": {**parameters.get("op_kwargs", {}), **values}}


class GangPartial(OperatorPartial):
    """What `.expand()` makes mapped tasks of, whose gangs the triggerer starts if it shall and can."""

    def _expand(self, expand_input: Any, *, strict: bool) -> Any:
        mapped = super()._expand(expand_input, strict=strict)
        return with_start(mapped, expand_input.value) if wants_start(mapped) else mapped


def with_start(operator: Any, values: Any, source: ExtractedSource | None = None) -> Any:
    """Let the triggerer start the gangs of a mapped operator if it can. Return the operator."""
    start = start_of_mapped(operator, values, source)
    operator.start_from_trigger = start.arguments is not None
    operator.start_trigger_args = start.arguments and _MappedArguments(operator, start.arguments)
    return operator


class _MappedArguments(StartTriggerArgs):
    """What Airflow's scheduler creates the triggers of a mapped task with.

    Airflow reads this when it serializes the DAG. Only then it is known whether the task returns the result of the DAG.
    """

    def __init__(self, operator: Any, known: StartTriggerArgs) -> None:
        self.trigger_cls, self.next_method = known.trigger_cls, known.next_method
        self._operator = operator
        self._kwargs = known.trigger_kwargs or {}

    @property
    def trigger_kwargs(self) -> dict[str, Any]:  # type: ignore[override]
        """The arguments of the triggers."""
        if not self._operator.returns_dag_result:
            return self._kwargs
        return {"start": json.dumps(json.loads(self._kwargs["start"]) | {"is_dag_result": True})}


def gang_partial(made: OperatorPartial) -> OperatorPartial:
    """Return what Airflow has made for a mapped operator, with a start in the triggerer."""
    made._expand_called = True  # noqa: SLF001 - or Airflow warns that it was never mapped
    return GangPartial(operator_class=made.operator_class, kwargs=made.kwargs, params=made.params)

"""The parameters of a task that runs a gang: how Airflow renders them, what they describe, and what is wrong with them.

A parameter belongs to one of two groups. `GangParameters` renders the ones that describe the gang, and builds the
`GangSpec` from them when the task runs. `TaskParameters` is the value of the others: what the task does with its gang.
The operator has each parameter as an attribute, because Airflow renders attributes.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

from airflow.sdk import get_parsing_context

from airflow_provider_gangjobs.airflow_api.task_end import end_problems
from airflow_provider_gangjobs.airflow_api.task_log import ErrorRules
from airflow_provider_gangjobs.gang.spec import (
    GangSpec,
    LogOptions,
    Logs,
    OnFinish,
    OnKill,
    Policies,
    Results,
    WaitUntil,
    log_problems,
)
from airflow_provider_gangjobs.parameters import checks, shorthands
from airflow_provider_gangjobs.parameters.declaration import PARAMETERS, convert
from airflow_provider_gangjobs.parameters.storage import with_result_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Context
    from jinja2 import Environment

    from airflow_provider_gangjobs.exceptions import Problem
    from airflow_provider_gangjobs.tracking.follow import FollowUntil

_OF_SPEC: Final = {
    field: PARAMETERS[field].attribute if field in PARAMETERS else field for field in GangSpec.__struct_fields__
}
"""The attribute of the operator by field of `GangSpec`."""
_LOG_PARAMETERS: Final = ("log_limit", "log_containers", "stream_logs", "workers")


@dataclass(frozen=True, kw_only=True)
class TaskParameters:
    """What a task does with its gang, as its rendered parameters say (`declaration`)."""

    kubernetes_conn_id: str
    results: Results
    results_limit: int
    result_storage: str | None
    logs: Logs
    log_containers: tuple[str, ...]
    log_limit: int
    checkpoints: Any
    stream_logs: bool | int | Sequence[int]
    time_limits: Mapping[str, float]
    max_disruptions: int
    durable: bool
    on_finish: OnFinish
    kill_policy: OnKill
    wait_until: WaitUntil
    callbacks: Sequence[str]
    skip_on_exit_code: Sequence[int]
    deferrable: bool
    execution_timeout: timedelta | None
    do_xcom_push: bool
    wants_trigger_end: bool
    end_facts: Sequence[str]

    @classmethod
    def of(cls, operator: GangParameters) -> Self:
        """Return the parameters that the operator has as attributes."""
        return cls(**{field.name: getattr(operator, field.name) for field in fields(cls)})

    @property
    def ends_with_gang(self) -> bool:
        """Whether the end of the task is the end of the gang."""
        return self.wait_until is WaitUntil.ENDED

    @property
    def until(self) -> FollowUntil:
        """What the task waits for."""
        return "running" if self.wait_until is WaitUntil.RUNNING else "ended"

    @property
    def policies(self) -> Policies:
        """What happens to the gang after its task has ended."""
        return Policies(self.kill_policy, self.on_finish if self.ends_with_gang else OnFinish.KEEP, self.wait_until)

    @property
    def log_options(self) -> LogOptions:
        """Which logs are copied into the log of the task, and how much of them."""
        return LogOptions(self.logs, self.log_containers, self.log_limit)


class GivenFields:
    """The template fields of a class; for an operator, those that have a value.

    Most of the fields have none. Airflow prepares each field of a task that runs for the UI, which takes 0.5 to 1 ms of
    CPU, and reads each field of each task whenever a process reads the serialized DAG.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def __get__(self, operator: Any, kind: type | None = None) -> tuple[str, ...]:
        if operator is None:
            return self._names
        return tuple(name for name in self._names if getattr(operator, name, None) is not None)


class GangParameters(ErrorRules):
    """The base class of `GangJobOperator`: the parameters that describe the gang, and the templates among them.

    Each parameter is an attribute, with the name that `PARAMETERS` says.
    """

    template_fields: Any = GivenFields([one.attribute for one in PARAMETERS.values() if one.is_template])
    template_ext: Sequence[str] = ()
    template_fields_renderers = {  # noqa: RUF012 - Airflow's name and form
        one.attribute: one.renderer for one in PARAMETERS.values() if one.renderer
    }
    ui_color = "#d7e6f4"

    wants_triggerer: bool = False
    manifest: Any

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A parameter."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(names := vars(cls).get("template_fields"), (tuple, list)):
            cls.template_fields = GivenFields(names)

    def _set_parameters(self, given: Mapping[str, Any]) -> None:
        """Convert the parameters, set the attributes, and check them as far as their templates allow.

        The process of a task does not check the parameters that describe the gang. The submission does that after their
        templates are rendered, and a process that resumes the task would pay for loading the rules.

        Raises:
            InvalidGangSpec: a parameter is invalid. The error lists all problems.
        """
        for name, parameter in PARAMETERS.items():
            setattr(self, parameter.attribute, convert(name, given[name]))
        in_task = self.is_in_task_process()
        spec = None if in_task else self._spec_parameters()
        checks.refuse(log_problems(**{name: getattr(self, name) for name in _LOG_PARAMETERS}))
        problems = [*self._problems_of_values()]
        reported = {PARAMETERS[problem.path].attribute for problem in problems}
        if spec is not None:
            problems += checks.spec_problems({k: v for k, v in spec.items() if k not in reported})
            problems += shorthands.restart_problems(spec, self.launch)
        problems += shorthands.mpi_problems(self.launch, self.ssh_secret, self.slots_per_worker)
        problems += checks.limit_problems(self)
        problems += shorthands.role_problems(self.roles, self.wait_until, self.launch)
        if given["end_from_trigger"] and not in_task:
            problems += end_problems(self.end_facts)
        checks.refuse(problems)

    @property
    def time_limits(self) -> dict[str, float]:
        """The limits that whoever waits for the gang keeps, in seconds by parameter; without those that are not set."""
        limits = {name: getattr(self, one.attribute) for name, one in PARAMETERS.items() if one.limits_wait}
        return {name: seconds for name, seconds in limits.items() if seconds is not None}

    def gang_spec(self, result_folder: str | None = None) -> GangSpec:
        """Return the spec that the rendered parameters describe.

        :param result_folder: The URL of the folder into which the ranks write large results.
        """
        spec = checks.build_spec(self._spec_parameters(), self._read)
        return spec if result_folder is None else with_result_storage(spec, result_folder)

    def _spec_parameters(self) -> dict[str, Any]:
        given = {name: checks.as_list(getattr(self, attribute, None)) for name, attribute in _OF_SPEC.items()}
        return shorthands.expand(
            given,
            secrets=self.secrets,
            launch=self.launch,
            ssh_secret=self.ssh_secret,
            slots_per_worker=self.slots_per_worker,
        )

    @property
    def execution_timeout_s(self) -> float | None:
        """`execution_timeout` of the task in seconds, if the end of the task is the end of the gang."""
        if self.wait_until is not WaitUntil.ENDED:
            return None
        timeout = self.execution_timeout
        return timeout.total_seconds() if timeout and timeout.total_seconds() > 0 else None

    def _problems_of_values(self) -> Iterator[Problem]:
        for name, parameter in PARAMETERS.items():
            if parameter.check is not None:
                yield from parameter.check(name, getattr(self, parameter.attribute))

    def resolve_template_files(self) -> None:
        """Read the manifest if it is a path, so that Airflow renders its text as a template.

        With the mechanism of Airflow, an argument such as "config.yaml" would also be read as a template file.
        """
        if checks.is_manifest_file(self.manifest):
            self.manifest = self._read(self.manifest).decode()
        self.prepare_template()

    def _read_files_of_mapped_task(self, context: Context) -> None:
        """Read and render the template files. For a mapped task, Airflow renders only their paths."""
        if checks.is_manifest_file(self.manifest):
            self.resolve_template_files()
            self.manifest = self.render_template(self.manifest, context)

    def _read(self, path: str) -> bytes:
        dag = self.dag
        return checks.read_file(path, checks.search_folders(dag.folder, dag.template_searchpath))

    def render_template(
        self, content: Any, context: Context, jinja_env: Environment | None = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render as Airflow does, but keep the line end at the end of a text, which Jinja removes by default.

        The content of a file keeps its last line end, and a file of a single line is not taken for a path.
        """
        environment = jinja_env or self.get_template_env()
        environment.keep_trailing_newline = True
        if content.__class__ is str and self._is_rendered_to_itself(content, environment):
            return content
        return super().render_template(content, context, environment, seen_oids)

    def _is_rendered_to_itself(self, text: str, environment: Environment) -> bool:
        """Return whether a text is certainly no template. Jinja takes half a millisecond of CPU to find that out.

        With `render_template_as_native_obj`, Airflow would make numbers and dicts of such texts, which are arguments,
        variables and files of programs.
        """
        marks = (environment.block_start_string, environment.variable_start_string, environment.comment_start_string)
        return (
            environment.line_statement_prefix is environment.line_comment_prefix is None
            and not text.endswith(tuple(self.template_ext))
            and not any(mark in text for mark in (*marks, "\r"))
        )

    def is_in_task_process(self) -> bool:
        """Return whether the process of a task creates the operator: from its DAG file, or from a mapped task."""
        # Airflow sets this private attribute before `__init__` runs, and has no public name for it.
        is_unmapped = bool(getattr(self, "_BaseOperator__from_mapped", False))
        return is_unmapped or get_parsing_context().task_id is not None


class ForScheduler:
    """An attribute that Airflow reads when it serializes an operator, after the whole DAG is known.

    :param default: The value for an operator that does not want to start its gang in the triggerer, and the value of
        the class, which Airflow reads for mapped operators.
    :param read: Returns the value of an operator that wants it.
    """

    def __init__(self, default: Any, read: Callable[[Any], Any]) -> None:
        self._default = default
        self._read = read

    def __get__(self, operator: Any, kind: type | None = None) -> Any:
        is_wanted = operator is not None and operator.wants_triggerer and not operator.is_in_task_process()
        return self._read(operator) if is_wanted else self._default


@contextmanager
def answers_to_unknown(operator: type, given: Iterable[str]) -> Iterator[None]:
    """Answer each given parameter that the operator does not have, if Airflow refuses one in the block.

    Raises:
        InvalidGangSpec: the operator does not have a parameter.
    """
    try:
        yield
    except TypeError:
        from airflow_provider_gangjobs.parameters.unknown_parameters import refuse_unknown

        refuse_unknown(operator, given)
        raise

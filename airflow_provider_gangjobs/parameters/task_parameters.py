"""The parameters of a task that runs a gang: how Airflow renders them, what they describe, and what is wrong with them.

A parameter belongs to one of two groups. `GangParameters` renders the ones that describe the gang, and builds the
`GangSpec` from them when the task runs. `TaskParameters` is the value of the others: what the task does with its gang.
The operator has each parameter as an attribute, because Airflow renders attributes.

`result_storage` is a URL, or an `ObjectStoragePath`. The folder of a task is `<url>/<dag id>/<run id>/<task id>`, and
the map index of a mapped task. In this folder, each installation of Airflow has a folder, because two installations may
run equal DAGs and share a storage. The folder of the installation comes last, so that the variable that names the
folder of the task to the ranks is the same in all versions: the variable belongs to the hash by which a retry finds the
gang of the try before. A worker checks this storage, and that of `checkpoints`, before it creates anything. Large
results are written by the ranks themselves, with the file `gangjobs_result.py`, so a folder in their file system must
be on a volume that outlives their pods.

A DAG file imports this module, so the module imports the rules of manifests and Airflow's storage when it uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Self

from airflow.sdk import get_parsing_context
from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.airflow_api.task_end import end_problems
from airflow_provider_gangjobs.airflow_api.task_log import ErrorRules
from airflow_provider_gangjobs.container_programs import PROGRAMS, gangjobs_result
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.checkpoints import is_object_store
from airflow_provider_gangjobs.gang.spec import (
    RESULT_HELPER_FILE,
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import timedelta

    from airflow.sdk import Context
    from airflow.sdk.types import Logger
    from jinja2 import Environment

    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.tracking.follow import FollowUntil


_OF_SPEC: Final = {
    field: PARAMETERS[field].attribute if field in PARAMETERS else field for field in GangSpec.__struct_fields__
}
"""The attribute of the operator by field of `GangSpec`."""
_LOG_PARAMETERS: Final = ("log_limit", "log_containers", "stream_logs", "workers")


class TaskParameters(Struct, frozen=True, kw_only=True):
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
        return cls(**{name: getattr(operator, name) for name in cls.__struct_fields__})

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


# -- the storages ----------------------------------------------------------------------------------------------------

VOLUME_REMEDY: Final = (
    "Mount a volume that outlives the pods with volumes and volume_mounts, or give the URL of an object store"
)


def with_result_storage(spec: GangSpec, folder: str) -> GangSpec:
    """Return the spec with the helper file and the variable that names the folder.

    :param folder: The URL of the folder of this task run.

    Raises:
        InvalidGangSpec: the ranks cannot write the folder, or what they write is lost with their pods.
    """
    if RESULT_HELPER_FILE in spec.files:
        problem = Problem(f"files.{RESULT_HELPER_FILE}", "is a file of the provider", "Choose another name")
        raise InvalidGangSpec((problem,))
    if is_local(folder):
        _require_volume(spec, PurePosixPath(folder.partition("://")[2] or folder))
    helper = (PROGRAMS / RESULT_HELPER_FILE).read_text("utf-8")
    return replace(spec, **_with_folder(spec, folder), files={**spec.files, RESULT_HELPER_FILE: helper})


def _with_folder(spec: GangSpec, folder: str) -> dict[str, Any]:
    """Return the parameters that have `env`: those of the gang, or `roles`, because each role has its own."""
    variables = {gangjobs_result.ENV_STORAGE: folder}
    if spec.roles is None:
        of_gang: dict[str, Any] = {"env": spec.env}
        checks.add_env(of_gang, variables)
        return of_gang
    given: Any = spec.roles  # a template or an XCom may have given another value, which the submission refuses
    if not isinstance(given, Mapping) or not all(isinstance(role, Mapping) for role in given.values()):
        return {}
    roles = {name: dict(role) for name, role in given.items()}
    for role in roles.values():
        checks.add_env(role, variables)
    return {"roles": roles}


def is_local(folder: str) -> bool:
    """Return whether the folder is in the file system of the ranks, and not in an object store."""
    protocol, mark, _ = folder.partition("://")
    return not mark or protocol in gangjobs_result.LOCAL_PROTOCOLS


def _below(url: str, folder: str) -> str:
    return f"{url.rstrip('/')}/{folder}"


def _require_volume(spec: GangSpec, path: PurePosixPath) -> None:
    from airflow_provider_gangjobs.gang.render.pod_template import user_template
    from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
    from airflow_provider_gangjobs.gang.spec import spec_of_role
    from airflow_provider_gangjobs.gang.validation.pod_checks import folder_problem
    from airflow_provider_gangjobs.gang.validation.validate import validate

    if validate(spec):
        return  # the submission reports these problems
    pods = {f" in the role {role}": spec_of_role(spec, role) for role in spec.roles} if spec.roles else {"": spec}
    for where, each in pods.items():
        if problem := folder_problem(user_template(each, manifest_of(each))["spec"], path, "results"):
            raise InvalidGangSpec((Problem("result_storage", f"{path} {problem}{where}", VOLUME_REMEDY),))


PROBE: Final = "write-test"
REMEDY: Final = "Check the URL, its connection and its permissions, and that the worker has the provider of the storage"


class TaskStorages(Struct, frozen=True):
    """The storages of one task run, by the rendered parameters `result_storage` and `checkpoints`."""

    result_url: str | None
    key: TaskKey
    log: Logger
    checkpoints: Any = None

    @property
    def own_result_folder(self) -> str | None:
        """Where the ranks may have stored results: the folder of this installation of Airflow."""
        return None if self.result_url is None else _below(self.result_url, self.key.folder)

    @property
    def result_folder(self) -> str | None:
        """The folder that the ranks know, in which each installation of Airflow has a folder."""
        return None if self.result_url is None else _below(self.result_url, self.key.task_folder)

    def check(self) -> None:
        """Check what this worker can know about the storages, before anything is created.

        Raises:
            InvalidGangSpec: a storage cannot be written.
        """
        checks.refuse(checks.storage_problems("result_storage", self.result_url))
        given = {"result_storage": self.result_url, "checkpoints": self.checkpoints}
        if (names := [name for name, url in given.items() if url is not None]) and not self.key.installation:
            self.log.warning(
                "This Airflow has no installation id. Another Airflow with the same %s overwrites the objects of this"
                " task if the ids of its DAG, run and task are equal. Set [gangjobs] installation_id",
                " or ".join(names),
            )
        if self.result_url is not None and not is_local(self.result_url):
            self._write_probe(self.result_url, "result_storage")
        if is_object_store(self.checkpoints):
            self._write_probe(self.checkpoints, "checkpoints")

    def _write_probe(self, url: str, parameter: str) -> None:
        """Write an object into a storage that the ranks write, with credentials of their own, and remove it.

        Raises:
            InvalidGangSpec: the storage does not exist, or this worker has no library for its protocol.
        """
        from airflow.sdk import ObjectStoragePath  # too expensive for a task without a storage

        from airflow_provider_gangjobs.airflow_api.task_log import mask

        try:
            probe = ObjectStoragePath(_below(url, self.key.folder)) / PROBE
            probe.parent.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"\n")
            probe.unlink()
        except (FileNotFoundError, ImportError, ValueError) as error:
            what = mask(f"{url} cannot be written: {type(error).__name__}: {error}")
            raise InvalidGangSpec((Problem(parameter, what, REMEDY),)) from error
        except Exception as error:  # a storage may raise anything
            what = mask(f"{type(error).__name__}: {error}")
            self.log.warning(
                "This worker cannot write %s, so nobody knows yet whether the ranks can (%s)", parameter, what
            )

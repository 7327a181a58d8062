"""`@task.gang_job`: a Python function that runs on every rank of a gang.

The decorator turns a function into the files and the command of a `GangJobOperator`. The files contain the function's
source, its arguments and the runner, so the image needs only Python. Arguments and results are JSON. Parsing a DAG file
loads no client library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from airflow.sdk import get_parsing_context
from airflow.sdk.bases.decorator import DecoratedOperator, _TaskDecorator
from airflow.sdk.definitions.mappedoperator import validate_mapping_kwargs
from msgspec.structs import replace as replace_struct

from airflow_provider_gangjobs.container_programs import PROGRAMS, python_runner
from airflow_provider_gangjobs.container_programs.python_runner import Gang
from airflow_provider_gangjobs.exceptions import AppFailed, InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.client_models import describe_value
from airflow_provider_gangjobs.gang.render.files import FILES_BYTES_MAX, files_of
from airflow_provider_gangjobs.gang.spec import RESULT_HELPER_FILE, GangSpec, Results
from airflow_provider_gangjobs.kube.well_known import FILES_PATH
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.parameters import python_function
from airflow_provider_gangjobs.parameters.checks import refuse
from airflow_provider_gangjobs.parameters.python_function import ExtractedSource, extract_source, without_gang
from airflow_provider_gangjobs.parameters.task_parameters import answers_to_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import Context, XComArg
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_provider_gangjobs.attempt.task_try import TaskTry
    from airflow_provider_gangjobs.parameters.triggerer_start import TriggererStart

RESERVED_FILES: Final = (
    python_runner.RUNNER_FILE,
    python_runner.FUNCTION_FILE,
    python_runner.ARGUMENTS_FILE,
    python_runner.TASK_FILE,
    RESULT_HELPER_FILE,
)
"""Names in `files` that the decorator uses itself."""
COMMAND_ERRORS: Final = frozenset({"StartError", "CommandNotFound", "CommandNotExecutable"})
"""Codes of the end of a rank whose command could not be run."""


class GangJobDecoratedOperator(DecoratedOperator, GangJobOperator):
    """A `GangJobOperator` whose ranks call a function of the DAG file.

    :param python_callable: The function.
    :param python: The Python of the image: a name, a path, or a list of words such as `["conda", "run", "python"]`.
        Defaults to `python`.
    :param results: What the task returns: `all` (the default of this class: a list of the return values, by rank),
        `rank0`, or `none`.
    :param multiple_outputs: Whether each item of the dict that the function returns becomes an XCom of its own.
        Applies only with `results="rank0"`. Defaults to false.
    :param resources: Resources of each rank, as in `GangJobOperator`.
    :param rank_resources: The same as `resources`, under a name whose value Airflow does not convert for mapped tasks.
    :param kwargs: The other parameters of `GangJobOperator`, except `command`, `args`, and `roles`.
    """

    custom_operator_name = "@task.gang_job"
    _source: ExtractedSource | None = None
    """The function, if the process has its source only."""
    _runner_path: ClassVar[Path] = Path(python_runner.__file__)
    """The program that a rank runs, which calls the function."""
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *GangJobOperator.template_fields)
    template_fields_renderers = {  # noqa: RUF012 - Airflow defines the name and type of this attribute
        **DecoratedOperator.template_fields_renderers,
        **GangJobOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        python: str | os.PathLike[str] | Sequence[str] = "python",
        results: Results | str = Results.ALL,
        multiple_outputs: bool = False,
        resources: Mapping[str, Any] | None = None,
        rank_resources: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        python = os.fspath(python) if isinstance(python, os.PathLike) else python
        refuse(_parameter_problems({**kwargs, "python": python}))
        words = [python] if isinstance(python, str) else [*python]
        super().__init__(
            python_callable=python_callable,
            results=results,
            # Airflow derives multiple_outputs from the function's annotation, which describes the result of one rank.
            multiple_outputs=multiple_outputs and results == Results.RANK0,
            resources=resources if rank_resources is None else rank_resources,
            command=[*words, f"{FILES_PATH}/{python_runner.RUNNER_FILE}"],
            **kwargs,
        )

    @property
    def is_async(self) -> bool:
        """False, because the rank awaits a coroutine function, not the worker."""
        return False

    @classmethod
    def for_trigger(cls, parameters: Mapping[str, Any], source: Mapping[str, Any] | None, **common: Any) -> Self:
        """Return the operator of a task whose trigger starts the gang. It has the source, and not the function."""
        operator = cls(python_callable=_called_on_ranks, **parameters, **common)
        operator._source = None if source is None else ExtractedSource(**source)
        return operator

    @property
    def triggerer_start(self) -> TriggererStart:
        """Whether the triggerer can start the gang, and with which arguments. Known when the whole DAG is known."""
        from airflow_provider_gangjobs.parameters.triggerer_start import TriggererStart, start_of

        args, kwargs = [*self.op_args], self.op_kwargs
        if reason := _needs_context(self.python_callable, args, kwargs):
            return TriggererStart(reason)
        assert self.command is not None, "the decorator sets the command"
        more = {"op_args": args, "op_kwargs": kwargs, "python": [*self.command[:-1]], "command": None}
        return start_of(self, extract_source(self.python_callable), **more)

    @contextmanager
    def _opened_try(self, context: Context, *, retry_for_s: float = 0.0) -> Iterator[TaskTry]:
        """Open the try with the variables of the context that the function has as parameters."""
        added = python_function.from_context(self.python_callable, [*self.op_args], self.op_kwargs, context)
        self.op_kwargs = {**self.op_kwargs, **added}
        with super()._opened_try(context, retry_for_s=retry_for_s) as this_try:
            try:
                yield this_try
            except AppFailed as error:
                if error.reason not in COMMAND_ERRORS or self.command is None:
                    raise
                words = " ".join(self.command[:-1])
                advice = f"{words!r} runs the function: give the image's own Python with python=, or another image."
                raise replace(error, message=f"{error.message} {advice}") from error

    def gang_spec(self, result_folder: str | None = None) -> GangSpec:
        """Return the spec that the rendered parameters describe, with the function and its arguments."""
        spec = super().gang_spec(result_folder)
        function_files = self._function_files()
        _check_arguments_size(files_of(spec), function_files)
        return replace_struct(spec, files={**spec.files, **function_files})

    def _function_files(self) -> dict[str, str]:
        source = self._source or extract_source(self.python_callable)
        args, kwargs = python_function.to_json_values(source.name, [*self.op_args], self.op_kwargs)
        return {
            python_runner.RUNNER_FILE: self._runner_path.read_text(python_runner.ENCODING),
            RESULT_HELPER_FILE: (PROGRAMS / RESULT_HELPER_FILE).read_text(python_runner.ENCODING),
            python_runner.FUNCTION_FILE: source.text,
            python_runner.ARGUMENTS_FILE: python_function.encode(
                source.name, args, kwargs, takes_gang=source.takes_gang
            ),
            python_runner.TASK_FILE: json.dumps({"file": source.file, "line": source.line, "results": self.results}),
        }


class GangJobTask(_TaskDecorator):  # type: ignore[type-arg]
    """Airflow's decorated function, except that `resources` are the gang's resources and not Airflow's."""

    def override(self, **kwargs: Any) -> GangJobTask:
        """Return the decorated function with other parameters."""
        overridden = super().override(**_rename_resources(kwargs))
        assert isinstance(overridden, GangJobTask), "Airflow copies the instance"
        return overridden

    def _expand(self, expand_input: Any, *, strict: bool) -> XComArg:
        """Expand as Airflow does, which would check the names of the parameters only when a mapped task runs."""
        with answers_to_unknown(self.operator_class, self.kwargs):
            validate_mapping_kwargs(self.operator_class, "partial", self.kwargs)
        # Airflow would take `resources` in default_args for its own. Without an entry, a worker gives them to the gang.
        expanded = _TaskDecorator._expand(super().override(resources=None), expand_input, strict=strict)  # noqa: SLF001
        del expanded.operator.partial_kwargs["resources"]  # type: ignore[attr-defined]
        self._start_from_trigger(expanded.operator, expand_input.value)  # type: ignore[attr-defined]
        return expanded

    def _start_from_trigger(self, operator: Any, values: Any) -> None:
        """Let the triggerer start the gangs of a mapped task, if it shall and can."""
        from airflow_provider_gangjobs.parameters.triggerer_start import wants_start, with_start

        if not wants_start(operator):
            return
        shared = operator.partial_kwargs
        mapped = {name: None for row in ([values] if isinstance(values, Mapping) else values) for name in row}
        if not _needs_context(self.function, shared["op_args"], {**shared["op_kwargs"], **mapped}):
            with_start(operator, values, extract_source(self.function))


def gang_job_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Run the function on every rank of a gang. This is `@task.gang_job`.

    The arguments and the result of the function must be JSON values. A parameter `gang` receives the rank's `Gang`. The
    function imports modules inside its body.

    :param python_callable: The function.
    :param multiple_outputs: Whether each item of the dict that the function returns becomes an XCom of its own.
        Requires `results="rank0"`. Defaults to the annotation of the function: true for `-> dict`.
    :param kwargs: Parameters of `GangJobDecoratedOperator`.
    :raises InvalidGangSpec: the function would not behave the same on a rank, or a parameter is invalid.
    """

    def decorate(function: Callable[..., Any]) -> GangJobTask:
        if get_parsing_context().task_id is None:
            extract_source(function)  # The process of a task does this when it submits the gang.
        options: dict[str, Any] = {} if multiple_outputs is None else {"multiple_outputs": multiple_outputs}
        return GangJobTask(
            function=without_gang(function),
            operator_class=GangJobDecoratedOperator,
            kwargs=_rename_resources(kwargs),
            **options,
        )

    if multiple_outputs and kwargs.get("results") != Results.RANK0:
        remedy = 'Also set results="rank0", or omit multiple_outputs'
        raise InvalidGangSpec((Problem("multiple_outputs", "requires the result of one rank", remedy),))
    decorator: Any = decorate if python_callable is None else decorate(python_callable)
    return decorator  # type: ignore[no-any-return]


def _called_on_ranks(*_: Any, **__: Any) -> None:
    """Stand for a function of which only the source is known. The ranks run the source."""


def _needs_context(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why the arguments of the function are known only to a worker; empty if the triggerer knows them."""
    from airflow.sdk import Context

    if added := python_function.from_context(function, args, kwargs, dict.fromkeys(Context.__annotations__)):
        return f"only a worker gives the function {', '.join(sorted(added))} of Airflow's context"
    return ""


def _rename_resources(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Rename `resources`, which Airflow converts for mapped tasks to an object with only cpus, ram, disk and gpus."""
    return {"rank_resources" if name == "resources" else name: value for name, value in kwargs.items()}


def _parameter_problems(kwargs: Mapping[str, Any]) -> Iterator[Problem]:
    python = kwargs["python"]
    is_words = isinstance(python, Sequence) and not isinstance(python, (bytes, bytearray))
    if not is_words or not python:
        remedy = 'Give a name, a path, or a list of words such as ["conda", "run", "python"]'
        yield Problem("python", "is empty" if is_words else f"is {describe_value(python)}", remedy)
    for name in ("command", "args"):
        if kwargs.get(name) is not None:
            remedy = "Give python= for another interpreter, or use GangJobOperator"
            yield Problem(name, "is set by the decorator", remedy)
    if kwargs.get("roles") is not None:
        yield Problem("roles", "are given, and every rank runs the same function", "Use GangJobOperator")
    if kwargs.get("launch") == "mpi":
        yield Problem("launch", "is 'mpi', and MPI runs a command on rank 0 only", "Use GangJobOperator")
    files = kwargs.get("files")
    for name in RESERVED_FILES:
        if isinstance(files, Mapping) and name in files:
            yield Problem(f"files.{name}", "is a reserved file name of the decorator", "Choose another name")


def _check_arguments_size(files: Mapping[str, str | bytes], function_files: Mapping[str, str]) -> None:
    size = _size(function_files[python_runner.ARGUMENTS_FILE])
    others = {**files, **function_files, python_runner.ARGUMENTS_FILE: ""}
    left = FILES_BYTES_MAX - sum(_size(name) + _size(content) for name, content in others.items())
    if size > left > 0:
        what = f"take {size} bytes as JSON, but the function and the other files leave {left} bytes"
        raise InvalidGangSpec(
            (Problem("the arguments", what, "Pass the address of the data, and read the data on the ranks"),)
        )


def _size(content: object) -> int:
    """Return the size in bytes; 0 for a value that is not a file's content, which the submission refuses later."""
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    return len(content) if isinstance(content, bytes) else 0


__all__ = ["Gang", "GangJobDecoratedOperator", "gang_job_task"]

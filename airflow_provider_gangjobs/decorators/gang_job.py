"""`@task.gang_job`: a Python function that runs on every rank of a gang.

The decorator translates: a function becomes the files and the command of a `GangJobOperator`, which does the rest.
The function's source, its arguments and the runner travel with the submission, so the image needs Python and nothing
else. Arguments and results are JSON. Parsing a DAG file loads no client library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.bases.decorator import DecoratedOperator, _TaskDecorator

from airflow_provider_gangjobs.decorators import arguments, runner
from airflow_provider_gangjobs.decorators.function import travelling, without_gang
from airflow_provider_gangjobs.decorators.runner import Gang
from airflow_provider_gangjobs.exceptions import AppFailed, InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.labels import FILES_PATH
from airflow_provider_gangjobs.gang.render.files import FILES_BYTES_MAX
from airflow_provider_gangjobs.gang.spec import GangSpec, Results
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent

OWN_FILES: Final = (runner.RUNNER, runner.FUNCTION, runner.ARGUMENTS, runner.TASK)
"""Names in `files` that are taken."""
NO_PYTHON: Final = frozenset({"StartError", "CommandNotFound", "CommandNotExecutable"})
"""Diagnoses of a rank whose command could not be run."""


class GangJobDecoratedOperator(DecoratedOperator, GangJobOperator):
    """A `GangJobOperator` whose ranks call a function of the DAG file.

    :param python: The image's Python: a name or path, or a list of words, such as `["conda", "run", "python"]`.
    :param results: What is returned: `all` (the default here: a list of what each rank returned), `rank0`, or `none`.
    """

    custom_operator_name = "@task.gang_job"
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *GangJobOperator.template_fields)
    template_fields_renderers = {  # noqa: RUF012 - Airflow's name and form
        **DecoratedOperator.template_fields_renderers,
        **GangJobOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        python: str | Sequence[str] = "python",
        results: Results | str = Results.ALL,
        multiple_outputs: bool = False,
        resources: Mapping[str, Any] | None = None,
        rank_resources: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if problems := [*_problems(kwargs)]:
            raise InvalidGangSpec(tuple(problems))
        words = [python] if isinstance(python, str) else [*python]
        super().__init__(
            python_callable=python_callable,
            results=results,
            # Airflow takes it from the function's annotation, which is about one rank.
            multiple_outputs=multiple_outputs and results == Results.RANK0,
            resources=rank_resources if resources is None else resources,
            command=[*words, f"{FILES_PATH}/{runner.RUNNER}"],
            **kwargs,
        )

    @property
    def is_async(self) -> bool:
        """Never here: a coroutine function is awaited by its rank."""
        return False

    def execute(self, context: Context) -> Any:
        """Complete the arguments by what the function asks of the context, and submit the gang."""
        self._ask(context)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """The same, since a gang that was disrupted is submitted again."""
        self._ask(context)
        return super().execute_complete(context, event)

    def _ask(self, context: Context) -> None:
        given = arguments.from_context(self.python_callable, [*self.op_args], self.op_kwargs, context)
        self.op_kwargs = {**self.op_kwargs, **given}

    def _spec(self) -> GangSpec:
        spec = super()._spec()
        shipped = self._shipped()
        _require_room(spec.files, shipped)
        return replace(spec, files={**spec.files, **shipped})

    def _shipped(self) -> dict[str, str]:
        """The files by which a rank can call the function."""
        function = travelling(self.python_callable)
        args, kwargs = arguments.plain(function.name, [*self.op_args], self.op_kwargs)
        return {
            runner.RUNNER: Path(runner.__file__).read_text(runner.ENCODED),
            runner.FUNCTION: function.text,
            runner.ARGUMENTS: arguments.encoded(function.name, args, kwargs, takes_gang=function.takes_gang),
            runner.TASK: json.dumps({"file": function.file, "line": function.line, "results": self.results}),
        }

    def _conclude(self, context: Context, event: GangEvent) -> Any:
        try:
            return super()._conclude(context, event)
        except AppFailed as error:
            if error.reason not in NO_PYTHON or self.command is None:
                raise
            words = " ".join(self.command[:-1])
            advice = f"The function is run by {words!r}: give the image's own Python with python=, or another image."
            raise replace(error, message=f"{error.message} {advice}") from error


class GangJobTask(_TaskDecorator):  # type: ignore[type-arg]
    """A decorated function, before it is called: Airflow's own, but for `resources`, by which Airflow means others."""

    def override(self, **kwargs: Any) -> GangJobTask:
        """The same function with other parameters."""
        overridden = super().override(**_renamed(kwargs))
        assert isinstance(overridden, GangJobTask), "it is a copy"
        return overridden


def gang_job_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Run the function on every rank of a gang. This is `@task.gang_job`.

    The function takes arguments and returns a value that JSON holds. If it has a parameter `gang`, that is the rank's
    `Gang`. What it imports it imports inside itself.

    :param python_callable: The function.
    :param multiple_outputs: With `results="rank0"`, whether each item of the dict that the function returns is an XCom
        of its own; if not given, as the function is annotated.
    :param kwargs: Parameters of `GangJobOperator`, and `python`.
    :raises InvalidGangSpec: the function would not be the same elsewhere, or a parameter is not accepted.
    """

    def decorate(function: Callable[..., Any]) -> GangJobTask:
        travelling(function)
        chosen: dict[str, Any] = {} if multiple_outputs is None else {"multiple_outputs": multiple_outputs}
        return GangJobTask(
            function=without_gang(function),
            operator_class=GangJobDecoratedOperator,
            kwargs=_renamed(kwargs),
            **chosen,
        )

    if multiple_outputs and kwargs.get("results") != Results.RANK0:
        remedy = 'Give results="rank0" too, or leave it out'
        raise InvalidGangSpec((Problem("multiple_outputs", "is about the value of one rank", remedy),))
    decorator: Any = decorate if python_callable is None else decorate(python_callable)
    return decorator  # type: ignore[no-any-return]


def _renamed(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """For mapped tasks Airflow turns `resources` into an object that knows of cpus, ram, disk and gpus only."""
    return {"rank_resources" if name == "resources" else name: value for name, value in kwargs.items()}


def _problems(kwargs: Mapping[str, Any]) -> list[Problem]:
    remedy = "Give python= for another interpreter, or use GangJobOperator"
    found = [
        Problem(name, "is made from the function", remedy)
        for name in ("command", "args")
        if kwargs.get(name) is not None
    ]
    files = kwargs.get("files")
    names = [name for name in OWN_FILES if isinstance(files, Mapping) and name in files]
    return found + [
        Problem(f"files.{name}", "is a name of the decorator's own", "Choose another name") for name in names
    ]


def _require_room(files: Mapping[str, str | bytes], shipped: Mapping[str, str]) -> None:
    """Say which part is too large, where that are the arguments."""
    size = _bytes(shipped[runner.ARGUMENTS])
    others = {**files, **shipped, runner.ARGUMENTS: ""}
    left = FILES_BYTES_MAX - sum(_bytes(name) + _bytes(content) for name, content in others.items())
    if size > left > 0:
        what = f"take {size} bytes as JSON, {left} are left beside the function and its files"
        raise InvalidGangSpec((Problem("the arguments", what, "Pass where the data is, and read it on the ranks"),))


def _bytes(content: object) -> int:
    """How many they are; of what is no content, the submission tells."""
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    return len(content) if isinstance(content, bytes) else 0


__all__ = ["Gang", "GangJobDecoratedOperator", "gang_job_task"]

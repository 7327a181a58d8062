"""Checks and reads the operator's parameters, before and after their templates are rendered.

This module never talks to a cluster. A templated parameter stays as it is until it is rendered. The submission checks
it then.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.client_models import describe_value
from airflow_provider_gangjobs.gang.spec import (
    DURATION_MAX_S,
    RESULTS_LIMIT_BYTES,
    GangSpec,
    WaitUntil,
    is_whole_number,
)

if TYPE_CHECKING:
    from enum import StrEnum


def refuse(problems: Iterable[Problem]) -> None:
    """Raise the error that lists the problems, if there are any.

    Raises:
        InvalidGangSpec: there are problems.
    """
    if found := tuple(problems):
        raise InvalidGangSpec(found)


def as_list(value: Any) -> Any:
    """Return a list of the lazy sequence by which Airflow passes the results of a mapped task, and any other value
    unchanged."""
    is_lazy = isinstance(value, Sequence) and not isinstance(value, (str, bytes, list, tuple))
    return list(value) if is_lazy else value


def append_item(spec: dict[str, Any], parameter: str, item: Mapping[str, Any]) -> None:
    """Add an item to a parameter that is a list."""
    items = spec.get(parameter) or ()
    if isinstance(items, (list, tuple)):  # otherwise known only when the task runs
        spec[parameter] = [*items, item]


def add_env(spec: dict[str, Any], variables: Mapping[str, Any]) -> None:
    """Add variables to `env` in its own form. A variable that the user gives stays."""
    env = spec.get("env") or {}
    if isinstance(env, Mapping):
        spec["env"] = {**variables, **env}
    if not isinstance(env, (list, tuple)):  # a mapping, or known only when the task runs
        return
    given = {item.get("name") for item in env if isinstance(item, Mapping)}
    added = [
        {"name": name, **(value if isinstance(value, Mapping) else {"value": value})}
        for name, value in variables.items()
        if name not in given
    ]
    spec["env"] = [*env, *added]


TEMPLATE_MARKS: Final = ("{{", "{%", "{#")
MANIFEST_SUFFIXES: Final = (".yaml", ".yml", ".json")
DISRUPTIONS_MAX: Final = 100
"""The name of the Job has three digits for the attempt, and retries add attempts, too."""
JOB_TEMPLATES: Final = frozenset({"manifest", "pod_overrides"})
"""Parameters that may supply what the other parameters lack: while one is a template, no parameter is checked."""


def is_templated(value: Any) -> bool:
    """Return whether the value is known only when the task runs: Jinja, an XComArg, a param or a callable."""
    if isinstance(value, str):
        return any(mark in value for mark in TEMPLATE_MARKS)
    if isinstance(value, Mapping):
        return any(map(is_templated, value.values()))
    if isinstance(value, (list, tuple, set)):
        return any(map(is_templated, value))
    return callable(value) or (hasattr(value, "resolve") and not isinstance(value, os.PathLike))


def is_manifest_file(manifest: Any) -> bool:
    """Return whether the manifest is the path of a file. YAML text has several lines."""
    return isinstance(manifest, str) and "\n" not in manifest.strip() and manifest.endswith(MANIFEST_SUFFIXES)


_DEPENDS_ON: Final = {"checkpoints": {"volumes", "volume_mounts"}, "keep_checkpoints": {"checkpoints"}}
"""Parameters whose rules read other parameters, in the order in which they depend on each other."""


def spec_problems(parameters: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return the problems of parameters of `GangSpec` that rendering their templates cannot resolve.

    If any parameter is a template, only the other parameters are checked that do not depend on it, and no parameter is
    reported as missing.
    """
    # Importing this module must be cheap, so the rules are imported with the first operator of a DAG file.
    from airflow_provider_gangjobs.gang.validation.parsed_spec import parameter_in
    from airflow_provider_gangjobs.gang.validation.validate import validate

    templated = {name for name, value in parameters.items() if is_templated(value)}
    if is_manifest_file(parameters.get("manifest")):
        templated.add("manifest")
    if templated & JOB_TEMPLATES:
        return ()
    for name, others in _DEPENDS_ON.items():
        if not templated.isdisjoint(others):
            templated.add(name)
    known = {name: value for name, value in parameters.items() if name not in templated and value is not None}
    if isinstance(known.get("files"), Mapping):
        # The files that paths name are read when the task runs.
        known["files"] = {name: "" if is_file_path(value) else value for name, value in known["files"].items()}
    problems = validate(GangSpec(**known))
    return problems if not templated else tuple(p for p in problems if parameter_in(p.path) in known)


def to_seconds(value: Any) -> Any:
    """Return a timedelta in seconds, and any other value unchanged."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def to_whole_seconds(value: Any) -> Any:
    """Return a timedelta in whole seconds, which is the unit of Kubernetes, and any other value unchanged.

    A part of a second counts as a whole one, because 0 seconds mean at once.
    """
    return math.ceil(value.total_seconds()) if isinstance(value, timedelta) else value


def duration_problems(name: str, value: Any) -> Iterator[Problem]:
    """Yield a problem if the value is neither `None` (no limit) nor a positive number of seconds, of at most ten
    years."""
    if value is None:
        return
    remedy = "Give a timedelta, seconds, or None for no limit"
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        yield Problem(name, f"is {describe_value(value)}, not a positive duration", remedy)
    elif value > DURATION_MAX_S:
        yield Problem(name, f"is {value!r} seconds, and ten years are the limit", remedy)


def flag_problems(name: str, value: Any) -> Iterator[Problem]:
    """Yield a problem if the value is neither a bool nor 0 or 1. The text "False", or a template, would mean true."""
    if not isinstance(value, int) or value not in (0, 1):
        yield Problem(name, f"is {value!r:.80}", "Give True or False")


def conn_id_problems(name: str, value: Any) -> Iterator[Problem]:
    """Yield a problem if the value is not the id of a connection that rendering its template may give."""
    if (not isinstance(value, str) or not value) and not is_templated(value):
        yield Problem(name, f"is {describe_value(value)}", "Give the id of a connection of Airflow, or leave it out")


def to_url(given: Any) -> Any:
    """Return the URL of an `ObjectStoragePath` or a path of `pathlib`, and any other value unchanged.

    The operator keeps the URL, because Airflow renders templates of texts only, and stores them with the DAG.
    """
    if isinstance(given, os.PathLike):
        return os.fspath(given)
    # An object storage path is no `os.PathLike`. The import of its class is too expensive for a DAG file.
    return str(given) if hasattr(given, "protocol") and hasattr(given, "conn_id") else given


def storage_problems(parameter: str, url: Any) -> Iterator[Problem]:
    """Yield the problem of a storage that rendering its template cannot resolve. A worker checks the storage itself."""
    if url is None or is_templated(url):
        return
    remedy = f"Give an ObjectStoragePath or its URL, such as s3://aws_default@bucket/{parameter.partition('_')[0]}s"
    if not isinstance(url, str) or not url:
        yield Problem(parameter, f"is {url!r:.80}, not the URL of a folder", remedy)
    elif "://" not in url and not os.path.isabs(url):
        yield Problem(parameter, f"is {url!r:.80}, a relative path, which means another folder in each process", remedy)


def disruption_problems(name: str, value: Any) -> Iterator[Problem]:
    """Yield a problem if the value is not a number of attempts."""
    if not is_whole_number(value, 0, DISRUPTIONS_MAX):
        what = f"is {value!r}, not a whole number from 0 to {DISRUPTIONS_MAX}"
        yield Problem(name, what, "Give how often in a row a gang that was lost to a disruption is submitted again")


def results_limit_problems(name: str, value: Any) -> Iterator[Problem]:
    """Yield a problem if the value is not a number of bytes."""
    if not is_whole_number(value, 1):
        remedy = f"Give whole bytes; the default is {RESULTS_LIMIT_BYTES:,}"
        yield Problem(name, f"is {value!r}, not a number of bytes", remedy)


def choice_problems(kind: type[StrEnum], name: str, value: Any) -> Iterator[Problem]:
    """Yield a problem if the value is not one of an enumeration."""
    if value not in list(kind):
        yield Problem(name, f"is {value!r}", f"Choose one of {', '.join(kind)}")


def to_exit_codes(given: Any) -> tuple[Any, ...]:
    """Return the exit codes of one code, several codes, or none."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (list, tuple, set, frozenset, range)) else (given,)


def exit_code_problems(name: str, codes: Sequence[Any]) -> Iterator[Problem]:
    """Yield a problem if a code is not one with which a program fails."""
    if not all(is_whole_number(code, 1, 255) for code in codes):
        what = f"is {list(codes)!r}, which are not all numbers from 1 to 255"
        yield Problem(name, what, "Give exit codes of a program that fails")


def to_names(given: Any) -> Any:
    """Return one name, or several, as a tuple, and any other value unchanged."""
    return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else given


def build_spec(given: Mapping[str, Any], read: Callable[[str], bytes]) -> GangSpec:
    """Return the spec that the rendered parameters describe. A parameter that is `None` was not given.

    :param read: Returns the content of the file at a path.

    Raises:
        InvalidGangSpec: a file could not be read. The submission checks everything else.
    """
    fields = _with_types({name: value for name, value in given.items() if value is not None})
    if isinstance(fields.get("roles"), Mapping):
        fields["roles"] = {name: _with_types(role) for name, role in fields["roles"].items()}
    if "files" in fields:
        _require_mapping(fields["files"])
        fields["files"], problems = read_files(fields["files"], read)
        refuse(problems)
    return GangSpec(**fields)


def _require_mapping(files: Any) -> None:
    """Refuse another value of `files`, which a template or an XCom has given, as the validation of the spec does.

    Raises:
        InvalidGangSpec: the value is no mapping.
    """
    if not isinstance(files, Mapping):
        from airflow_provider_gangjobs.gang.validation.validate import validate

        refuse(problem for problem in validate(GangSpec(files=files)) if problem.path == "files")


_TEXTS: Final = ("command", "args", "env", "labels", "annotations")


def _with_types(parameters: Any) -> Any:
    """Return the parameters of a gang or a role with the numbers that templates have rendered as text, and the texts
    that they have rendered as numbers.

    With `render_template_as_native_obj`, Airflow makes a number of "{{ ds_nodash }}".
    """
    if not isinstance(parameters, Mapping):
        return parameters
    numbers = {name: parse_whole_number(parameters[name]) for name in ("workers", "min_workers") if name in parameters}
    return {**parameters, **numbers, **{name: _with_texts(parameters[name]) for name in _TEXTS if name in parameters}}


def _with_texts(value: Any) -> Any:
    """Return a list or a mapping with its numbers as text, except for booleans."""
    if isinstance(value, Mapping):
        return {name: _to_text(item) for name, item in value.items()}
    return [_to_text(item) for item in value] if isinstance(value, (list, tuple)) else value


def _to_text(item: Any) -> Any:
    return str(item) if isinstance(item, (int, float)) and not isinstance(item, bool) else item


def parse_whole_number(value: Any) -> Any:
    """Return the number of at most 64 bits that a template has rendered as text, and any other value unchanged."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,19}\s*", value) else value


def is_file_path(value: Any) -> bool:
    """Return whether an entry of `files` is a path. Text has a line end."""
    return isinstance(value, os.PathLike) or (isinstance(value, str) and "\n" not in value)


def read_files(files: Mapping[str, Any], read: Callable[[str], bytes]) -> tuple[dict[str, str | bytes], list[Problem]]:
    """Return the content of each entry of `files`, and a problem for each file that cannot be read.

    :param files: The parameter of the operator: name -> path, text, or bytes.
    :param read: Returns the content of the file at a path.
    """
    contents: dict[str, str | bytes] = {}
    problems: list[Problem] = []
    for name, value in files.items():
        if not is_file_path(value):
            contents[name] = value  # the validation of the spec refuses values that are neither text nor bytes
            continue
        path = os.fspath(value)
        try:
            contents[name] = _decode_if_text(read(path))
        except OSError as error:
            remedy = "Give a path relative to the folder of the DAG, or the text itself with a line end"
            problems.append(Problem(f"files.{name}", f"{path!r} cannot be read: {error.strerror}", remedy))
    return contents, problems


def _decode_if_text(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def search_folders(dag_folder: str | None, template_searchpath: str | Iterable[str] | None) -> Iterator[str]:
    """Yield the folders in which paths are looked up: the folder of the DAG, then the DAG's `template_searchpath`."""
    if dag_folder:
        yield dag_folder
    yield from [template_searchpath] if isinstance(template_searchpath, str) else template_searchpath or ()


def read_file(path: str, folders: Iterable[str]) -> bytes:
    """Return the content of the file in the first folder that contains the path. An absolute path needs no folder.

    Raises:
        OSError: no folder contains the file, or the file cannot be read.
    """
    for full in [path] if os.path.isabs(path) else [os.path.join(folder, path) for folder in folders]:
        if os.path.exists(full):
            with open(full, "rb") as file:
                return file.read()
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def limit_problems(task: Any) -> tuple[Problem, ...]:
    """Return the problems of limits that nobody enforces after the task has ended.

    The API server enforces the sum of `assemble_timeout` and `run_timeout` (`gang.render.placement`).
    """
    wait_until = task.wait_until
    if wait_until not in (WaitUntil.SUBMITTED, WaitUntil.RUNNING):
        return ()
    what = f'is not enforced after the end of the task with wait_until="{WaitUntil(wait_until)}"'
    both = "Give both assemble_timeout and run_timeout, which the API server enforces together"
    is_submitted = wait_until == WaitUntil.SUBMITTED
    has_assemble, has_run = "assemble_timeout" in task.time_limits, "run_timeout" in task.time_limits
    checks = (
        ("max_disruptions", task.max_disruptions, "Let a task that waits for the end submit further attempts"),
        ("queue_timeout", is_submitted and "queue_timeout" in task.time_limits, 'Use wait_until="running"'),
        ("assemble_timeout", is_submitted and has_assemble and not has_run, both),
        ("run_timeout", has_run and not has_assemble, both),
    )
    return tuple(Problem(name, what, remedy) for name, is_wrong, remedy in checks if is_wrong)


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
CALLBACK_REMEDY: Final = (
    "Give a class of a module that worker and triggerer can import, such as a module of the plugins folder"
)


def refuse_triggerer(given: Mapping[str, Any]) -> None:
    """Refuse the parameters of `GangJobOperator` that let a triggerer start or end a task, for a sensor.

    A sensor resolves references to other tasks when it starts, and reads results and raises the errors of gangs when it
    ends. Airflow answers most of these requests only to workers.

    Raises:
        InvalidGangSpec: one of them is given.
    """
    what = "is a parameter of tasks that run a gang, and only a worker resolves and reads the gangs of other tasks"
    remedy = "Leave it out: the sensor waits in the triggerer, and uses a worker before and after the wait"
    refuse(Problem(name, what, remedy) for name in ("start_from_trigger", "end_from_trigger") if name in given)


def callback_paths(given: Any) -> tuple[Any, ...]:
    """Return the dotted paths of one class or path, several, or none. A value that is neither a class
    nor a path is returned unchanged."""
    items = () if given is None else given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    return tuple(f"{item.__module__}.{item.__qualname__}" if isinstance(item, type) else item for item in items)


def callback_problems(name: str, paths: Sequence[Any]) -> tuple[Problem, ...]:
    """Return the problems of paths that no other process can import."""
    return tuple(Problem(name, what, CALLBACK_REMEDY) for path in paths if (what := _path_problem(path)))


def _path_problem(path: Any) -> str:
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
    problems = []
    for path in paths:
        try:
            load_callback(path)
        except Exception as error:  # the import of a module may raise anything
            problems.append(
                Problem("callbacks", f"{path} cannot be used: {type(error).__name__}: {error}", CALLBACK_REMEDY)
            )
    refuse(problems)

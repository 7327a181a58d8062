"""The operator's parameters: what can be said about them before, and after, their templates are rendered.

Nothing here talks to a cluster. What a template will bring is not judged before it is rendered.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.spec import GangSpec

TEMPLATE_MARKS: Final = ("{{", "{%", "{#")
MANIFEST_SUFFIXES: Final = (".yaml", ".yml", ".json")
DISRUPTIONS_MAX: Final = 100
"""The Job's name has three digits for the attempt, and retries make attempts, too."""
# While one of these is not rendered, nothing can be said about what the others lack.
JOB_TEMPLATES: Final = frozenset({"manifest", "pod_overrides"})


def is_templated(value: Any) -> bool:
    """Whether the value is only known when the task runs: Jinja, an XComArg, a param or a callable."""
    if isinstance(value, str):
        return any(mark in value for mark in TEMPLATE_MARKS)
    if isinstance(value, Mapping):
        return any(map(is_templated, value.values()))
    if isinstance(value, (list, tuple, set)):
        return any(map(is_templated, value))
    return callable(value) or (hasattr(value, "resolve") and not isinstance(value, os.PathLike))


def is_manifest_file(manifest: Any) -> bool:
    """Whether the manifest is named by a path. YAML text has several lines."""
    return isinstance(manifest, str) and "\n" not in manifest.strip() and manifest.endswith(MANIFEST_SUFFIXES)


def author_problems(
    spec: Mapping[str, Any], *, choices: Mapping[str, Any], durations: Mapping[str, Any], max_disruptions: Any
) -> tuple[Problem, ...]:
    """What is wrong with an operator's parameters that no template can make right. `spec` are those of `GangSpec`."""
    # Loaded with a DAG's first operator, not with this module.
    from airflow_provider_gangjobs.gang.validation.validate import validate_choices

    return (
        *validate_choices(**choices),
        *duration_problems(**durations),
        *disruption_problems(max_disruptions),
        *static_problems(spec),
    )


def static_problems(parameters: Mapping[str, Any]) -> tuple[Problem, ...]:
    """What is wrong whatever the templates bring. `parameters` are those of `GangSpec`.

    With templates about, only parameters that hold none are judged, and nothing is said to be missing.
    """
    # Loaded with a DAG's first operator, not with this module.
    from airflow_provider_gangjobs.gang.validation.validate import validate

    templated = {name for name, value in parameters.items() if is_templated(value)}
    if is_manifest_file(parameters.get("manifest")):
        templated.add("manifest")
    if templated & JOB_TEMPLATES:
        return ()
    known = {name: value for name, value in parameters.items() if name not in templated and value is not None}
    if isinstance(known.get("files"), Mapping):
        # What a path leads to is read where the task runs.
        known["files"] = {name: "" if is_file_path(value) else value for name, value in known["files"].items()}
    problems = validate(GangSpec(**known))
    return problems if not templated else tuple(p for p in problems if _root(p.path) in known)


def _root(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def to_seconds(value: Any) -> Any:
    """A timedelta in seconds; anything else as it is."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def to_whole_seconds(value: Any) -> Any:
    """A timedelta in whole seconds, as Kubernetes counts; anything else as it is."""
    return int(value.total_seconds()) if isinstance(value, timedelta) else value


def duration_problems(**durations: Any) -> list[Problem]:
    """Those that are neither `None` (no limit) nor a number of seconds above zero."""
    return [
        Problem(name, f"is {value!r}, no duration above zero", "Give a timedelta, seconds, or None for no limit")
        for name, value in durations.items()
        if value is not None and not _is_duration(value)
    ]


def _is_duration(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def disruption_problems(max_disruptions: Any) -> list[Problem]:
    """That it is no number of attempts."""
    is_number = isinstance(max_disruptions, int) and not isinstance(max_disruptions, bool)
    if is_number and 0 <= max_disruptions <= DISRUPTIONS_MAX:
        return []
    what = f"is {max_disruptions!r}, no whole number from 0 to {DISRUPTIONS_MAX}"
    return [Problem("max_disruptions", what, "Say how often in a row a gang may be lost and submitted again")]


def build_spec(given: Mapping[str, Any], read: Callable[[str], bytes]) -> GangSpec:
    """What rendered parameters ask for; `None` means that nothing was given.

    Raises:
        InvalidGangSpec: a file could not be read. The rest is judged by the submission.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    asked |= {name: parse_whole_number(asked[name]) for name in ("workers", "min_workers") if name in asked}
    if "files" in asked:
        asked["files"], problems = read_files(asked["files"], read)
        if problems:
            raise InvalidGangSpec(tuple(problems))
    return GangSpec(**asked)


def parse_whole_number(value: Any) -> Any:
    """A number that a template rendered as text, as a number; anything else as it is."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value) else value


def is_file_path(value: Any) -> bool:
    """Whether an entry of `files` names a file. Text has a line end."""
    return isinstance(value, os.PathLike) or (isinstance(value, str) and "\n" not in value)


def read_files(files: Mapping[str, Any], read: Callable[[str], bytes]) -> tuple[dict[str, str | bytes], list[Problem]]:
    """Contents of `files`, where entries that name a file are read, and what could not be read."""
    contents: dict[str, str | bytes] = {}
    problems: list[Problem] = []
    for name, value in files.items():
        if not is_file_path(value):
            contents[name] = value  # content; another type is refused with the rest of the spec
            continue
        path = os.fspath(value)
        try:
            contents[name] = _text_if_possible(read(path))
        except OSError as error:
            remedy = "Give a path from the DAG's folder, or the text itself with a line end"
            problems.append(Problem(f"files.{name}", f"{path!r} cannot be read: {error.strerror}", remedy))
    return contents, problems


def _text_if_possible(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def search_folders(dag_folder: str | None, template_searchpath: str | Iterable[str] | None) -> Iterator[str]:
    """Where paths are looked up: the DAG's folder first, then the DAG's `template_searchpath`."""
    if dag_folder:
        yield dag_folder
    yield from [template_searchpath] if isinstance(template_searchpath, str) else template_searchpath or ()


def read_file(path: str, folders: Iterable[str]) -> bytes:
    """The file, from the first folder that has it; an absolute path as it is.

    Raises:
        OSError: no folder has it, or it cannot be read.
    """
    for full in [path] if os.path.isabs(path) else [os.path.join(folder, path) for folder in folders]:
        if os.path.exists(full):
            with open(full, "rb") as file:
                return file.read()
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

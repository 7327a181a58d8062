"""The parameter `callbacks`: classes, which a deferral stores as dotted paths because the triggerer calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem

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
    from airflow_provider_gangjobs.triggers.callbacks import load_callback

    problems = []
    for path in paths:
        try:
            load_callback(path)
        except Exception as error:  # the import of a module may raise anything
            problems.append(Problem("callbacks", f"{path} cannot be used: {type(error).__name__}: {error}", REMEDY))
    if problems:
        raise InvalidGangSpec(tuple(problems))


__all__ = ["path_problems", "require_importable", "to_paths"]

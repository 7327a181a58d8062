"""Arguments that travel: as JSON, so that any Python can read them, and nothing is ever unpickled.

They arrive as they were given, but for tuples and other sequences, which arrive as lists. What JSON would change or
cannot hold is refused before anything is created, by its path.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_REMEDIES: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (date, "Pass its isoformat(), or a template such as '{{ ts }}'"),
    (timedelta, "Pass its total_seconds()"),
    (PathLike, "Pass it as text: str(path)"),
    ((set, frozenset), "Pass it as a sorted list"),
    ((bytes, bytearray), "Pass it as text, or put it into `files`"),
)
_ANY_REMEDY: Final = "Pass text, numbers, lists and dicts, or the address of what is stored elsewhere"


def plain(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments as JSON holds them.

    Raises:
        InvalidGangSpec: with each part that JSON would change or cannot hold.
    """
    problems: list[Problem] = []
    values = [_plain(value, f"{function}: argument {position}", problems) for position, value in enumerate(args, 1)]
    named = {name: _plain(value, f"{function}: argument {name}", problems) for name, value in kwargs.items()}
    if problems:
        raise InvalidGangSpec(tuple(problems))
    return values, named


def from_context(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: Mapping[str, Any]
) -> dict[str, Any]:
    """Variables of Airflow's context that the function names as parameters and was not given, such as `ds`."""
    signature = inspect.signature(function)
    given = signature.bind_partial(*args, **kwargs).arguments
    return {name: context[name] for name in signature.parameters if name not in given and name in context}


def encoded(function: str, args: list[Any], kwargs: dict[str, Any], *, takes_gang: bool) -> str:
    """What the runner reads, from plain values."""
    # In ASCII, since names of files that are no UTF-8 are text to Python, and to nobody else.
    return json.dumps({"function": function, "args": args, "kwargs": kwargs, "gang": takes_gang})


def _plain(value: Any, path: str, problems: list[Problem]) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        problems += _keys(value, path)
        return {key: _plain(item, f"{path}[{key!r}]", problems) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        # Also what Airflow gives for the results of a mapped task.
        return [_plain(item, f"{path}[{index}]", problems) for index, item in enumerate(value)]
    remedy = next((remedy for kinds, remedy in _REMEDIES if isinstance(value, kinds)), _ANY_REMEDY)
    kind = type(value)
    problems.append(Problem(path, f"is a {kind.__module__}.{kind.__qualname__}, which JSON does not hold", remedy))
    return None


def _keys(value: Mapping[Any, Any], path: str) -> Iterator[Problem]:
    for key in value:
        if not isinstance(key, str):
            yield Problem(path, f"has the key {key!r:.80}, which JSON would turn into text", "Give text as keys")

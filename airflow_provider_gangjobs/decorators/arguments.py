"""Encode the arguments of a function as JSON, so that any Python can read them and nothing is unpickled.

A rank receives the values that the task was given, except that tuples and other sequences become lists. A value that
JSON would change or cannot represent is refused before anything is created, with the path of the value.
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
_DEFAULT_REMEDY: Final = "Pass text, numbers, lists and dicts, or the address of data in storage"


def to_json_values(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments as values of JSON's types.

    Raises:
        InvalidGangSpec: JSON would change or cannot represent a part; the exception names each such part.
    """
    problems: list[Problem] = []
    values = [
        _to_json_value(value, f"{function}: argument {position}", problems) for position, value in enumerate(args, 1)
    ]
    named = {name: _to_json_value(value, f"{function}: argument {name}", problems) for name, value in kwargs.items()}
    if problems:
        raise InvalidGangSpec(tuple(problems))
    return values, named


def from_context(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the variables of Airflow's context, such as `ds`, for the function's parameters without an argument."""
    signature = inspect.signature(function)
    given = signature.bind_partial(*args, **kwargs).arguments
    return {name: context[name] for name in signature.parameters if name not in given and name in context}


def encode(function: str, args: list[Any], kwargs: dict[str, Any], *, takes_gang: bool) -> str:
    """Return the JSON text that the runner reads. `args` and `kwargs` come from `to_json_values`."""
    # The text is ASCII, because Python represents file names that are not UTF-8 as text that UTF-8 cannot encode.
    return json.dumps({"function": function, "args": args, "kwargs": kwargs, "gang": takes_gang})


def _to_json_value(value: Any, path: str, problems: list[Problem]) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        problems += _key_problems(value, path)
        return {key: _to_json_value(item, f"{path}[{key!r}]", problems) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        # The sequences include the lazy one by which Airflow passes the results of a mapped task.
        return [_to_json_value(item, f"{path}[{index}]", problems) for index, item in enumerate(value)]
    remedy = next((remedy for kinds, remedy in _REMEDIES if isinstance(value, kinds)), _DEFAULT_REMEDY)
    kind = type(value)
    problems.append(Problem(path, f"is a {kind.__module__}.{kind.__qualname__}, which JSON cannot represent", remedy))
    return None


def _key_problems(value: Mapping[Any, Any], path: str) -> Iterator[Problem]:
    for key in value:
        if not isinstance(key, str):
            yield Problem(path, f"has the key {key!r:.80}, which JSON would turn into text", "Give text as keys")

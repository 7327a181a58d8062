"""Encode the arguments of a function as JSON, so that any Python can read them and nothing is unpickled.

A rank receives the values that the task was given, except that tuples and other sequences become lists. A value that
JSON would change or cannot represent is refused before anything is created, with the path of the value.

Extract the source of a function as a module that another Python can run.

The module contains only the source of the function. Names of the DAG file and variables of an enclosing function do
not exist on a rank. A function that uses them is refused when the DAG file is parsed, before a rank could fail with a
`NameError`.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import symtable
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from os import PathLike
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.parameters.checks import refuse

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
    refuse(problems)
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


GANG: Final = "gang"
"""The parameter whose value the runner supplies."""
HEADER: Final = "from __future__ import annotations\n"
"""Annotations use imports of the DAG file, so a rank must not evaluate annotations."""
INDENTED: Final = "if True:\n"
"""This line keeps the indentation of a nested function. Dedenting would change multi-line strings in the function."""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_MODULE_NAMES: Final = ("Gang", "__file__", "__name__", "__doc__", "__spec__", "__builtins__")
_PROVIDED: Final = frozenset({*dir(builtins), *_MODULE_NAMES, "__class__"})
"""Names that a rank has. The symbol table has `__class__` for each function that calls `super`."""


@dataclass(frozen=True)
class ExtractedSource:
    """The source of a function, as a module for the ranks."""

    name: str
    text: str
    """The source of a module that contains only the function."""
    file: str
    line: int
    """The line of the DAG file that corresponds to the first line of `text`."""
    takes_gang: bool
    """Whether the function has the parameter `gang`."""


def extract_source(function: Callable[..., Any]) -> ExtractedSource:
    """Return the function's source without its decorators.

    Raises:
        InvalidGangSpec: the function would not behave the same on a rank.
    """
    if problem := _callable_problem(function):
        raise InvalidGangSpec((problem,))
    assert isinstance(function, FunctionType), "_callable_problem accepts only functions"
    try:
        lines, first_line = inspect.getsourcelines(function)
    except OSError as error:
        remedy = "Write it in a file: the ranks run its source"
        raise InvalidGangSpec((Problem(function.__name__, f"has no source: {error}", remedy),)) from error
    indent = INDENTED if lines[0][:1].isspace() else ""
    node = _definition(indent + "".join(lines))
    skipped = node.lineno - 1 - len(indent.splitlines())
    header = HEADER + indent
    text = header + "".join(lines[skipped:])
    refuse((*_gang_parameter_problems(node), *_free_name_problems(text, node.name, function)))
    return ExtractedSource(
        name=node.name,
        text=text,
        file=function.__code__.co_filename,
        line=first_line + skipped - len(header.splitlines()),
        takes_gang=any(argument.arg == GANG for argument in _arguments(node)),
    )


def without_gang(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the signature that a DAG file calls: without the parameter `gang`."""
    if not isinstance(function, FunctionType):
        return function
    signature = inspect.signature(function)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != GANG]
    # The copy has its own attributes, so that the signature of the original function does not change.
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__doc__, copy.__module__, copy.__qualname__ = function.__doc__, function.__module__, function.__qualname__
    copy.__dict__.update(function.__dict__, __signature__=signature.replace(parameters=parameters))
    return copy


def _callable_problem(function: Any) -> Problem | None:
    name = getattr(function, "__name__", None) or type(function).__name__
    if not isinstance(function, FunctionType):
        return Problem(name, f"is a {type(function).__qualname__}", "Decorate a function that is written with def")
    if name == "<lambda>":
        return Problem(name, "has no name by which a rank can call it", "Write it with def")
    if hasattr(function, "__wrapped__"):
        remedy = "Use it inside the function, or put @task.gang_job directly above def"
        return Problem(name, "is wrapped by another decorator, which does not exist on the ranks", remedy)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return Problem(name, "is a generator, but a rank returns one result", "Return a value")
    return None


def _definition(text: str) -> _Definition:
    return next(node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _arguments(node: _Definition) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _gang_parameter_problems(node: _Definition) -> Iterator[Problem]:
    """Check that `gang` follows all positional parameters, because the runner passes `gang` by name."""
    only = [argument.arg for argument in node.args.posonlyargs]
    positional = only + [argument.arg for argument in node.args.args]
    is_last = positional[-1:] == [GANG] and node.args.vararg is None and GANG not in only
    if GANG in positional and not is_last:
        yield Problem(node.name, "has parameters after `gang`", "Write it last, after a star: `*, gang: Gang`")


def _free_name_problems(text: str, path: str, function: FunctionType) -> Iterator[Problem]:
    enclosing = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name in sorted(_free_names(text) - _PROVIDED):
        if name in enclosing:
            value = _cell_value(enclosing[name])
            yield _free_name_problem(path, name, value, "the enclosing function")
        else:
            yield _free_name_problem(path, name, function.__globals__.get(name), "the DAG file")


def _cell_value(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The variable has no value yet.
        return None


def _free_name_problem(path: str, name: str, value: Any, place: str) -> Problem:
    if isinstance(value, ModuleType):
        remedy = f"Import {value.__name__} inside the function"
    elif callable(value):
        remedy = "Define or import it inside the function, or put it into a module that you name in `files`"
    else:
        remedy = "Pass it as an argument"
    return Problem(path, f"uses {name!r} of {place}, which does not exist on the ranks", remedy)


def _free_names(text: str) -> set[str]:
    """Return the names that the module of a function looks up, and does not define. `HEADER` leaves annotations out."""
    module = symtable.symtable(text, "<function>", "exec")
    tables = list(_all_tables(module))
    own = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned()}
    own |= {s.get_name() for table in tables for s in table.get_symbols() if s.is_declared_global() and s.is_assigned()}
    looked_up = {s.get_name() for table in tables for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return looked_up - own


def _all_tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _all_tables(child)

"""Functions that travel, and those that would not be the same elsewhere."""

from __future__ import annotations

import argparse
import ast
import asyncio.base_events
import dis
import functools
import inspect
import json
import statistics
import tarfile
import typing
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.decorators.function import (
    HEADER,
    INDENTED,
    Travelling,
    _definition,
    _used,
    travelling,
    without_gang,
)
from airflow_provider_gangjobs.exceptions import InvalidGangSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.decorators.runner import Gang

    Number = int

LIMIT = 3
HERE = __file__


def helper() -> int:
    return 1


def decorated(function: Any) -> Any:
    return function


def forgetful(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def run(sent: Travelling, *args: Any) -> Any:
    """What the function returns in a module that holds nothing else."""
    module: dict[str, Any] = {}
    exec(compile(sent.text, sent.file, "exec"), module)
    return module[sent.name](*args)


# -- functions that travel ------------------------------------------------------------------------------------


@decorated
@decorated
def at_the_top(n: int, *, gang: Gang | None = None) -> list[Number]:
    """Uses what is its own, and annotates with what is not."""
    import math

    numbers: list[Number] = []

    def inner(k: int) -> int:
        return k if k == 0 else inner(k - 1) + n

    class Total:
        value: Number = inner(2)

    return [*numbers, *[math.floor(x) for x in (Total.value, len(__name__ and str(n)))]]


def recursive(n: int) -> int:
    return 1 if n == 0 else n * recursive(n - 1)


def counting() -> int:
    global seen  # type: ignore[name-defined]
    seen = 1  # type: ignore[name-defined]
    return int(seen)


async def awaiting() -> int:
    return 1


def test_function_runs_without_what_is_around_it() -> None:
    assert run(travelling(at_the_top), 4) == [8, 1]
    assert run(travelling(recursive), 4) == 24
    assert run(travelling(counting)) == 1


def test_function_inside_another_one_keeps_its_texts_as_they_are() -> None:
    def nested() -> str:
        return """a
  b
    c"""

    assert run(travelling(nested)) == nested() == "a\n  b\n    c"


def test_lines_are_those_of_the_dag_file() -> None:
    def nested() -> None:
        raise KeyError

    for function in (at_the_top, recursive, nested):
        sent = travelling(function)
        here = Path(HERE).read_text().splitlines()[sent.line - 1 :]
        lines = sent.text.splitlines()
        header = next(index for index, line in enumerate(lines) if line.lstrip().startswith("def "))
        assert lines[header:] == here[header : len(lines)]


def test_gang_is_asked_for_by_a_parameter() -> None:
    assert travelling(at_the_top).takes_gang
    assert not travelling(recursive).takes_gang


def test_coroutine_function_travels() -> None:
    assert travelling(awaiting).text.endswith("async def awaiting() -> int:\n    return 1\n")


# -- functions that do not ------------------------------------------------------------------------------------


def uses_a_constant(n: int) -> bool:
    return n > LIMIT


def uses_a_module() -> str:
    return json.dumps(1)


def uses_a_helper_deep_inside() -> list[int]:
    return [x for x in range(3) if (lambda: helper() == x)()]


def uses_a_constant_as_default(n: int = LIMIT) -> int:
    return n


def uses_what_nobody_defines() -> Any:
    return undefined  # type: ignore[name-defined]  # noqa: F821


def yields() -> Any:
    yield 1


def takes_gang_first(gang: Any, n: int) -> Any:
    return gang, n


def takes_gang_before_many(gang: Any, *many: int) -> Any:
    return gang, many


@forgetful
def wrapped(n: int) -> int:
    return n


def closure() -> Callable[..., Any]:
    table = {"a": 1}

    def inner(key: str) -> int:
        return table[key]

    return inner


REFUSED: dict[str, tuple[Any, str]] = {
    "a constant": (
        uses_a_constant,
        "uses 'LIMIT' of the DAG file, which does not travel with it. Pass it as an argument",
    ),
    "a module": (uses_a_module, "uses 'json' of the DAG file, which does not travel with it. Import json inside"),
    "a helper": (uses_a_helper_deep_inside, "uses 'helper' of the DAG file.* Define or import it inside the function"),
    "a default": (uses_a_constant_as_default, "uses 'LIMIT' of the DAG file"),
    "nothing": (uses_what_nobody_defines, "uses 'undefined' of the DAG file"),
    "a variable around it": (closure(), "uses 'table' of the function around it.* Pass it as an argument"),
    "a lambda": (lambda: 1, "has no name by which a rank could call it. Write it with def"),
    "a partial": (functools.partial(recursive, 3), "is a partial. Decorate a function"),
    "a class": (Path, "Path: is a type"),
    "another decorator": (wrapped, "is wrapped by another decorator"),
    "a generator": (yields, "yields, and a rank has one result"),
    "a gang before others": (takes_gang_first, r"has parameters after `gang`. Write it last, after a star"),
    "a gang before many": (takes_gang_before_many, "has parameters after `gang`"),
}


@pytest.mark.parametrize(("function", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_a_rank_would_miss_is_told(function: Any, problem: str) -> None:
    with pytest.raises(InvalidGangSpec, match=problem):
        travelling(function)


def test_everything_is_told_at_once() -> None:
    def both(n: int) -> str:
        return json.dumps(n > LIMIT)

    with pytest.raises(InvalidGangSpec) as raised:
        travelling(both)

    assert [problem.what.split("'")[1] for problem in raised.value.problems] == ["LIMIT", "json"]


def test_function_without_source_is_refused() -> None:
    module: dict[str, Any] = {}
    exec("def typed(): return 1", module)

    with pytest.raises(InvalidGangSpec, match="typed: has no source"):
        travelling(module["typed"])


# -- names, against what Python's compiler makes of them -------------------------------------------------------


def looked_up(code: CodeType) -> tuple[set[str], set[str]]:
    """Names that a piece of byte code, and all within it, looks up outside of functions; and those it puts there."""
    used = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    made = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        more_used, more_made = looked_up(inner)
        used, made = used | more_used, made | more_made
    return used, made


@pytest.mark.parametrize("module", [argparse, tarfile, statistics, typing, asyncio.base_events], ids=str)
def test_names_that_are_missed_are_those_that_the_compiler_looks_up(module: Any) -> None:
    functions = [value for value in vars(module).values() if inspect.isfunction(value)]
    functions += [f for kind in vars(module).values() if isinstance(kind, type) for f in vars(kind).values()]
    functions = [
        f for f in functions if inspect.isfunction(f) and f.__module__ == module.__name__ and f.__name__.isidentifier()
    ]
    functions = [f for f in functions if "__class__" not in f.__code__.co_freevars and not hasattr(f, "__wrapped__")]
    assert len(functions) > 30
    for function in functions:
        lines, _ = inspect.getsourcelines(function)
        node = _definition((INDENTED if lines[0][:1].isspace() else "") + "".join(lines))
        missed = _used(node)
        node.decorator_list = []
        used, made = looked_up(compile(f"{HEADER}{ast.unparse(node)}", module.__name__, "exec"))
        assert missed - {node.name, "__name__"} == used - made - {node.name, "__name__"}, function.__qualname__


# -- the signature that a DAG's author calls ------------------------------------------------------------------


def test_callers_do_not_see_the_gang() -> None:
    seen = without_gang(at_the_top)

    assert list(inspect.signature(seen).parameters) == ["n"]
    assert list(inspect.signature(at_the_top).parameters) == ["n", "gang"]
    assert (seen.__name__, seen.__doc__, seen.__module__) == ("at_the_top", at_the_top.__doc__, __name__)
    assert travelling(seen) == travelling(at_the_top)
    assert seen(4, gang=None) == at_the_top(4)

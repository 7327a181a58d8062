"""Functions whose source runs on a rank, functions and arguments that are refused."""

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
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.parameters import python_function
from airflow_provider_gangjobs.parameters.python_function import (
    HEADER,
    INDENTED,
    ExtractedSource,
    _definition,
    _free_names,
    extract_source,
    without_gang,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.container_programs.python_runner import Gang

    Number = int

LIMIT = 3
HERE = __file__


def helper() -> int:
    return 1


def decorated(function: Any) -> Any:
    return function


def wrapping(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def run(source: ExtractedSource, *args: Any) -> Any:
    """Run the function in an empty module and return its result."""
    module: dict[str, Any] = {}
    exec(compile(source.text, source.file, "exec"), module)
    return module[source.name](*args)


# -- accepted functions ------------------------------------------------------------------------------------


@decorated
@decorated
def at_the_top(n: int, *, gang: Gang | None = None) -> list[Number]:
    """This function uses its own names, and annotations that a rank does not have."""
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
    return int(seen)  # type: ignore[name-defined]


async def awaiting() -> int:
    return 1


def test_function_runs_in_an_empty_module() -> None:
    assert run(extract_source(at_the_top), 4) == [8, 1]
    assert run(extract_source(recursive), 4) == 24
    assert run(extract_source(counting)) == 1


def test_nested_function_keeps_its_multi_line_strings() -> None:
    def nested() -> str:
        return """a
  b
    c"""

    assert run(extract_source(nested)) == nested() == "a\n  b\n    c"


def test_line_numbers_match_the_dag_file() -> None:
    def nested() -> None:
        raise KeyError

    for function in (at_the_top, recursive, nested):
        source = extract_source(function)
        here = Path(HERE).read_text().splitlines()[source.line - 1 :]
        lines = source.text.splitlines()
        header = next(index for index, line in enumerate(lines) if line.lstrip().startswith("def "))
        assert lines[header:] == here[header : len(lines)]


def test_parameter_gang_is_detected() -> None:
    assert extract_source(at_the_top).takes_gang
    assert not extract_source(recursive).takes_gang


def test_coroutine_function_is_accepted() -> None:
    assert extract_source(awaiting).text.endswith("async def awaiting() -> int:\n    return 1\n")


# -- refused functions ------------------------------------------------------------------------------------


def uses_a_constant(n: int) -> bool:
    return n > LIMIT


def uses_a_module() -> str:
    return json.dumps(1)


def uses_a_helper_deep_inside() -> list[int]:
    return [x for x in range(3) if (lambda: helper() == x)()]


def uses_a_constant_as_default(n: int = LIMIT) -> int:
    return n


def uses_an_undefined_name() -> Any:
    return undefined  # type: ignore[name-defined]  # noqa: F821


def uses_a_name_of_the_header() -> Any:
    return annotations


def yields() -> Any:
    yield 1


def takes_gang_first(gang: Any, n: int) -> Any:
    return gang, n


def takes_gang_before_many(gang: Any, *many: int) -> Any:
    return gang, many


@wrapping
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
        "uses 'LIMIT' of the DAG file, which does not exist on the ranks. Pass it as an argument",
    ),
    "a module": (uses_a_module, "uses 'json' of the DAG file, which does not exist on the ranks. Import json inside"),
    "a helper": (uses_a_helper_deep_inside, "uses 'helper' of the DAG file.* Define or import it inside the function"),
    "a default": (uses_a_constant_as_default, "uses 'LIMIT' of the DAG file"),
    "a name of the header": (uses_a_name_of_the_header, "uses 'annotations' of the DAG file"),
    "an undefined name": (uses_an_undefined_name, "uses 'undefined' of the DAG file"),
    "a variable of an enclosing function": (
        closure(),
        "uses 'table' of the enclosing function.* Pass it as an argument",
    ),
    "a lambda": (lambda: 1, "has no name by which a rank can call it. Write it with def"),
    "a partial": (functools.partial(recursive, 3), "is a partial. Decorate a function"),
    "a class": (Path, "Path: is a type"),
    "another decorator": (wrapped, "is wrapped by another decorator"),
    "a generator": (yields, "is a generator, but a rank returns one result"),
    "a gang before others": (takes_gang_first, r"has parameters after `gang`. Write it last, after a star"),
    "a gang before many": (takes_gang_before_many, "has parameters after `gang`"),
}


@pytest.mark.parametrize(("function", "problem"), REFUSED.values(), ids=REFUSED)
def test_function_that_a_rank_cannot_run_is_refused(function: Any, problem: str) -> None:
    with pytest.raises(InvalidGangSpec, match=problem):
        extract_source(function)


def test_all_problems_are_reported_at_once() -> None:
    def both(n: int) -> str:
        return json.dumps(n > LIMIT)

    with pytest.raises(InvalidGangSpec) as raised:
        extract_source(both)

    assert [problem.what.split("'")[1] for problem in raised.value.problems] == ["LIMIT", "json"]


def test_function_without_source_is_refused() -> None:
    module: dict[str, Any] = {}
    exec("def typed(): return 1", module)

    with pytest.raises(InvalidGangSpec, match="typed: has no source"):
        extract_source(module["typed"])


# -- names, compared with the names in compiled byte code -------------------------------------------------------


def global_names(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the global names that the code and its nested code load, and those that they store or delete."""
    loaded = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    stored = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        more_loaded, more_stored = global_names(inner)
        loaded, stored = loaded | more_loaded, stored | more_stored
    return loaded, stored


@pytest.mark.parametrize("module", [argparse, tarfile, statistics, typing, asyncio.base_events], ids=str)
def test_free_names_are_the_global_names_of_the_byte_code(module: Any) -> None:
    functions = [value for value in vars(module).values() if inspect.isfunction(value)]
    functions += [f for kind in vars(module).values() if isinstance(kind, type) for f in vars(kind).values()]
    functions = [
        f for f in functions if inspect.isfunction(f) and f.__module__ == module.__name__ and f.__name__.isidentifier()
    ]
    functions = [f for f in functions if "__class__" not in f.__code__.co_freevars and not hasattr(f, "__wrapped__")]
    functions = [f for f in functions if f.__name__ != "__annotate__"]  # made by Python 3.14
    assert len(functions) > 30
    for function in functions:
        lines, _ = inspect.getsourcelines(function)
        node = _definition((INDENTED if lines[0][:1].isspace() else "") + "".join(lines))
        node.decorator_list = []
        text = f"{HEADER}{ast.unparse(node)}"
        free = _free_names(text)
        loaded, stored = global_names(compile(text, module.__name__, "exec"))
        known = {node.name, "__name__", "__class__"}
        assert free - known == loaded - stored - known, function.__qualname__


# -- the signature for the DAG file ------------------------------------------------------------------


def test_signature_for_the_dag_file_has_no_gang() -> None:
    seen = without_gang(at_the_top)

    assert list(inspect.signature(seen).parameters) == ["n"]
    assert list(inspect.signature(at_the_top).parameters) == ["n", "gang"]
    assert (seen.__name__, seen.__doc__, seen.__module__) == ("at_the_top", at_the_top.__doc__, __name__)
    assert extract_source(seen) == extract_source(at_the_top)
    assert seen(4, gang=None) == at_the_top(4)


# -- Arguments as JSON, and arguments that JSON would change ---------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


class Color(StrEnum):
    RED = "red"


class Lazy(Sequence[int]):
    """A lazy sequence, like the one by which Airflow passes the results of a mapped task."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        return [5, 6][index]


def round_trip(*args: Any, **kwargs: Any) -> Any:
    """Encode the arguments and return the values that a rank reads."""
    decoded = json.loads(
        python_function.encode("f", *python_function.to_json_values("f", args, kwargs), takes_gang=False)
    )
    return decoded["args"], decoded["kwargs"]


@given(st.lists(JSON_VALUES), st.dictionaries(st.text(), JSON_VALUES))
def test_json_values_do_not_change(args: list[Any], kwargs: dict[str, Any]) -> None:
    decoded = json.loads(
        python_function.encode("f", *python_function.to_json_values("f", args, kwargs), takes_gang=True)
    )

    assert decoded == {"function": "f", "args": args, "kwargs": kwargs, "gang": True}


def test_sequences_become_lists_and_mappings_become_dicts() -> None:
    assert round_trip((1, (2,)), Lazy(), table=MappingProxyType({"a": Color.RED})) == (
        [[1, [2]], [5, 6]],
        {"table": {"a": "red"}},
    )


def test_text_that_utf8_cannot_encode_is_kept() -> None:
    assert round_trip("caf\udce9") == (["caf\udce9"], {})


def test_order_of_keys_is_kept() -> None:
    assert list(round_trip({"b": 1, "a": 2})[0][0]) == ["b", "a"]


REFUSED_ARGUMENTS: dict[str, tuple[Any, str]] = {
    "a time": (datetime(2026, 1, 1, tzinfo=UTC), r"value\['x'\]\[1\]: is a datetime.datetime.* isoformat"),
    "a date": (date(2026, 1, 1), "isoformat"),
    "a duration": (timedelta(1), "total_seconds"),
    "a path": (Path("a"), r"str\(path\)"),
    "a set": ({1}, "sorted list"),
    "bytes": (b"1", "Pass it as text"),
    "anything else": (object(), "is a builtins.object, which JSON cannot represent. Pass text, numbers"),
    "a key": ({1: "a"}, r"value\['x'\]\[1\]: has the key 1, which JSON would turn into text"),
}


@pytest.mark.parametrize(("value", "problem"), REFUSED_ARGUMENTS.values(), ids=REFUSED_ARGUMENTS)
def test_value_that_json_cannot_represent_is_refused_with_its_path(value: Any, problem: str) -> None:
    with pytest.raises(InvalidGangSpec, match=problem):
        python_function.to_json_values("f", [], {"value": {"x": [0, value]}})


def test_all_problems_of_arguments_are_reported_at_once() -> None:
    with pytest.raises(InvalidGangSpec) as raised:
        python_function.to_json_values("f", [b"", {1}], {"n": object()})

    assert [p.path for p in raised.value.problems] == ["f: argument 1", "f: argument 2", "f: argument n"]


def uses_context(a: Any, ds: Any = None, *, params: Any = None, run_id: Any = None) -> None:
    """This function has three variables of Airflow's context as parameters."""


def test_parameters_receive_variables_of_the_context() -> None:
    context: Mapping[str, Any] = {"ds": "2026-01-01", "params": {"n": 1}, "ti": object(), "a": 1}

    assert python_function.from_context(uses_context, [1], {}, context) == {"ds": "2026-01-01", "params": {"n": 1}}
    assert python_function.from_context(uses_context, [1, "other"], {"params": {}}, context) == {}

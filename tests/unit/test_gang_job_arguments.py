"""Arguments as JSON, and arguments that JSON would change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.parameters import python_function

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


REFUSED: dict[str, tuple[Any, str]] = {
    "a time": (datetime(2026, 1, 1, tzinfo=UTC), r"value\['x'\]\[1\]: is a datetime.datetime.* isoformat"),
    "a date": (date(2026, 1, 1), "isoformat"),
    "a duration": (timedelta(1), "total_seconds"),
    "a path": (Path("a"), r"str\(path\)"),
    "a set": ({1}, "sorted list"),
    "bytes": (b"1", "Pass it as text"),
    "anything else": (object(), "is a builtins.object, which JSON cannot represent. Pass text, numbers"),
    "a key": ({1: "a"}, r"value\['x'\]\[1\]: has the key 1, which JSON would turn into text"),
}


@pytest.mark.parametrize(("value", "problem"), REFUSED.values(), ids=REFUSED)
def test_value_that_json_cannot_represent_is_refused_with_its_path(value: Any, problem: str) -> None:
    with pytest.raises(InvalidGangSpec, match=problem):
        python_function.to_json_values("f", [], {"value": {"x": [0, value]}})


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InvalidGangSpec) as raised:
        python_function.to_json_values("f", [b"", {1}], {"n": object()})

    assert [p.path for p in raised.value.problems] == ["f: argument 1", "f: argument 2", "f: argument n"]


def uses_context(a: Any, ds: Any = None, *, params: Any = None, run_id: Any = None) -> None:
    """This function has three variables of Airflow's context as parameters."""


def test_parameters_receive_variables_of_the_context() -> None:
    context: Mapping[str, Any] = {"ds": "2026-01-01", "params": {"n": 1}, "ti": object(), "a": 1}

    assert python_function.from_context(uses_context, [1], {}, context) == {"ds": "2026-01-01", "params": {"n": 1}}
    assert python_function.from_context(uses_context, [1, "other"], {"params": {}}, context) == {}

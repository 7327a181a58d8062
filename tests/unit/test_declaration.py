"""A parameter is declared once: Airflow, type checkers, editors and `help()` read the same declaration."""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import assert_type

import pytest

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.parameters.declaration import gang_job_parameters

PARAMETERS_MAX = 70


def declared() -> dict[str, inspect.Parameter]:
    found = inspect.signature(gang_job_parameters).parameters
    return {name: each for name, each in found.items() if each.kind is each.KEYWORD_ONLY}


def test_operator_has_the_declared_names_and_defaults() -> None:
    shown = inspect.signature(GangJobOperator).parameters

    assert list(shown) == [*declared(), "kwargs"]
    assert {name: shown[name].default for name in declared()} == {name: it.default for name, it in declared().items()}


def test_help_shows_names_types_and_texts() -> None:
    shown = pydoc.plain(pydoc.render_doc(GangJobOperator))

    assert "queue_timeout: datetime.timedelta | float | None = None" in shown
    assert "Annotated" not in shown
    assert ":param queue_timeout: How long a queue may hold the gang." in shown


def test_number_of_parameters_is_limited() -> None:
    documented = re.findall(r"^:param (\w+):", inspect.getdoc(GangJobOperator) or "", re.MULTILINE)

    assert len(set(documented) - {"kwargs"}) <= PARAMETERS_MAX


def test_value_of_another_type_is_refused_by_type_checkers_too() -> None:
    """`make check` runs mypy, which reports an ignored error that does not exist."""
    assert_type(GangJobOperator(task_id="train", image="trainer", retries=3, run_timeout=60), GangJobOperator)
    with pytest.raises(InvalidGangSpec):
        GangJobOperator(task_id="train", image=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidGangSpec):
        GangJobOperator(task_id="train", image="trainer", queue_timeout="1h")  # type: ignore[arg-type]
    with pytest.raises(InvalidGangSpec):
        GangJobOperator(task_id="train", image="trainer", max_disruptions=None)  # type: ignore[arg-type]

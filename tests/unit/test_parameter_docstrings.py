"""The docstrings of the public classes document every parameter."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import SelectionArgs
from airflow_provider_gangjobs.decorators.gang_job import GangJobDecoratedOperator, gang_job_task
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator


def documented(item: Any) -> list[str]:
    return re.findall(r"^ *:param (\w+):", inspect.getdoc(item) or "", re.MULTILINE)


def parameters_of(function: Any) -> list[str]:
    return [name for name in inspect.signature(inspect.unwrap(function)).parameters if name != "self"]


@pytest.mark.parametrize(
    ("item", "parameters"),
    [
        (GangJobOperator, parameters_of(GangJobOperator.__init__)),
        (GangJobDecoratedOperator, parameters_of(GangJobDecoratedOperator.__init__)),
        (gang_job_task, parameters_of(gang_job_task)),
        (TriggerArgs, [field.name for field in fields(TriggerArgs)]),
        (SelectionArgs, [field.name for field in fields(SelectionArgs)]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_docstring_documents_each_parameter_in_order(item: Any, parameters: list[str]) -> None:
    assert documented(item) == parameters


def test_docstring_marks_the_templated_parameters() -> None:
    entries = re.split(r"^ *:param ", inspect.getdoc(GangJobOperator) or "", flags=re.MULTILINE)[1:]
    marked = {
        entry.partition(":")[0] for entry in entries if entry.partition("\n\n")[0].rstrip().endswith("(templated)")
    }

    assert marked == {"resources" if name == "rank_resources" else name for name in GangJobOperator.template_fields}

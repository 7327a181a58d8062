"""Parameters of users: what is documented of each, and what answers one that an operator does not have."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG, BaseOperator

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import SelectionArgs
from airflow_provider_gangjobs.decorators.gang_job import GangJobDecoratedOperator, gang_job_task
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.parameters.unknown_parameters import (
    CONNECTION,
    GONE,
    NOT_NEEDED,
    OWN_NAMES,
    POD_FIELDS,
    parameters_of,
)

# -- A parameter that an operator does not have is answered by what to write instead ---------------------------------

OURS = parameters_of(GangJobOperator)
THEIRS = (parameters_of(KubernetesPodOperator) | parameters_of(KubernetesJobOperator)) - OURS
ANSWERED = {**OWN_NAMES, **POD_FIELDS, **CONNECTION, **NOT_NEEDED, **GONE}


def refusal(**given: Any) -> str:
    with pytest.raises(InvalidGangSpec) as raised:
        GangJobOperator(task_id="t", image="i", **given)
    return str(raised.value)


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_every_parameter_of_the_kubernetes_operators_has_an_answer(name: str) -> None:
    assert name in ANSWERED
    assert f"{name}: is a parameter of Airflow's Kubernetes operators. " in refusal(**{name: None})


def test_answers_name_parameters_that_exist() -> None:
    assert set(OWN_NAMES.values()) <= OURS
    assert len(THEIRS) > 50
    assert not ANSWERED.keys() & OURS


@pytest.mark.parametrize(
    ("given", "similar"),
    [("worker", "workers"), ("resource", "resources"), ("queue", None), ("min_worker", "min_workers")],
)
def test_misspelt_parameter_is_answered_by_the_similar_one(given: str, similar: str | None) -> None:
    if similar is None:  # a parameter of every operator
        GangJobOperator(task_id="t", image="i", **{given: "q"})
        return
    assert f"{given}: is not a parameter of GangJobOperator. Did you mean {similar}?" in refusal(**{given: "2"})


@pytest.mark.parametrize("name", GONE)
def test_parameter_of_a_development_version_is_answered(name: str) -> None:
    assert f"{name}: is not a parameter of GangJobOperator. {GONE[name]}" in refusal(**{name: None})


def test_unlike_parameter_is_answered_by_the_reference() -> None:
    assert "xyzzy: is not a parameter of GangJobOperator. docs/reference.md lists the parameters." in refusal(xyzzy=1)


def test_misspelt_parameter_of_the_decorator_is_answered() -> None:
    def train() -> None:
        return None

    with DAG("d", schedule=None), pytest.raises(InvalidGangSpec, match=r"worker: .* Did you mean workers\?"):
        gang_job_task(train, worker=2)()


def test_misspelt_parameter_of_a_mapped_task_is_answered() -> None:
    with pytest.raises(InvalidGangSpec, match=r"worker: .* Did you mean workers\?"):
        GangJobOperator.partial(task_id="t", image="i", worker=2)
    with DAG("d", schedule=None):
        mapped = GangJobOperator.partial(task_id="t", image="i", workers=2).expand(args=[["a"], ["b"]])
    assert mapped.partial_kwargs["workers"] == 2


def test_misspelt_parameter_of_a_mapped_function_is_answered() -> None:
    def train(part: int) -> None:
        return None

    with DAG("d", schedule=None):
        with pytest.raises(InvalidGangSpec, match=r"worker: .* Did you mean workers\?"):
            gang_job_task(train, worker=2).expand(part=[1, 2])  # type: ignore[attr-defined]
        gang_job_task(train, workers=2, resources={"cpu": "1"}, retries=1).partial().expand(part=[1, 2])  # type: ignore[attr-defined]


def test_other_type_errors_of_airflow_stay() -> None:
    with pytest.raises(TypeError, match="task_id"):
        GangJobOperator(image="i")


def test_parameters_of_every_operator_are_known() -> None:
    assert parameters_of(BaseOperator) <= OURS


# -- The docstrings of the public classes document every parameter ---------------------------------------------------


def documented(item: Any) -> list[str]:
    return re.findall(r"^ *:param (\w+):", inspect.getdoc(item) or "", re.MULTILINE)


def documented_parameters_of(function: Any) -> list[str]:
    return [name for name in inspect.signature(inspect.unwrap(function)).parameters if name != "self"]


@pytest.mark.parametrize(
    ("item", "parameters"),
    [
        (GangJobOperator, documented_parameters_of(GangJobOperator.__init__)),
        (GangJobDecoratedOperator, documented_parameters_of(GangJobDecoratedOperator.__init__)),
        (gang_job_task, documented_parameters_of(gang_job_task)),
        (TriggerArgs, list(TriggerArgs.__struct_fields__)),
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

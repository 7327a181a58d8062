"""`GangJobOperator(roles=...)`: what is refused when the DAG file is parsed, and what the spec of the task is."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import task

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

ROLES: dict[str, Any] = {"leader": {"image": "lead:1"}, "worker": {"image": "work:1", "workers": 3}}


def operator(**parameters: Any) -> GangJobOperator:
    return GangJobOperator(task_id="train", **{"roles": ROLES, **parameters})


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"wait_until": "submitted"}, "wait_until"),
        ({"wait_until": "running"}, "wait_until"),
        ({"launch": "shards"}, "launch"),
        ({"image": "i"}, "image: is given together with roles"),
        ({"roles": {"leader": {"image": "i", "replicas": 2}, "worker": ROLES["worker"]}}, "roles.leader.replicas"),
        ({"queue_name": "team", "topology": "required:rack"}, "topology: is given together with roles"),
    ],
    ids=str,
)
def test_parameters_that_roles_cannot_have_are_refused_when_the_file_is_parsed(parameters, problem):
    with pytest.raises(InvalidGangSpec, match=problem):
        operator(**parameters)


def test_roles_may_have_templates():
    roles = {**ROLES, "worker": {"image": "{{ params.image }}", "workers": "{{ params.workers }}"}}
    train = operator(roles=roles)
    train.roles = {**ROLES, "worker": {"image": "work:2", "workers": " 5 "}}  # as Airflow renders them
    assert train.gang_spec().roles["worker"] == {"image": "work:2", "workers": 5}
    assert "roles" in train.template_fields


def test_function_on_every_rank_has_no_roles():
    @task.gang_job(image="python:3.12", roles=ROLES)
    def train() -> None: ...

    with pytest.raises(InvalidGangSpec, match="Use GangJobOperator"):
        train()

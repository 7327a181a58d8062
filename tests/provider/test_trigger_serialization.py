"""The arguments of a trigger, which Airflow's database stores in clear text: ids and numbers, enough to start again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk.module_loading import import_string

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.triggers.gang_job import GangCompletionTrigger, GangJobTrigger, GangSubmissionTrigger

REQUIRED = {"kubernetes_conn_id": "gpus", "namespace": "team", "name": "train-0", "uid": "job-uid"}
FULL = REQUIRED | {
    "claim": "01a1",
    "attempt": 2,
    "time_limits": {"queue_timeout": 60.0, "assemble_timeout": 30.5, "run_timeout": 3600.0},
    "must_exist": True,
    "deadline": 1_790_000_000.0,
    "execution_timeout_s": 7200.0,
    "delete_on_kill": False,
    "disruptions": 1,
    "tracking_errors": 2,
    "installation": "prod",
    "outlives_task": True,
    "stream_ranks": [0, 3],
    "stream_bytes_max": 1000,
    "kept_logs": "rank0+failed",
    "kept_bytes_max": 2000,
    "callbacks": ["notices.Notices"],
    "task": {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1},
    "earlier_use": {"lost_s": 60.0, "held_s": 60.0},
    "end": {"results": "all", "logs": "rank0+failed", "deletes": True},
    "secrets": [["/train-0/spec/containers/0/env/0/value", "text", 0, 12]],
}
TRIGGERS = (GangSubmissionTrigger, GangCompletionTrigger, GangJobTrigger)


@pytest.mark.parametrize("kind", TRIGGERS)
@pytest.mark.parametrize("kwargs", [REQUIRED, FULL], ids=["required", "full"])
def test_trigger_survives_serialization(kind: Any, kwargs: dict[str, Any]) -> None:
    path, stored = kind(**kwargs).serialize()
    again = import_string(path)(**json.loads(json.dumps(stored)))

    assert stored == kwargs
    assert (type(again), again.args) == (kind, TriggerArgs(**kwargs))


def test_every_argument_is_in_the_full_example() -> None:
    assert set(FULL) == set(TriggerArgs.__dataclass_fields__)


def test_arguments_of_an_earlier_release_load() -> None:
    """Airflow stores the arguments during an upgrade, so a new argument needs a default, and no argument is renamed."""
    assert GangJobTrigger(**REQUIRED).args.ref == GangRef("team", "train-0", "job-uid")


def test_timeouts_become_deadlines() -> None:
    assert TriggerArgs(**FULL).deadlines == Deadlines(queue_s=60.0, assemble_s=30.5, run_s=3600.0)


def test_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="kube_config"):
        GangJobTrigger(**REQUIRED, kube_config="secret")

"""A snapshot of the gangs of one task on the embedded cluster is bounded, and only reads."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from msgspec import structs

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event_in_worker
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.tracking import explanation
from airflow_provider_gangjobs.tracking.gang_listing import list_attempts
from tests.airflow.polling import wait_for

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.view import GangSnapshot
    from airflow_provider_gangjobs.service import GangService

SMALL = {"cpu": "100m", "memory": "32Mi"}
NEVER_FITS = GangSpec(image="i", command=["true"], workers=3, resources={"cpu": "1000"})
FAILS = GangSpec(image="i", command=["sh", "-c", "exit 3"], workers=2, resources=SMALL)


@pytest.fixture
def hook(connection: str) -> GangJobHook:
    return GangJobHook(connection)


@pytest.fixture
def key() -> TaskKey:
    return TaskKey("dag", f"run {uuid4().hex}", "task")


def submit(hook: GangJobHook, spec: GangSpec, key: TaskKey) -> GangRef:
    return hook.submit(spec, key=key, claim="someone").ref


def end(hook: GangJobHook, ref: GangRef) -> None:
    wait_for_event_in_worker(
        TriggerArgs(kubernetes_conn_id=hook.kubernetes_conn_id, namespace=ref.namespace, name=ref.name, uid=ref.uid),
        hook.log,
        config=hook.config(),
        limit_s=None,
    )


async def read(gangs: GangService, key: TaskKey) -> GangSnapshot:
    """Return a snapshot of the newest attempt of a task."""
    attempts = await list_attempts(gangs.client, gangs.namespace, key.digest)
    return await explanation.read_snapshot(gangs.client, attempts[0])


def look(hook: GangJobHook, key: TaskKey) -> GangSnapshot:
    return hook.call(lambda gangs: read(gangs, key))


def test_attempts_of_a_task_are_listed_newest_first_with_the_pods_of_each(hook: GangJobHook, key: TaskKey) -> None:
    first = submit(hook, FAILS, key)
    end(hook, first)
    second = submit(hook, FAILS, key)
    end(hook, second)
    submit(hook, NEVER_FITS, TaskKey("other", key.run_id, "task"))

    attempts = hook.call(lambda gangs: list_attempts(gangs.client, gangs.namespace, key.digest))
    seen = hook.call(lambda gangs: explanation.read_snapshot(gangs.client, attempts[1]))

    assert [gang.ref for gang in attempts] == [second, first]
    assert {outcome.exit_code for outcome in seen.outcomes or ()} >= {3}
    assert {pod.metadata.labels.gang for pod in seen.pods or ()} <= {first.name}
    assert seen.is_whole


def test_snapshot_of_a_large_gang_has_the_failed_and_the_waiting_pods(
    hook: GangJobHook, key: TaskKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "WHOLE_RANKS_MAX", 2)
    monkeypatch.setattr(explanation, "SAMPLE_PODS", 2)
    ref = submit(hook, NEVER_FITS, key)

    seen = wait_for("pods", lambda: seen if (seen := look(hook, key)).pods else None)

    assert not seen.is_whole
    assert [pod.status.phase for pod in seen.pods] == ["Pending", "Pending"], "two of three"
    hook.delete(ref)


def test_a_job_with_more_pods_than_it_should_have_is_read_in_part(
    hook: GangJobHook, key: TaskKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "WHOLE_PODS_MAX", 1)
    ref = submit(hook, NEVER_FITS, key)

    assert not look(hook, key).is_whole
    hook.delete(ref)


def test_snapshot_of_a_gang_whose_volume_cannot_be_mounted_says_why(hook: GangJobHook, key: TaskKey) -> None:
    volume = {"name": "s", "configMap": {"name": "forgotten"}}
    submit(hook, structs.replace(FAILS, volumes=[volume], volume_mounts=[{"name": "s", "mountPath": "/s"}]), key)
    said = 'FailedMount at rank 0: MountVolume.SetUp failed for volume "s" : configmap "forgotten" not found'
    observe = lambda: look(hook, key).state  # noqa: E731
    wait_for("the Event", lambda: said in observe().line)
    assert observe().reason.category is Category.VOLUME_UNAVAILABLE


def test_snapshot_of_a_gang_that_waits_for_nodes_also_reads_the_cluster(hook: GangJobHook, key: TaskKey) -> None:
    async def requests(gangs: GangService) -> dict[str, int]:
        seen = await read(gangs, key)
        assert seen.evidence.capacity is None or seen.evidence.capacity.never_fits
        return dict(gangs.client.statistics().requests) if seen.evidence.capacity else {}

    ref = submit(hook, NEVER_FITS, key)

    counted = wait_for("the words of the scheduler", lambda: hook.call(requests) or None)
    assert counted.keys() == {"list", "create"}
    assert counted["create"] == 2, "the reviews of two rights"
    hook.delete(ref)

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
from tests.airflow.polling import wait_for

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.service import GangService
    from airflow_provider_gangjobs.tracking.explanation import GangSnapshot

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


def look(hook: GangJobHook, key: TaskKey, ref: GangRef | None = None) -> GangSnapshot:
    uid = ref.uid if ref else None
    return hook.call(lambda gangs: explanation.read_explained(gangs.client, gangs.namespace, key.digest, uid))


def test_snapshot_has_all_attempts_and_the_pods_of_one(hook: GangJobHook, key: TaskKey) -> None:
    first = submit(hook, FAILS, key)
    end(hook, first)
    second = submit(hook, FAILS, key)
    end(hook, second)

    seen = look(hook, key, first)

    assert [job["metadata"]["uid"] for job in seen.jobs] == [second.uid, first.uid]
    assert seen.job is seen.jobs[1]
    assert {outcome.exit_code for outcome in seen.outcomes} >= {3}
    assert {pod.metadata.labels.gang for pod in seen.pods} <= {first.name}
    assert seen.is_whole
    last = look(hook, key).job
    assert last is not None
    assert last["metadata"]["uid"] == second.uid


def test_another_tasks_gang_is_not_found_by_its_uid(hook: GangJobHook, key: TaskKey) -> None:
    foreign = submit(hook, NEVER_FITS, TaskKey("other", key.run_id, "task"))

    seen = look(hook, key, foreign)

    assert (seen.job, seen.jobs, seen.pods, seen.outcomes) == (None, [], (), ())
    hook.delete(foreign)


def test_snapshot_of_a_large_gang_has_the_failed_and_the_waiting_pods(
    hook: GangJobHook, key: TaskKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "WHOLE_RANKS_MAX", 2)
    monkeypatch.setattr(explanation, "SAMPLE_PODS", 2)
    ref = submit(hook, NEVER_FITS, key)

    seen = wait_for("pods", lambda: seen if (seen := look(hook, key, ref)).pods else None)

    assert not seen.is_whole
    assert [pod.status.phase for pod in seen.pods] == ["Pending", "Pending"], "two of three"
    hook.delete(ref)


def test_a_job_with_more_pods_than_it_should_have_is_read_in_part(
    hook: GangJobHook, key: TaskKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "WHOLE_PAGES_MAX", 0)
    ref = submit(hook, NEVER_FITS, key)

    assert not look(hook, key, ref).is_whole
    hook.delete(ref)


def test_snapshot_of_a_gang_whose_volume_cannot_be_mounted_says_why(hook: GangJobHook, key: TaskKey) -> None:
    volume = {"name": "s", "configMap": {"name": "forgotten"}}
    submit(hook, structs.replace(FAILS, volumes=[volume], volume_mounts=[{"name": "s", "mountPath": "/s"}]), key)
    said = 'FailedMount at rank 0: MountVolume.SetUp failed for volume "s" : configmap "forgotten" not found'
    observe = lambda: explanation.observe_snapshot(look(hook, key))  # noqa: E731
    wait_for("the Event", lambda: said in observe().line)
    assert observe().diagnosis.category is Category.VOLUME_UNAVAILABLE


def test_snapshot_gets_and_lists_and_nothing_else(hook: GangJobHook, key: TaskKey) -> None:
    async def requests(gangs: GangService) -> set[str]:
        await explanation.read_explained(gangs.client, ref.namespace, key.digest, ref.uid)
        return set(gangs.client.statistics().requests)

    ref = submit(hook, FAILS, key)

    assert hook.call(requests) <= {"get", "list"}
    hook.delete(ref)


def test_snapshot_of_a_gang_that_waits_for_nodes_also_asks_for_rights(hook: GangJobHook, key: TaskKey) -> None:
    async def requests(gangs: GangService) -> dict[str, int]:
        seen = await explanation.read_explained(gangs.client, ref.namespace, key.digest, ref.uid)
        assert seen.evidence.capacity is None or seen.evidence.capacity.never_fits
        return dict(gangs.client.statistics().requests) if seen.evidence.capacity else {}

    ref = submit(hook, NEVER_FITS, key)

    counted = wait_for("the words of the scheduler", lambda: hook.call(requests) or None)
    assert counted.keys() == {"get", "list", "create"}
    assert counted["create"] == 2, "the reviews of two rights"
    hook.delete(ref)

"""Calls of the hook with an id that the caller chooses, on the embedded cluster."""

from __future__ import annotations

from uuid import uuid4

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event_in_worker
from airflow_provider_gangjobs.exceptions import SubmissionConflict
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase, SubmissionState
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from tests.manifests import SUSPENDED_MANIFEST

SUSPENDED = GangSpec(image="i", command=["true"], workers=2, manifest=SUSPENDED_MANIFEST)


@pytest.fixture
def hook(connection: str) -> GangJobHook:
    return GangJobHook(connection)


@pytest.fixture
def submission_id() -> str:
    return f"op {uuid4().hex}"


def test_an_id_is_submitted_polled_and_deleted(hook: GangJobHook, submission_id: str) -> None:
    assert hook.submission(submission_id) is None
    first = hook.submit(SUSPENDED, submission_id=submission_id)
    assert hook.submit(SUSPENDED, submission_id=submission_id, validate="server").ref == first.ref
    with pytest.raises(SubmissionConflict, match="workers"):
        hook.submit(replace(SUSPENDED, workers=3), submission_id=submission_id)

    record = hook.submission(submission_id)
    assert record is not None
    assert (record.ref, record.state, record.phase) == (first.ref, SubmissionState.IN_PROGRESS, Phase.QUEUED)
    assert first.ref in {one.ref for one in hook.submissions(limit=500).records}
    assert hook.delete_submission(submission_id, job=True) == (first.ref,)
    assert hook.delete_submission(submission_id, job=True) == ()


def test_uploaded_files_reach_the_ranks(hook: GangJobHook, connection: str, submission_id: str) -> None:
    content_id = hook.upload({"uploaded": b"\x31", "both": "uploaded"})
    spec = GangSpec(
        image="i",
        command=["sh", "-c", 'cd "$GANG_FILES" && cat uploaded both > "$GANG_RESULT_PATH"'],
        workers=2,
        resources={"cpu": "100m"},
        files={"both": "inline"},
        uploads=[content_id],
    )
    ref = hook.submit(spec, submission_id=submission_id).ref
    watch = TriggerArgs(kubernetes_conn_id=connection, namespace=ref.namespace, name=ref.name, uid=ref.uid)
    wait_for_event_in_worker(watch, hook.log, config=hook.config(), limit_s=None)

    assert [outcome.message for outcome in hook.outcomes(ref)] == ["1inline"] * 2
    assert content_id in {upload.content_id for upload in hook.uploads()}
    assert hook.delete_upload(content_id)
    assert not hook.delete_upload(content_id)


def test_either_an_id_or_a_task_is_given(hook: GangJobHook) -> None:
    with pytest.raises(ValueError, match="either"):
        hook.submit(SUSPENDED)
    with pytest.raises(ValueError, match="either"):
        hook.submit(SUSPENDED, submission_id="a", key=TaskKey("d", "r", "t"))


def test_capabilities_report_which_feature_gates_are_on(hook: GangJobHook) -> None:
    found = hook.capabilities()
    assert found.holds_gangs
    assert any(gate.is_on for gate in found.gates)
    assert any(gate.is_on is None for gate in found.gates)

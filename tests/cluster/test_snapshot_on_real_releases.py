"""Snapshots of gangs by an account that may only list, as docs/ui.md describes, on real API servers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.tracking import explanation
from airflow_provider_gangjobs.tracking.explanation import read_snapshot
from airflow_provider_gangjobs.tracking.gang_listing import list_attempts
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.gang.view import GangSnapshot
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant

DOCUMENTED = Path(__file__).resolve().parents[2] / "docs" / "ui.md"
LOOK_AGAIN_S = 0.2
FAIL = "import os, sys; sys.exit(3 if os.environ['RANK'] == '1' else 0)"


def documented_rules() -> list[dict[str, Any]]:
    block = re.search(r"```yaml\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    assert block is not None
    rules: list[dict[str, Any]] = yaml.safe_load(block[1])["rules"]
    return rules


@pytest.fixture
def viewer(tenant: Tenant) -> Tenant:
    return tenant.with_account("viewer", documented_rules())


async def looked_at(
    viewer: Tenant, submission: Submission, until: Callable[[GangSnapshot], bool], run: str = "run"
) -> GangSnapshot:
    """Return the first snapshot that the viewer reads and for which `until` holds."""
    key, ref = TaskKey("dag", run, "task", -1), submission.ref
    async with asyncio.timeout(TIMEOUT_S), GangService.connect(viewer.config) as gangs:
        while True:
            attempts = await list_attempts(gangs.client, ref.namespace, key.digest)
            seen = await read_snapshot(gangs.client, next(one for one in attempts if one.ref == ref))
            if until(seen):
                return seen
            await asyncio.sleep(LOOK_AGAIN_S)


def is_refused_a_node(seen: GangSnapshot) -> bool:
    return any(item.type == "PodScheduled" for pod in seen.pods for item in pod.status.conditions)


async def test_viewer_with_list_permission_reads_what_a_gang_waits_for(
    tenant: Tenant, viewer: Tenant, gangs: GangService
) -> None:
    submission = await submit_gang(gangs, gang_spec(2, cpu="5"))

    seen = await looked_at(viewer, submission, is_refused_a_node)

    assert (len(seen.pods), seen.is_whole, seen.unread) == (2, True, ())
    assert viewer.forbidden_requests() == []
    # The question which rights the viewer has is a request to create, and changes nothing.
    assert {verb for _, resource, verb in viewer.used_permissions() if "selfsubject" not in resource} == {"list"}


async def test_viewer_with_list_permission_reads_how_ranks_ended(
    tenant: Tenant, viewer: Tenant, gangs: GangService
) -> None:
    submission = await submit_gang(gangs, gang_spec(2, code=FAIL, cpu="100m"))
    await follow_gang(tenant, submission)

    seen = await looked_at(viewer, submission, lambda it: len(it.outcomes) == 2)

    assert 3 in {outcome.exit_code for outcome in seen.outcomes}  # the Job controller may end the other rank first
    assert seen.unread == ()
    assert viewer.forbidden_requests() == []


async def test_snapshot_of_a_large_gang_has_the_failed_and_the_waiting_pods(
    viewer: Tenant, gangs: GangService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "WHOLE_RANKS_MAX", 1)
    submission = await submit_gang(gangs, gang_spec(2, cpu="5"))

    seen = await looked_at(viewer, submission, is_refused_a_node)

    assert not seen.is_whole
    assert {pod.status.phase for pod in seen.pods} == {"Pending"}
    assert viewer.forbidden_requests() == []

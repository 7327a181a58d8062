"""The audit log of everything that the provider does: rbac.yaml is sufficient, and nothing else was requested."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import yaml

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import Forbidden
from airflow_provider_gangjobs.ending.deliver import deliver
from airflow_provider_gangjobs.ending.sweep import NamespaceView, Sweep
from airflow_provider_gangjobs.gang.checkpoints import digest_in
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.spec import Logs, OnFinish, OnKill, Policies, Validate
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.ownership import TaskEnd
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import JOBS, Resource
from airflow_provider_gangjobs.service import GangService, follow
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.cluster.tenant import ROLE
from tests.ends import Killed, kill
from tests.manifests import SUSPENDED_MANIFEST

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant

SLEEP = "import time; time.sleep(600)"
FAIL = "import os, sys; sys.exit(3 if os.environ['RANK'] == '1' else 0)"
SMALL = "100m"
OPEN_TO_EVERYBODY = {("authorization.k8s.io", "selfsubjectaccessreviews", "create")}
"""By the built-in ClusterRole system:basic-user. A gang that waits for nodes asks whether it may list them."""


def granted() -> set[tuple[str, str, str]]:
    """Return (API group, resource, verb) of every rule."""
    return {
        (group, resource, verb)
        for rule in yaml.safe_load(ROLE.read_text())["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def assert_within_role(tenant: Tenant) -> None:
    assert tenant.forbidden_requests() == []
    assert tenant.used_permissions()
    assert tenant.used_permissions() <= granted() | OPEN_TO_EVERYBODY


async def test_gangs_that_end_by_themselves_stay_within_the_role(tenant: Tenant, gangs: GangService) -> None:
    async def ended(run: str, code: str) -> Status:
        submission = await submit_gang(gangs, gang_spec(2, code=code, cpu=SMALL, files={"a.txt": "a"}), run)
        event = await follow_gang(tenant, submission)
        await gangs.outcomes(submission.ref)
        await gangs.logs(submission.ref, Logs.ALL)
        await deliver(gangs.client, submission.ref, "somebody")
        return event.status

    ends = await asyncio.gather(ended("good", "print('done')"), ended("bad", FAIL))
    assert list(ends) == [Status.SUCCEEDED, Status.FAILED]
    assert_within_role(tenant)


async def test_namespace_that_names_the_folder_of_checkpoints_is_within_the_role(
    tenant: Tenant, gangs: GangService
) -> None:
    spec = gang_spec(2, code=SLEEP, cpu=SMALL, checkpoints="pvc://data", manifest=SUSPENDED_MANIFEST)
    submission = await submit_gang(gangs, spec)
    job = await gangs.client.get(JOBS, submission.ref.name, tenant.namespace)

    assert digest_in(job)
    assert_within_role(tenant)


async def test_gangs_that_time_out_or_are_stopped_stay_within_the_role(tenant: Tenant, gangs: GangService) -> None:
    async def too_long(run: str, cpu: str, deadlines: Deadlines) -> Status:
        event = await follow_gang(tenant, await submit_gang(gangs, gang_spec(2, code=SLEEP, cpu=cpu), run), deadlines)
        return event.status

    ends = await asyncio.gather(
        too_long("large", "5", Deadlines(assemble_s=2)), too_long("long", SMALL, Deadlines(run_s=1))
    )
    assert list(ends) == [Status.TIMEOUT] * 2
    assert_within_role(tenant)


async def test_gangs_that_are_killed_stay_within_the_role(tenant: Tenant, gangs: GangService) -> None:
    deleted = await submit_gang(gangs, gang_spec(2, code=SLEEP, cpu=SMALL), "deleted")
    stopped = await submit_gang(gangs, gang_spec(2, code=SLEEP, cpu=SMALL), "stopped")
    assert await kill(gangs.client, deleted.ref, "somebody") is Killed.DELETED
    assert await gangs.stop(stopped.ref, reason="the task was cleared")
    assert (await follow_gang(tenant, deleted)).status is Status.DELETED
    await gangs.release_finalizers(namespace=tenant.namespace)
    await gangs.tidy(older_than=timedelta(0))
    assert_within_role(tenant)


async def test_gangs_that_nobody_follows_are_swept(tenant: Tenant, gangs: GangService) -> None:
    policies = Policies(OnKill.DELETE, OnFinish.KEEP)
    key = TaskKey("dag", "orphan", "task", installation="prod")
    spec = gang_spec(2, code=SLEEP, cpu=SMALL)
    orphan = (await gangs.submit(spec, key=key, claim="somebody", policies=policies)).ref

    async def ask(_: TaskKey) -> TaskEnd:
        return TaskEnd.ENDED

    hours = itertools.count(step=3600)
    sweep = Sweep(
        "prod",
        is_followed=lambda _: False,
        ask=ask,
        follow=lambda ref: follow(tenant.config, ref),
        clock=Clock(monotonic=lambda: float(next(hours))),
    )
    swept = []
    for _ in range(3):
        swept += await sweep.run(gangs.client, await NamespaceView.read(gangs.client, tenant.namespace))
    assert [(gang.ref, gang.error) for gang in swept] == [(orphan, "")]
    assert_within_role(tenant)


async def test_preferred_gang_that_is_not_eligible_stays_within_the_role(tenant: Tenant, gangs: GangService) -> None:
    retried = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"backoffLimit": 1}}
    spec = gang_spec(2, code="print('done')", cpu=SMALL, gang="preferred", manifest=retried)
    submission = await submit_gang(gangs, spec)
    assert submission.decision.startswith("basic:backoffLimit is 1")
    assert (await follow_gang(tenant, submission)).status is Status.SUCCEEDED
    assert_within_role(tenant)


async def test_submissions_by_id_and_uploads_stay_within_the_role(tenant: Tenant, gangs: GangService) -> None:
    content = await gangs.upload({"train.py": "print('done')"})
    spec = gang_spec(2, code="print('done')", cpu=SMALL)
    await gangs.submit(spec, submission_id="by-id", validate=Validate.SERVER)
    assert await gangs.submission("by-id")
    await gangs.submissions()
    await gangs.uploads()
    await gangs.delete_submission("by-id", job=True)
    await gangs.delete_upload(content)
    assert_within_role(tenant)


async def test_capabilities_are_read_within_the_role(tenant: Tenant, gangs: GangService) -> None:
    await gangs.capabilities()
    assert_within_role(tenant)


async def test_request_that_the_role_does_not_grant_is_refused_and_audited(tenant: Tenant, gangs: GangService) -> None:
    """A request that the Role does not allow is in the audit log."""
    with pytest.raises(Forbidden):
        await gangs.client.list(Resource("", "v1", "secrets", "Secret"), tenant.namespace)
    assert tenant.forbidden_requests() == [f"list /api/v1/namespaces/{tenant.namespace}/secrets?limit=500"]

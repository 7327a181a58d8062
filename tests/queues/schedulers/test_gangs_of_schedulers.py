"""Gangs that Volcano, the coscheduling plugin and YuniKorn place: they fit, wait, never fit, and are killed.

The nodes have 4 CPUs in total. The history of the pods comes from a watch beside the test.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.ends import Killed, kill
from tests.queues.following import following, until
from tests.timeouts import TIMEOUT_S, poll

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.cluster.tenant import Tenant
    from tests.queues.schedulers.cluster import Cluster
    from tests.queues.schedulers.history import History

SLEEP: Final = "import time; time.sleep(3000)"
SHORT: Final = "import time; time.sleep(1)"
SETTLED_S: Final = 20.0
"""A scheduler binds the pods of a gang one after the other, on a busy machine within this time."""
FRAGMENTED: Final = "1300m"
"""Three pods of this size fit into 4 CPUs, but not onto two nodes of 2 CPUs."""
HOLDS_NOTHING: Final = pytest.mark.parametrize(
    "running_cluster", ["coscheduling", "volcano", "volcano-1.10"], indirect=True
)
"""Schedulers under which a gang that waits keeps no other gang from the nodes."""
YUNIKORN: Final = pytest.mark.parametrize("running_cluster", ["yunikorn"], indirect=True)
CAUSES: Final = {
    "coscheduling": "Insufficient cpu",
    "volcano": "2/3 tasks in gang unschedulable",
    "volcano-1.10": "tasks in gang unschedulable",
    "yunikorn": "Waits until YuniKorn has reserved a place for each pod",
}
"""What a gang says for which there is no room. Volcano names no resource while one of the pods would fit."""
PLACEHOLDER: Final = "tg-"
"""The names of YuniKorn's placeholder pods begin with this."""
TIMED_OUT: Final = "rejected due to timeout after waiting"
"""What the coscheduling plugin says about a pod that has waited at its node for other pods of the gang."""
NOT_CAUSES: Final = (TIMED_OUT, "optimistic rejection", "Unreserve", "can possibly be assigned", "PodGroup not found")


def by(cluster: Cluster, workers: int = 3, **changes: Any) -> Any:
    return gang_spec(workers, gang_scheduler=cluster.scheduler, **changes)


async def test_a_gang_that_fits_runs_with_the_documented_rights(
    cluster: Cluster, tenant: Tenant, history: History
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, by(cluster))
        assert submission.decision == f"gang:{cluster.scheduler}"
        event = await follow_gang(tenant, submission)
        outcomes = await gangs.outcomes(submission.ref)
    assert event.status is Status.SUCCEEDED, event
    assert [outcome.message for outcome in outcomes] == ["[1, 2]", "[0]", "[0]"]
    assert history.most_bound(submission.ref.name) == 3
    assert history.longest_partial_s(submission.ref.name, 3) < SETTLED_S
    assert tenant.forbidden_requests() == []


async def test_a_gang_without_room_waits_with_the_cause_and_runs_when_there_is_room(
    cluster: Cluster, tenant: Tenant, history: History
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        first = await submit_gang(gangs, by(cluster, code=SLEEP), "first")
        await until(lambda: history.most_bound(first.ref.name) == 3, lambda: cluster.log.read_text()[-3000:])
        second = await submit_gang(gangs, by(cluster, code=SHORT), "second")
        async with following(tenant, second) as gang:
            await gang.line(CAUSES[cluster.name])
            assert not [line for line in gang.lines if any(text in line for text in NOT_CAUSES)]
        assert history.most_bound(second.ref.name) == 0
        assert await kill(gangs.client, first.ref, "somebody") is Killed.DELETED
        event = await follow_gang(tenant, second)
    assert event.status is Status.SUCCEEDED, str(event)
    assert history.longest_partial_s(second.ref.name, 3) < SETTLED_S


@HOLDS_NOTHING
async def test_a_gang_that_never_fits_holds_nothing_and_times_out(
    cluster: Cluster, tenant: Tenant, history: History
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        never = await submit_gang(gangs, by(cluster, cpu=FRAGMENTED), "never")
        fits = await submit_gang(gangs, by(cluster, code=SHORT), "fits")
        beside = await follow_gang(tenant, fits)
        event = await follow_gang(tenant, never, Deadlines(assemble_s=2))
        job = await gangs.client.get(JOBS, never.ref.name, tenant.namespace)
    assert beside.status is Status.SUCCEEDED, beside
    assert (event.status, event.phase, event.counts["placed"]) == (Status.TIMEOUT, "assembling", 0)
    assert history.most_bound(never.ref.name) == 0
    assert job["spec"]["activeDeadlineSeconds"] <= 1


@pytest.mark.parametrize("running_cluster", ["coscheduling"], indirect=True)
async def test_a_gang_that_lacks_one_place_names_the_cause_when_its_other_pods_have_waited_for_it(
    cluster: Cluster, tenant: Tenant
) -> None:
    """The plugin lets the pods of a gang wait at their nodes if not more than a tenth of the gang is missing."""
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, by(cluster, 11, cpu="350m"))
        async with following(tenant, submission, Deadlines(assemble_s=25)) as gang:
            await until(lambda: TIMED_OUT in refusals_of(tenant), lambda: refusals_of(tenant))
            event = await gang.event()
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.assembling")
    assert CAUSES["coscheduling"] in event.message
    assert not [line for line in gang.lines if any(text in line for text in NOT_CAUSES)]


@pytest.mark.parametrize("running_cluster", ["volcano", "volcano-1.10"], indirect=True)
async def test_a_gang_in_a_queue_that_volcano_does_not_have_says_so(cluster: Cluster, tenant: Tenant) -> None:
    queue = {"scheduling.volcano.sh/queue-name": "nosuch"}
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, by(cluster, annotations=queue))
        event = await follow_gang(tenant, submission, Deadlines(assemble_s=8))
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.assembling")
    assert "its queue nosuch may not exist, or Volcano does not run" in event.message
    assert "Correct the annotation scheduling.volcano.sh/queue-name" in event.remedy
    assert tenant.forbidden_requests() == []


@YUNIKORN
async def test_a_gang_that_never_fits_returns_its_reserved_places_when_it_times_out(
    cluster: Cluster, tenant: Tenant, history: History
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        never = await submit_gang(gangs, by(cluster, cpu=FRAGMENTED), "never")
        await until(lambda: len(placeholders_of(tenant)) == 3)
        fits = await submit_gang(gangs, by(cluster, code=SHORT), "fits")
        event = await follow_gang(tenant, never, Deadlines(assemble_s=5))
        beside = await follow_gang(tenant, fits)
        assert placeholders_of(tenant) == []
    assert (event.status, event.phase, event.counts["placed"]) == (Status.TIMEOUT, "assembling", 0)
    assert CAUSES["yunikorn"] in event.message
    assert beside.status is Status.SUCCEEDED, beside
    assert (history.most_bound(never.ref.name), history.most_bound(fits.ref.name)) == (0, 3)


@YUNIKORN
async def test_a_gang_of_the_same_name_as_one_that_was_killed_is_not_placed_in_part(
    cluster: Cluster, tenant: Tenant, history: History
) -> None:
    """YuniKorn remembers an application for half a minute after its pods are gone."""
    async with GangService.connect(tenant.config) as gangs:
        first = await submit_gang(gangs, by(cluster, code=SLEEP))
        await until(lambda: history.most_bound(first.ref.name) == 3)
        assert await kill(gangs.client, first.ref, "somebody") is Killed.DELETED
        await gone(gangs, tenant)
        async with asyncio.timeout(TIMEOUT_S):
            while await gangs.client.list(JOBS, tenant.namespace):  # noqa: ASYNC110 - another process deletes it
                await asyncio.sleep(0.1)
        since_s = time.monotonic()
        again = await submit_gang(gangs, by(cluster, cpu=FRAGMENTED, code=SLEEP))
        event = await follow_gang(tenant, again, Deadlines(assemble_s=5))
    assert (again.ref.name, event.status, event.counts["placed"]) == (first.ref.name, Status.TIMEOUT, 0)
    later = [moment for moment in history.moments[again.ref.name] if moment.at > since_s]
    assert {len(moment.bound - moment.deleted) for moment in later} == {0}


@YUNIKORN
async def test_placeholder_pods_are_no_ranks(cluster: Cluster, tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, by(cluster, cpu=FRAGMENTED))
        async with following(tenant, submission) as gang:
            await until(lambda: len(placeholders_of(tenant)) == 3)
            await gang.line("assembling: 3 pods, none placed")
            await gangs.stop(submission.ref, reason="by hand")
            assert [end.rank for end in (await gang.event()).ranks] == [0, 1, 2]


@YUNIKORN
async def test_gang_is_placed_in_part_where_placeholder_pods_are_refused(
    cluster: Cluster, tenant: Tenant, history: History
) -> None:
    """YuniKorn falls back to single pods, in the style Hard too. `assemble_timeout` ends the gang."""
    with placeholders_refused(tenant):
        async with GangService.connect(tenant.config) as gangs:
            submission = await submit_gang(gangs, by(cluster, cpu=FRAGMENTED, code=SLEEP))
            event = await follow_gang(tenant, submission, Deadlines(assemble_s=5))
            await gone(gangs, tenant)
    assert (event.status, event.phase) == (Status.TIMEOUT, "assembling")
    assert history.most_bound(submission.ref.name) == 2


async def test_a_gang_that_is_killed_while_it_waits_leaves_nothing(
    cluster: Cluster, tenant: Tenant, history: History
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, by(cluster, cpu=FRAGMENTED))
        await until(lambda: len(history.moments.get(submission.ref.name, ())) >= 3, lambda: "no pods")
        assert await kill(gangs.client, submission.ref, "somebody") is Killed.DELETED
        await gone(gangs, tenant)
    assert history.most_bound(submission.ref.name) == 0


async def test_a_gang_that_is_killed_while_it_runs_leaves_nothing(
    cluster: Cluster, tenant: Tenant, history: History
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, by(cluster, code=SLEEP))
        await until(lambda: history.most_bound(submission.ref.name) == 3, lambda: cluster.log.read_text()[-3000:])
        assert await kill(gangs.client, submission.ref, "somebody") is Killed.DELETED
        await gone(gangs, tenant)
    assert history.longest_partial_s(submission.ref.name, 3) < SETTLED_S


async def gone(gangs: GangService, tenant: Tenant) -> None:
    """Wait until no pod of the namespace is left."""
    async with asyncio.timeout(TIMEOUT_S):
        while await gangs.client.list(PODS, tenant.namespace):  # noqa: ASYNC110 - another process deletes them
            await asyncio.sleep(0.1)


def refusals_of(tenant: Tenant) -> str:
    """What the scheduler has said about pods of the namespace, in Events."""
    with tenant.plane.client() as admin:
        events = admin.get(f"/api/v1/namespaces/{tenant.namespace}/events").json()["items"]
    return "\n".join(event["message"] for event in events if event["reason"] == "FailedScheduling")


def placeholders_of(tenant: Tenant) -> list[str]:
    """The names of YuniKorn's placeholder pods."""
    with tenant.plane.client() as admin:
        pods = admin.get(f"/api/v1/namespaces/{tenant.namespace}/pods").json()["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"].startswith(PLACEHOLDER)]


@contextmanager
def placeholders_refused(tenant: Tenant) -> Iterator[None]:
    """Let the API server refuse placeholder pods in the namespace, as a quota may."""
    group, name = "admissionregistration.k8s.io", tenant.namespace
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    where = {"matchLabels": {"kubernetes.io/metadata.name": tenant.namespace}}
    policy = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": where},
        "validations": [{"expression": f"!object.metadata.name.startsWith('{PLACEHOLDER}')", "message": "no room"}],
    }
    with tenant.plane.client() as admin:
        for plural, spec in (
            ("validatingadmissionpolicies", policy),
            ("validatingadmissionpolicybindings", {"policyName": name, "validationActions": ["Deny"]}),
        ):
            body = {"metadata": {"name": name}, "spec": spec}
            admin.post(f"/apis/{group}/v1/{plural}", json=body).raise_for_status()
        _wait_until_refused(admin, tenant.namespace)
        try:
            yield
        finally:
            admin.delete(f"/apis/{group}/v1/validatingadmissionpolicybindings/{name}").raise_for_status()
            admin.delete(f"/apis/{group}/v1/validatingadmissionpolicies/{name}").raise_for_status()


def _wait_until_refused(admin: httpx.Client, namespace: str) -> None:
    pod = {"metadata": {"name": f"{PLACEHOLDER}probe"}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    path = f"/api/v1/namespaces/{namespace}/pods"
    poll(lambda: not admin.post(path, params={"dryRun": "All"}, json=pod).is_success, "the policy")

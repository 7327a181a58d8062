"""A gang with roles leaves no Job and no pod, also without a follower, and if its end is interrupted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs import service
from airflow_provider_gangjobs.ending.delete import end_live_gangs
from airflow_provider_gangjobs.ending.sweep import NamespaceView, Sweep, sweep_once
from airflow_provider_gangjobs.gang.awaited import GangSelection
from airflow_provider_gangjobs.gang.spec import GangSpec, Logs, OnFinish, OnKill, Policies
from airflow_provider_gangjobs.gang.state.ownership import ASK_AFTER, CONFIRM_AFTER, SweepAction, TaskEnd
from airflow_provider_gangjobs.gang.state.phase import FINAL_PHASES, Phase, Status, phase_of
from airflow_provider_gangjobs.gang.state.stopped import stopped_by_user
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.tracking.explanation import read_view
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow
from airflow_provider_gangjobs.tracking.gang_listing import list_attempts
from airflow_provider_gangjobs.tracking.logs.last_lines import read_logs
from gangjobs_sandbox.resources import JOBS
from tests.crashes import (
    CrashingClient,
    InterceptedClient,
    check_each_kind_was_reached,
    crash_points,
    dies,
    may_die,
)
from tests.ends import Killed, discard, kill
from tests.provider.role_gangs import (
    CLAIM,
    LEADER_AND_WORKERS,
    condition_of,
    end,
    end_all,
    jobs_of,
    running,
    submit_roles,
)
from tests.provider.submission_cluster import KEY
from tests.provider.virtual_control_plane import NAMESPACE, Follower, VirtualControlPlane, loop_clock
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef

pytestmark = in_virtual_time

PROD = replace(KEY, installation="prod")
POLICIES = Policies(OnKill.DELETE, OnFinish.DELETE_SUCCEEDED)
LATER = timedelta(seconds=30)


async def gone(plane: VirtualControlPlane, ref: GangRef) -> None:
    await plane.until(lambda: not plane.pods(ref.name) and not jobs_of(plane, ref), within_s=300)


async def sweep(plane: VirtualControlPlane) -> list[str]:
    await asyncio.sleep(120)
    swept = await sweep_once(
        plane.client,
        NAMESPACE,
        follow=lambda ref: service.follow(plane.config, ref),
        older_than=LATER,
    )
    return [str(each.decision.action) for each in swept]


async def test_sweep_ends_all_roles_of_a_gang_whose_task_has_ended(plane):
    ref = await running(plane, key=PROD, policies=POLICIES)
    end(plane, ref, "leader")

    async def ask(_: object) -> TaskEnd:
        return TaskEnd.ENDED

    async def follow(_: GangRef) -> None:
        raise AssertionError("a live gang is deleted, and not followed")

    sweep = Sweep(PROD.installation, is_followed=lambda _: False, ask=ask, follow=follow, clock=loop_clock())
    swept = []
    for wait_s in (0, ASK_AFTER.total_seconds(), CONFIRM_AFTER.total_seconds()):
        await asyncio.sleep(wait_s)
        swept += await sweep.run(plane.client, await NamespaceView.read(plane.client, NAMESPACE))
    assert [each.decision.action for each in swept] == [SweepAction.DELETE_LIVE]
    await gone(plane, ref)


async def test_sweep_leaves_a_gang_whose_leader_has_ended(plane):
    ref = await running(plane, key=PROD, policies=POLICIES)
    end(plane, ref, "leader")
    assert await sweep(plane) == []
    assert plane.running_ranks(ref.name) == 3


async def test_sweep_records_the_outcomes_of_a_gang_whose_roles_have_ended(plane):
    ref = await running(plane, key=PROD, policies=POLICIES)
    end_all(plane, ref)
    assert await sweep(plane) == ["release"]
    assert (plane.held(ref.name), len(plane.ledger(ref.name)), len(jobs_of(plane, ref))) == ([], 4, 2)


@pytest.mark.parametrize("created", [0, pytest.param(1, marks=pytest.mark.slow), 40])
async def test_kill_while_pods_are_created_leaves_no_pod(created):
    roles = {**LEADER_AND_WORKERS.roles, "worker": {"image": "w", "workers": 200}}
    async with VirtualControlPlane.running(nodes=5) as plane:
        ref = await submit_roles(plane, GangSpec(roles=roles))
        await plane.until(lambda: len(plane.pods(ref.name)) >= created)
        assert await kill(plane.client, ref, CLAIM) is Killed.DELETED
        await gone(plane, ref)


class InterferingClient(InterceptedClient):
    """A client that lets something happen in the cluster before the request of this number."""

    def __init__(self, client: Client, at: int, happens: Callable[[], Awaitable[object]]) -> None:
        super().__init__(client)
        self.at, self.happens = at, happens

    async def send_through(self, number: int, request: str, send: Callable[[], Awaitable[Any]]) -> Any:
        if number == self.at:
            await self.happens()
        return await send()


async def leader_ended(plane: VirtualControlPlane) -> GangRef:
    """Return a gang whose leader has ended and whose workers run."""
    ref = await running(plane)
    end(plane, ref, "leader")
    await plane.until(lambda: condition_of(jobs_of(plane, ref)["leader"], "Complete") is not None)
    return ref


async def workers_succeed(plane: VirtualControlPlane, ref: GangRef) -> None:
    end_all(plane, ref)
    await asyncio.sleep(5)


async def requests_of_kill(plane: VirtualControlPlane, ref: GangRef) -> list[str]:
    process = CrashingClient(plane.client)
    assert await kill(process, ref, CLAIM) is Killed.DELETED
    return process.requests


async def test_kill_deletes_the_job_of_a_live_role_before_an_ended_record(plane):
    ref = await leader_ended(plane)
    requests = await requests_of_kill(plane, ref)
    assert requests[:5] == ["GET jobs", "LIST jobs", "PATCH jobs", "DELETE jobs", "DELETE jobs"]
    await gone(plane, ref)


@pytest.mark.parametrize("at", range(4))
async def test_gang_that_succeeds_before_a_role_is_deleted_is_kept(plane, at):
    ref = await leader_ended(plane)
    process = InterferingClient(plane.client, at, lambda: workers_succeed(plane, ref))
    assert await kill(process, ref, CLAIM) is Killed.ENDED
    assert (await Follower(plane, ref).event()).status is Status.SUCCEEDED
    assert await submit_roles(plane, claim="ti-2") == ref


@pytest.mark.parametrize("at", range(3))
async def test_gang_that_another_try_adopts_before_a_role_is_deleted_is_kept(plane, at):
    ref = await leader_ended(plane)
    process = InterferingClient(plane.client, at, lambda: submit_roles(plane, claim="ti-2"))
    assert await kill(process, ref, CLAIM) is Killed.LEFT_ALONE
    await workers_succeed(plane, ref)
    assert (await Follower(plane, ref).event()).status is Status.SUCCEEDED


async def test_try_that_starts_while_the_roles_are_deleted_submits_another_gang(plane):
    ref = await leader_ended(plane)
    found: list[GangRef] = []

    async def submit() -> None:
        found.append(await submit_roles(plane, claim="ti-2"))

    process = InterferingClient(plane.client, 3, submit)
    assert await kill(process, ref, CLAIM) is Killed.DELETED
    assert found
    assert found[0] != ref


async def test_kill_that_crashes_is_completed_by_the_next_one():
    async with VirtualControlPlane.running() as plane:
        crashes = crash_points((await requests_of_kill(plane, await leader_ended(plane)))[:5])
    for crash in crashes:
        async with VirtualControlPlane.running() as plane:
            ref = await leader_ended(plane)
            process = CrashingClient(plane.client, crash)
            with dies(process):
                await kill(process, ref, CLAIM)
            await kill(plane.client, ref, CLAIM)
            await gone(plane, ref)


ENDINGS = {
    "kill": lambda gangs, ref: kill(gangs.client, ref, CLAIM),
    "discard": lambda gangs, ref: discard(gangs.client, ref, CLAIM),
    "stop": lambda gangs, ref: gangs.stop(ref, reason="stop"),
    "end live gangs": lambda gangs, ref: end_live_gangs(
        gangs.client, KEY, CLAIM, namespace=ref.namespace, stopped=stopped_by_user("stop"), on_ended=lambda ref: None
    ),
}


@pytest.mark.parametrize(
    "ending", [pytest.param(name, marks=() if name == "kill" else pytest.mark.slow) for name in ENDINGS]
)
async def test_next_try_runs_alone_wherever_the_process_died_that_ended_a_gang(ending):
    async with VirtualControlPlane.running() as plane:
        ref = await running(plane)
        counted = CrashingClient(plane.client)
        await ENDINGS[ending](GangService(counted), ref)
    processes = []
    for crash in crash_points(counted.requests):
        async with VirtualControlPlane.running() as plane:
            ref = await running(plane)
            process = CrashingClient(plane.client, crash)
            processes.append(process)
            with may_die(process):
                await ENDINGS[ending](GangService(process), ref)
            await asyncio.sleep(60)
            gangs = GangService(plane.client)
            submission = await gangs.submit(LEADER_AND_WORKERS, key=KEY, claim="ti-2")
            following = Follower(plane, submission.ref)
            await plane.until(lambda ref=submission.ref, plane=plane: plane.running_ranks(ref.name) == 4)
            end_all(plane, submission.ref)
            assert (await following.event()).status is Status.SUCCEEDED, crash
            live = [job for job in plane.registry.list(JOBS, NAMESPACE) if job["status"].get("active")]
            assert live == [], crash
    check_each_kind_was_reached(processes, counted.requests)


async def test_snapshot_shows_all_roles_and_earlier_attempts(plane):
    first = await running(plane)
    end(plane, first, "worker", exit_code=1)
    await Follower(plane, first).event()
    second = await submit_roles(plane, claim="ti-2")
    await plane.until(lambda: plane.running_ranks(second.name) == 4)
    gang, *earlier = await list_attempts(plane.client, NAMESPACE, KEY.digest)
    view = await read_view(plane.client, gang)
    assert (gang.ref, view.phase, view.roles, view.states) == (
        second,
        "running",
        {"leader": 1, "worker": 3},
        {"running": 4},
    )
    assert [row.label for row in view.pods] == ["leader 0", "worker 0", "worker 1", "worker 2"]
    assert [one.ref for one in earlier] == [first]


async def test_earlier_attempt_is_read_once_and_says_why_it_failed(plane):
    from airflow_provider_gangjobs.plugins.caches import SnapshotCache

    first = await running(plane)
    end(plane, first, "worker", exit_code=1)
    await Follower(plane, first).event()
    await submit_roles(plane, claim="ti-2")
    (_, *earlier), cache = await list_attempts(plane.client, NAMESPACE, KEY.digest), SnapshotCache()
    await cache._read_ends(plane.client, earlier)
    assert "of role worker exited with code 1" in cache._ends[first.uid].summary
    await cache._read_ends(None, earlier)  # needs no client


async def test_logs_name_the_role_and_the_rank_in_it(plane):
    ref = await running(plane)
    for pod in plane.pods(ref.name):
        plane.write(pod["metadata"]["name"], "hello\n")
    logs = await read_logs(plane.client, ref, Logs.ALL)
    assert [(log.label, log.text) for log in logs] == [
        (rank, "hello\n") for rank in ("rank 0 of role leader", *map("rank {} of role worker".format, range(3)))
    ]


async def fail_a_worker(plane: VirtualControlPlane, process: CrashingClient) -> GangRef:
    """Let a worker fail while the process follows the gang; wait until the process has ended."""
    ref = await running(plane)
    following = asyncio.create_task(follow(process, ref, FollowOptions(now=plane.clock.now)))
    await asyncio.sleep(5)
    end(plane, ref, "worker", exit_code=3)
    await asyncio.wait([following], timeout=300)
    with may_die(process):
        await following
    return ref


async def test_any_other_follower_continues_wherever_the_first_one_died():
    async with VirtualControlPlane.running() as plane:
        counted = CrashingClient(plane.client)
        await fail_a_worker(plane, counted)
    assert "PATCH jobs" in counted.requests
    processes = []
    for crash in crash_points(counted.requests):
        async with VirtualControlPlane.running() as plane:
            processes.append(CrashingClient(plane.client, crash))
            ref = await fail_a_worker(plane, processes[-1])
            event = await Follower(plane, ref).event()
            assert (event.status, event.reason, event.ranks[0].role) == (Status.FAILED, "AppFailed", "worker"), crash
            assert (plane.held(ref.name), len(plane.ledger(ref.name))) == ([], 4), crash
    check_each_kind_was_reached(processes, counted.requests)


SELECTIONS = {
    "task": lambda ref: GangSelection(namespace=NAMESPACE, digests=(KEY.digest,)),
    "name": lambda ref: GangSelection(namespace=NAMESPACE, names={ref.name: ""}),
    "uid": lambda ref: GangSelection(namespace=NAMESPACE, names={ref.name: ref.uid}),
    "selector": lambda ref: GangSelection(namespace=NAMESPACE, selector=f"gangjobs.airflow/gang={ref.name}"),
}


@pytest.mark.parametrize("select", SELECTIONS.values(), ids=SELECTIONS)
async def test_sensor_finds_one_gang_and_its_end(plane, select):
    ref = await running(plane)
    gangs, selection = GangService(plane.client), select(ref)
    end(plane, ref, "leader")
    await asyncio.sleep(5)
    (found,) = (await gangs.find_gangs(selection)).values()
    assert found.ref == ref
    assert phase_of(found.job) not in FINAL_PHASES
    assert await gangs.list_gangs(selection) == [ref]
    for rank in range(3):
        end(plane, ref, "worker", rank)
    assert (await Follower(plane, ref).event()).status is Status.SUCCEEDED
    (found,) = (await gangs.find_gangs(selection)).values()
    assert phase_of(found.job) is Phase.SUCCEEDED

"""The logs of the ranks that a policy selects, as far as they can be read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.errors import BadRequest, Forbidden
from airflow_provider_gangjobs.gang.spec import Logs
from airflow_provider_gangjobs.tracking.harvest.collect import read_outcomes
from airflow_provider_gangjobs.tracking.logs.last_lines import (
    LIMIT_BYTES,
    RANKS_MAX,
    RankLog,
    explain_problem,
    read_logs,
    removal_of,
    select_pods,
)
from tests.provider.follower import Follower
from tests.provider.virtual_time import in_virtual_time
from tests.unit.builders import pod, ranks

if TYPE_CHECKING:
    from tests.provider.virtual_control_plane import VirtualControlPlane


async def _failed_gang(plane: VirtualControlPlane, *, first: int = 2):
    ref = plane.submit(workers=4)
    following = Follower(plane, ref)
    await plane.until(lambda: plane.running_ranks() == 4)
    for one in plane.pods():
        plane.logs[one["metadata"]["name"]] = f"step 1\nstep 2 of {one['metadata']['name'][:7]}\n"
    await asyncio.sleep(5)
    plane.finish("train", first, exit_code=1)
    return ref, following


POLICIES = {
    "rank 0 and the first to fail": (Logs.RANK0_AND_FAILED, [0, 2]),
    "all": (Logs.ALL, [0, 1, 2, 3]),
    "none": (Logs.NONE, []),
}


@pytest.mark.parametrize(("policy", "read"), POLICIES.values(), ids=POLICIES)
@in_virtual_time
async def test_policy_selects_the_ranks_whose_logs_are_read(plane, policy, read):
    ref, following = await _failed_gang(plane)
    found = await read_logs(plane.client, ref, policy, outcomes=await read_outcomes(plane.client, ref))
    assert [log.rank for log in found] == read
    assert all(log.text.startswith("step 1\nstep 2") for log in found)
    await following.kill()


def _numbered(lines: int) -> str:
    """Return lines of 400 bytes, and an exception at the end."""
    return "".join(f"{f'step {number}':<399}\n" for number in range(1, lines + 1)) + TRACEBACK


TRACEBACK = "Traceback (most recent call last):\nValueError: loss is NaN\n"
KUBECTL = "`kubectl logs -n default {pod} -c main` shows all lines while the pod is there"
ENDS = {
    "more lines than are asked for": (
        _numbered(1200),
        TRACEBACK,
        f"any lines before the last 1,000 lines and the first 343 of the last 1,000 lines; {KUBECTL}",
    ),
    "20,000 lines": (
        _numbered(20_000),
        TRACEBACK,
        f"any lines before the last 1,000 lines and the first 343 of the last 1,000 lines; {KUBECTL}",
    ),
    "fewer lines, and long": (_numbered(800), TRACEBACK, f"the first 145 of its 802 lines; {KUBECTL}"),
    "many short lines": ("a\n" * 1001, "a\na\n", f"any lines before the last 1,000 lines; {KUBECTL}"),
    "one line without an end": (
        "word " * 100_000 + "end",
        "word end",
        f"any lines before this line and the first 237,860 bytes of the last line; {KUBECTL}",
    ),
    "short": (TRACEBACK, TRACEBACK, ""),
    "empty": ("", "", ""),
}


@pytest.mark.parametrize(("written", "end", "left_out"), ENDS.values(), ids=ENDS)
@in_virtual_time
async def test_end_of_a_log_arrives_and_the_missing_part_is_named(plane, written, end, left_out):
    ref, following = await _failed_gang(plane)
    name = plane.pod("train", 0)["metadata"]["name"]
    plane.logs[name] = written
    (zero, _) = await read_logs(plane.client, ref, Logs.RANK0_AND_FAILED)
    assert zero.text.endswith(end)
    assert zero.left_out == left_out.format(pod=name)
    assert len(zero.text) <= LIMIT_BYTES + len("...")
    assert zero.text.startswith("..." if "bytes of the last line" in left_out else written[-len(zero.text) :])
    await following.kill()


@in_virtual_time
async def test_log_that_is_gone_is_reported_as_gone(plane):
    ref, following = await _failed_gang(plane)
    plane.logs.clear()
    found = await read_logs(plane.client, ref, Logs.ALL)
    assert [log.rank for log in found] == [0, 1, 2, 3]
    assert all("404" in log.problem or "400" in log.problem or "500" in log.problem for log in found)
    await following.kill()


@in_virtual_time
async def test_pods_that_cannot_be_listed_are_reported(plane):
    plane.arm("status", method="GET", path="/pods", code=403)
    (only,) = await read_logs(plane.client, plane.submit(), Logs.ALL)
    assert "403" in only.problem


def test_log_is_named_by_its_rank_or_its_pod():
    assert RankLog("p", 3).label == "rank 3"
    assert RankLog("p", None).label == "pod p"


def test_pod_that_never_started_has_no_log():
    pods = [pod("a").rank(0).view(), pod("b").rank(1).on("n").running().view()]
    assert [one.metadata.name for one in select_pods(pods, Logs.ALL)] == ["b"]


def test_pod_whose_container_was_removed_has_a_log_that_is_missing():
    evicted = pod("a").rank(1).on("n").container_removed().phase("Failed", "Evicted")
    assert [one.metadata.name for one in select_pods([evicted.view()], Logs.RANK0_AND_FAILED)] == ["a"]


MISSING = BadRequest(400, request="GET /log", message="container main is waiting to start")
REMOVALS = {
    "an evicted pod": (pod("a").container_removed().phase("Failed", "Evicted"), "of a pod that it evicts, with their"),
    "a deleted pod": (pod("a").failed(143).deleted(asked=50), "of a deleted pod, with their logs"),
    "a lost container": (pod("a").container_removed().phase("Failed"), "has lost the container, with its log"),
    "any other pod": (pod("a").failed(1), "GET /log: 400"),
}


@pytest.mark.parametrize(("builder", "reason"), REMOVALS.values(), ids=REMOVALS)
def test_reason_why_a_log_is_gone_comes_from_the_pod(builder, reason):
    explained = explain_problem(MISSING, removal_of(builder.view()))
    assert reason in explained
    assert "waiting to start" in explained


def test_fault_of_a_server_is_not_explained_by_the_pod():
    assert explain_problem(Forbidden(403, request="GET /log"), "the kubelet removes") == str(
        Forbidden(403, request="GET /log")
    )


def test_failed_ranks_come_before_others_when_there_are_many():
    many = ranks(40, lambda builder: builder.on("n").running())
    last = pod("last").rank(40).on("n").failed(1).view()
    chosen = select_pods([*many, last], Logs.ALL)
    assert len(chosen) == RANKS_MAX
    assert chosen[-1] is last

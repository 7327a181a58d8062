"""The logs of the selected ranks are copied into the log of the task. Missing parts are named at their place."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.errors import BadRequest, Forbidden
from airflow_provider_gangjobs.cluster.http.log_reader import PART_BYTES_MAX, LogParser, LogPosition
from airflow_provider_gangjobs.gang.spec import LogOptions, Logs, log_problems, streamed_ranks
from airflow_provider_gangjobs.tracking.follow import follow
from airflow_provider_gangjobs.tracking.harvest.collect import read_outcomes
from airflow_provider_gangjobs.tracking.logs.copy import CopiedLog, HeadAndEnd, Omission, TaskLog, copy_logs
from airflow_provider_gangjobs.tracking.logs.last_lines import (
    LIMIT_BYTES,
    RANKS_MAX,
    RankLog,
    explain_problem,
    read_logs,
    removal_of,
    select_pods,
)
from airflow_provider_gangjobs.tracking.logs.whole_logs import HELD_PARTS, LineWriter
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import PODS
from tests.provider.virtual_control_plane import Follower
from tests.provider.virtual_time import START, in_virtual_time
from tests.unit.builders import pod, ranks

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.identity import GangRef
    from tests.provider.virtual_control_plane import VirtualControlPlane

pytestmark = in_virtual_time


# -- The logs of the selected ranks are copied into the log of the task. Missing parts are named at their place ------

TRACEBACK = "Traceback (most recent call last):\nValueError: loss is NaN\n"
KUBECTL = "`kubectl logs -n default {pod} -c main` shows all lines while the pod exists"


async def _copied(
    plane: VirtualControlPlane,
    ref: GangRef,
    policy: Logs = Logs.ALL,
    *,
    outcomes: Any = (),
    positions: Any = None,
    **options: Any,
) -> tuple[list[str], list[CopiedLog]]:
    """Copy the logs of a gang. Return the copied lines and the results."""
    lines: list[str] = []
    log = TaskLog(lines.extend, positions=positions or {})
    copied = await copy_logs(plane.client, ref, LogOptions(policy, **options), log, outcomes=outcomes)
    return lines, copied


async def _copy(
    plane: VirtualControlPlane, log: str, *, position: LogPosition | None = None, **options: Any
) -> tuple[list[str], list[CopiedLog], str]:
    """Run a gang of one rank with this log. Return the copied lines, the results, and the name of the pod."""
    ref = await plane.run_gang(workers=1)
    name = plane.pod("train", 0)["metadata"]["name"]
    plane.logs[name] = log
    positions = {f"{name}/main": str(position)} if position else {}
    return *await _copied(plane, ref, positions=positions, **options), name


LOGS = {
    "20,000 lines": "".join(f"line {number} {'x' * 80}\n" for number in range(20_000)),
    "1,200 lines of 400 bytes and an exception": "".join(f"{at:<399}\n" for at in range(1200)) + TRACEBACK,
    "empty lines": "\n\na\n\n",
    "without a line end": "a\nb",
    "empty": "",
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
async def test_log_arrives_whole_and_in_order(plane, log):
    lines, _, name = await _copy(plane, log)
    expected = [f"[rank 0] {line}" for line in log.removesuffix("\n").split("\n")] if log else []
    assert lines == [
        f"[rank 0] (log of pod {name}, container main)",
        *expected,
        f"[rank 0] (end of the log: {len(expected):,} lines, {len(log):,} bytes)",
    ]


async def test_log_above_the_limit_has_its_beginning_its_end_and_the_counts_between(plane):
    log = "".join(f"step {number:<94}\n" for number in range(10_000)) + TRACEBACK
    lines, (copied,), name = await _copy(plane, log, bytes_max=100_000)
    (place,) = (at for at, line in enumerate(lines) if "left out here" in line)
    head, end = lines[1:place], lines[place + 1 : -1]
    left_out = 10_002 - len(head) - len(end)
    assert f"{left_out:,} lines" in lines[place]
    assert lines[place].endswith(f"; {KUBECTL.format(pod=name)})")
    assert head[0].split() == ["[rank", "0]", "step", "0"]
    assert [line.removeprefix("[rank 0] ") for line in end] == log.splitlines()[-len(end) :]
    assert 80_000 < sum(map(len, lines)) < 200_000
    assert copied.last_lines.endswith("ValueError: loss is NaN")


async def test_ranks_without_a_pod_have_a_note_each_up_to_a_number(plane):
    ref = await plane.run_gang(workers=40)
    plane.logs |= {pod["metadata"]["name"]: "said\n" for pod in plane.pods()}
    plane.finish("train", 7, exit_code=1)
    await follow(plane.client, ref)
    lines, _ = await _copied(plane, ref, outcomes=await read_outcomes(plane.client, ref))
    assert "[rank 7] said" in lines
    assert sum("no log: pod" in line for line in lines) == 20
    assert lines[-1] == "[train] (the same holds for 19 more ranks)"


async def test_ranks_share_the_limit_and_get_what_other_ranks_do_not_need(plane):
    ref = await plane.run_gang(workers=3)
    for rank, size in enumerate((10, 300_000, 300_000)):
        plane.logs[plane.pod("train", rank)["metadata"]["name"]] = "x" * 99 + "\n" + ("y" * 99 + "\n") * (size // 100)
    lines, _ = await _copied(plane, ref, bytes_max=400_000)
    sizes = [sum(len(line) for line in lines if line.startswith(f"[rank {rank}]")) for rank in range(3)]
    assert sizes[0] < 300
    assert all(180_000 < size < 260_000 for size in sizes[1:])


LONG_LINES = {
    "a line of megabytes": ("x" * 3_000_000 + "\n" + TRACEBACK, 46, "[rank 0, continued] xxx"),
    "binary": ("\udcff\udcfe\x00\u2028" * 50_000 + "\n" + TRACEBACK, 5, "[rank 0, continued] "),
    "a progress bar": ("10%\r20%\r" * 100 + "\n" + TRACEBACK, 1, "[rank 0] 10%\r20%\r"),
}


@pytest.mark.parametrize(("log", "pieces", "begin"), LONG_LINES.values(), ids=LONG_LINES)
async def test_lines_of_any_length_and_any_bytes_arrive(plane, log, pieces, begin):
    lines, _, _ = await _copy(plane, log)
    long, end = lines[1:-3], lines[-3:-1]
    assert (len(long), end[-1]) == (pieces, "[rank 0] ValueError: loss is NaN")
    assert long[-1].startswith(begin)
    escaped = 4  # the length of the escape of a byte
    assert max(map(len, long)) <= escaped * 2**16 + len("[rank 0, continued] ")


# -- faults ------------------------------------------------------------------------------------------------


async def test_broken_connection_neither_loses_nor_repeats_a_line(plane):
    log = LOGS["20,000 lines"]
    for chunks in (3, 9, 1):
        plane.arm("drop-after", method="GET", path="/log", chunks=chunks)
    lines, _, _ = await _copy(plane, log)
    assert [line.removeprefix("[rank 0] ") for line in lines[1:-1]] == log.splitlines()


async def test_log_that_is_gone_is_reported_and_the_others_are_copied(plane):
    ref = await plane.run_gang(workers=2)
    plane.logs[plane.pod("train", 1)["metadata"]["name"]] = "a\n"
    lines, _ = await _copied(plane, ref)
    assert lines[1].startswith("[rank 0] (no log: GET ")
    assert "400" in lines[1]
    assert lines[3] == "[rank 1] a"


async def test_pods_that_cannot_be_listed_are_reported(plane):
    plane.arm("status", method="GET", path="/pods", code=403)
    lines, copied = await _copied(plane, plane.submit())
    assert (copied, "403" in lines[0]) == ([], True)


# -- other containers, other runs ---------------------------------------------------------------------------


def _set_status(plane: VirtualControlPlane, status: dict[str, Any]) -> str:
    name = plane.pod("train", 0)["metadata"]["name"]
    plane.registry.patch(PODS, name, "default", {"status": status}, PatchKind.MERGE, subresource="status")
    return str(name)


ENDED = {"terminated": {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}}


@pytest.mark.parametrize(
    ("containers", "labels"),
    [
        pytest.param((), ["rank 0"], id="main"),
        pytest.param(("proxy",), ["rank 0", "rank 0 proxy"], id="a sidecar"),
        pytest.param(("all",), ["rank 0 fetch", "rank 0", "rank 0 proxy"], id="all"),
    ],
)
async def test_init_containers_and_sidecars_are_copied_on_request(plane, containers, labels):
    fetch, main, proxy = ({"name": name, "image": "i"} for name in ("fetch", "main", "proxy"))
    ref = await plane.run_gang(workers=1, pod={"initContainers": [fetch], "containers": [main, proxy]})
    base = {"image": "i", "imageID": "i", "ready": False, "restartCount": 0, "state": ENDED}
    name = _set_status(
        plane,
        {
            "initContainerStatuses": [{**base, "name": "fetch"}],
            "containerStatuses": [{**base, "name": "proxy"}, {**base, "name": "main"}],
        },
    )
    plane.logs |= {f"{name}/{container}": f"by {container}\n" for container in ("fetch", "main", "proxy")}
    lines, _ = await _copied(plane, ref, containers=containers)
    said = [line for line in lines if "] by " in line]
    assert [line.partition("]")[0].removeprefix("[") for line in said] == labels


FAILED = {"terminated": {"exitCode": 3, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [pytest.param((), [], id="not asked for"), pytest.param(("fetch",), ["[rank 0 fetch] no data"], id="asked for")],
)
@pytest.mark.parametrize("policy", [Logs.ALL, Logs.RANK0_AND_FAILED])
async def test_log_of_an_init_container_that_failed_is_copied_on_request(plane, policy, containers, expected):
    fetch, main = ({"name": name, "image": "i"} for name in ("fetch", "main"))
    ref = await plane.run_gang(workers=1, pod={"initContainers": [fetch], "containers": [main]})
    base = {"image": "i", "imageID": "i", "ready": False, "restartCount": 0}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    name = _set_status(
        plane,
        {
            "phase": "Failed",
            "initContainerStatuses": [{**base, "name": "fetch", "state": FAILED}],
            "containerStatuses": [{**base, "name": "main", "state": waiting}],
        },
    )
    plane.logs |= {f"{name}/fetch": "no data\n"}
    lines, _ = await _copied(plane, ref, policy, containers=containers)
    assert [line for line in lines if "(" not in line] == expected
    assert not [line for line in lines if "left out" in line or "no log" in line]


async def test_log_before_a_restart_is_copied_too(plane):
    ref = await plane.run_gang(workers=1)
    main = {"name": "main", "image": "i", "imageID": "i", "ready": False, "restartCount": 2}
    name = _set_status(plane, {"containerStatuses": [{**main, "state": ENDED, "lastState": ENDED}]})
    plane.logs |= {name: "second\n", f"{name}/previous": "first\n"}
    lines, _ = await _copied(plane, ref)
    assert lines[1] == "[rank 0] (left out here: the kubelet keeps no log of the first 1 run)"
    assert [line for line in lines if "(" not in line] == ["[rank 0] first", "[rank 0] second"]


async def test_message_of_a_kubelet_that_has_removed_a_log_is_not_copied_as_the_log(plane):
    ref = await plane.run_gang(workers=1)
    main = {"name": "main", "image": "i", "imageID": "i", "ready": False, "restartCount": 1}
    name = _set_status(plane, {"containerStatuses": [{**main, "state": ENDED, "lastState": ENDED}]})
    removed = "unable to retrieve container logs for containerd://5edc26805ffc0ca9"
    plane.logs |= {name: "second\n", f"{name}/previous": removed}
    lines, _ = await _copied(plane, ref)
    assert lines[1].startswith("[rank 0] (no log: ")
    assert lines[1].endswith(f"the kubelet has removed the log: {removed})")
    assert [line for line in lines if "(" not in line] == ["[rank 0] second"]


EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. "}
LOST = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
REMOVED = "the kubelet removes the containers of a pod that it evicts, with their logs (GET "


@pytest.mark.parametrize(
    "state",
    [pytest.param({"waiting": {"reason": "ContainerCreating"}}, id="first status"), pytest.param(LOST, id="last")],
)
async def test_log_that_was_removed_with_an_evicted_pod_is_missing_with_the_reason(plane, state):
    ref = await plane.run_gang(workers=1)
    main = {"name": "main", "image": "i", "imageID": "i", "ready": False, "restartCount": 1}
    name = _set_status(plane, {**EVICTED, "containerStatuses": [{**main, "state": state, "lastState": LOST}]})
    lines, _ = await _copied(plane, ref)
    assert lines[0] == f"[rank 0] (log of pod {name}, container main)"
    assert lines[1].startswith(f"[rank 0] (no log: {REMOVED}")
    assert len(lines) == 2


async def test_rest_of_a_streamed_log_that_was_removed_with_an_evicted_pod_is_missing_with_the_reason(plane):
    ref = await plane.run_gang(workers=1)
    name = _set_status(plane, EVICTED)
    lines, _ = await _copied(plane, ref, positions={f"{name}/main": str(LogPosition(1))})
    assert lines[1].startswith(f"[rank 0] (left out here: what was not streamed could not be read: {REMOVED}")


SECOND_LINE = LogPosition(int(START.timestamp()) * 10**9 + 1000)
"""The position after the second line: the lines of `plane.logs` are a microsecond apart."""


# -- after a stream ----------------------------------------------------------------------------------------


async def test_log_continues_where_it_was_streamed_to(plane):
    lines, (copied,), name = await _copy(plane, "a\nb\nc\n", position=SECOND_LINE)
    assert lines == [
        f"[rank 0] (log of pod {name}, container main, after what was streamed)",
        "[rank 0] c",
        "[rank 0] (end of the log: 1 lines, 2 bytes after the stream)",
    ]
    assert copied.last_lines == "a\nb\nc"


async def test_streamed_log_of_a_pod_that_succeeded_is_not_read_for_its_last_lines(plane):
    ref = await plane.run_gang(workers=1)
    name = _set_status(plane, {"phase": "Succeeded"})
    plane.logs |= {name: "a\nb\nc\n"}
    _, (copied,) = await _copied(plane, ref, positions={f"{name}/main": str(SECOND_LINE)})
    assert copied.last_lines == "c"


async def test_log_that_differs_from_the_streamed_one_is_copied_with_a_note(plane):
    lines, _, _ = await _copy(plane, "a\nb\n", position=LogPosition(1))
    assert "may appear a second time" in lines[1]
    assert lines[2:4] == ["[rank 0] a", "[rank 0] b"]


# -- limits and parameters ---------------------------------------------------------------------------------


def test_memory_does_not_depend_on_the_size_of_the_log() -> None:
    written = 0

    def count(lines: Any) -> None:
        nonlocal written
        written += len(lines)

    writer = LineWriter("rank 0", count)
    omissions: list[Omission] = []
    log = HeadAndEnd(2**20, writer.write, omissions.append)
    chunk = b"".join(b"%099d\n" % number for number in range(2000))
    tracemalloc.start()
    for _ in range(500):
        log.feed(chunk)
    log.end()
    writer.flush()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (log.bytes, log.lines) == (100_000_000, 1_000_000)
    assert written + omissions[0].lines == 1_000_000
    assert peak < 4 * 2**20


SECRET = "-----BEGIN KEY-----\nabc\ndef\n-----END KEY-----"
PLACES = {
    "in one write": [f"a\n{SECRET}\nb\n"],
    "over two writes": ["a\n-----BEGIN KEY-----\nabc\n", "def\n-----END KEY-----\nb\n"],
    "over two writes after many lines": ["a\n" * 200 + "-----BEGIN KEY-----\nabc\n", "def\n-----END KEY-----\nb\n"],
    "over two writes after another secret": [
        f"a\n{SECRET}\n" + "b\n" * 60 + "-----BEGIN KEY-----\nabc\n",
        "def\n-----END KEY-----\nb\n",
    ],
    "over pieces of a line": ["x" * (2**16 - 5) + SECRET.replace("\n", "") + "\n"],
}


@pytest.mark.parametrize("writes", PLACES.values(), ids=PLACES)
def test_secret_of_several_lines_or_pieces_is_masked(writes: list[str]) -> None:
    lines: list[str] = []
    secrets = (SECRET, SECRET.replace("\n", ""))
    writer = LineWriter("r", lines.extend, lambda text: text.replace(secrets[0], "***").replace(secrets[1], "***"))
    parser = LogParser()
    for text in writes:
        parts = parser.feed(text.encode())
        for at in range(0, len(parts), HELD_PARTS):
            writer.write(parts[at : at + HELD_PARTS])
    writer.flush()
    assert "KEY" not in "".join(lines)
    assert sum("***" in line for line in lines) == "".join(writes).count("END")
    assert all(line.startswith("[r") for line in lines)


@pytest.mark.parametrize("before", range(1, len("s3cr3t-in-a-line")))
def test_secret_over_two_pieces_of_a_line_is_masked_if_the_second_comes_later(before: int) -> None:
    """The first piece ends with the first characters of the secret."""
    lines: list[str] = []
    writer, parser = LineWriter("r", lines.extend, lambda text: text.replace("s3cr3t-in-a-line", "***")), LogParser()
    text = "x" * (PART_BYTES_MAX - before) + "s3cr3t-in-a-line, next"
    for chunk in (text[: PART_BYTES_MAX + 1], text[PART_BYTES_MAX + 1 :] + "\n"):
        writer.write(parser.feed(chunk.encode()))
        writer.flush(is_end=False)
    assert "".join(line.partition("] ")[2] for line in lines) == "x" * (PART_BYTES_MAX - before) + "***, next"


WRONG = {
    "limit": {"log_limit": 1},
    "limit as text": {"log_limit": "1Mi"},
    "containers": {"log_containers": [1]},
    "streamed ranks": {"stream_logs": [-1]},
    "too many streamed ranks": {"stream_logs": list(range(9))},
    "rank that the gang does not have": {"stream_logs": 4, "workers": 4},
}


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
def test_invalid_parameter_is_named(given: dict[str, Any]) -> None:
    (problem,) = log_problems(**{"log_limit": 2**20, "log_containers": (), **given})
    assert problem.path == next(iter(given))


@pytest.mark.parametrize(("given", "ranks"), [(True, (0,)), (False, ()), (3, (3,)), ([2, 0, 2], (0, 2))])
def test_streamed_ranks_are_a_choice(given: Any, ranks: tuple[int, ...]) -> None:
    assert streamed_ranks(given) == ranks
    assert not list(log_problems(log_limit=2**20, log_containers="all", stream_logs=given))


# -- The logs of the ranks that a policy selects, as far as they can be read -----------------------------------------


async def _failed_gang(plane: VirtualControlPlane) -> Follower:
    following = await Follower.of_running_gang(plane, workers=4)
    for one in plane.pods():
        plane.logs[one["metadata"]["name"]] = f"step 1\nstep 2 of {one['metadata']['name'][:7]}\n"
    await asyncio.sleep(5)
    plane.finish("train", 2, exit_code=1)
    return following


POLICIES = {
    "rank 0 and the first to fail": (Logs.RANK0_AND_FAILED, [0, 2]),
    "all": (Logs.ALL, [0, 1, 2, 3]),
    "none": (Logs.NONE, []),
}


@pytest.mark.parametrize(("policy", "read"), POLICIES.values(), ids=POLICIES)
async def test_policy_selects_the_ranks_whose_logs_are_read(plane, policy, read):
    following = await _failed_gang(plane)
    found = await read_logs(
        plane.client, following.ref, policy, outcomes=await read_outcomes(plane.client, following.ref)
    )
    assert [log.rank for log in found] == read
    assert all(log.text.startswith("step 1\nstep 2") for log in found)
    await following.kill()


def _numbered(lines: int) -> str:
    """Return lines of 400 bytes, and an exception at the end."""
    return "".join(f"{f'step {number}':<399}\n" for number in range(1, lines + 1)) + TRACEBACK


ENDS = {
    "more lines than are asked for": (_numbered(1200), TRACEBACK, True),
    "fewer lines, and long": (_numbered(800), TRACEBACK, True),
    "many short lines": ("a\n" * 1001, "a\na\n", True),
    "one line without an end": ("word " * 100_000 + "end", "word end", True),
    "short": (TRACEBACK, TRACEBACK, False),
    "empty": ("", "", False),
}


@pytest.mark.parametrize(("written", "end", "is_cut"), ENDS.values(), ids=ENDS)
async def test_end_of_a_log_arrives_and_says_what_is_missing(plane, written, end, is_cut):
    following = await _failed_gang(plane)
    name = plane.pod("train", 0)["metadata"]["name"]
    plane.logs[name] = written
    (zero, _) = await read_logs(plane.client, following.ref, Logs.RANK0_AND_FAILED)
    assert zero.text.endswith(end)
    assert (f"kubectl logs -n default {name} -c main" in zero.left_out) == is_cut
    assert len(zero.text) <= LIMIT_BYTES + len("...")
    assert written.endswith(zero.text.removeprefix("..."))
    await following.kill()


async def test_log_that_is_gone_is_reported_as_gone(plane):
    following = await _failed_gang(plane)
    plane.logs.clear()
    found = await read_logs(plane.client, following.ref, Logs.ALL)
    assert [log.rank for log in found] == [0, 1, 2, 3]
    assert all("404" in log.problem or "400" in log.problem or "500" in log.problem for log in found)
    await following.kill()


async def test_pods_that_cannot_be_listed_are_reported_in_an_error(plane):
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

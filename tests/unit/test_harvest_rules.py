"""When a harvester records, when it releases pods, when it waits, what it logs, and that each pod is released once."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from enum import Enum, auto
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import (
    ApiError,
    ClusterError,
    Conflict,
    Forbidden,
    ReplyLost,
    ServerError,
    TooLarge,
    TooManyRequests,
)
from airflow_provider_gangjobs.ending.release import PATCHES_IN_FLIGHT_MAX, release
from airflow_provider_gangjobs.exceptions import LedgerUnavailable
from airflow_provider_gangjobs.kube.resources import PODS
from airflow_provider_gangjobs.kube.views import Meta, PodView
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from airflow_provider_gangjobs.tracking.harvest.final_harvest import notes_of
from airflow_provider_gangjobs.tracking.harvest.harvester import (
    NOT_RELEASED,
    NOT_STORED,
    QUIET_AFTER_S,
    RECORD_INTERVAL_MAX_S,
    RECOVERED,
    RELEASABLE_MAX,
    SLOW_RELEASE_PAUSE_FACTOR,
    SLOW_RELEASE_PAUSE_MIN_S,
    SLOWED_DOWN,
    Action,
    Backlog,
    Harvester,
    HarvestLog,
    HarvestSchedule,
)
from tests.provider.virtual_control_plane import loop_clock
from tests.provider.virtual_time import in_virtual_time
from tests.timeouts import TIMEOUT_S
from tests.unit.builders import REF, pod
from tests.unit.fault_server import config_for, status

if TYPE_CHECKING:
    from collections.abc import Iterable


# -- When a harvester records, when it releases pods, and when it waits ----------------------------------------------


def _busy(schedule: HarvestSchedule | None = None, now: float = 100.0) -> HarvestSchedule:
    """Set a schedule to a moment at which pods have just ended and were just released."""
    schedule = schedule or HarvestSchedule()
    schedule.note_ended_pods(now)
    schedule.note_slow_release(now, took_s=0.05)
    return schedule


@pytest.mark.parametrize(
    ("unrecorded", "terminating", "releasable", "action"),
    [
        (0, 0, 0, Action.WAIT),
        (1, 0, 0, Action.RECORD),
        (1, 0, 9, Action.RECORD),
        (1, 1, 9, Action.RELEASE_TERMINATING),
        (0, 0, 9, Action.WAIT),
        (0, 0, RELEASABLE_MAX + 1, Action.RELEASE_ALL),
    ],
)
def test_only_urgent_work_is_done_while_pods_end(unrecorded, terminating, releasable, action):
    assert _busy().next_action(100.0, Backlog(unrecorded, terminating, releasable))[0] is action


def test_nothing_to_do_waits_until_pods_are_enqueued():
    assert HarvestSchedule().next_action(1.0, Backlog(0, 0, 0)) == (Action.WAIT, None)


def test_slow_releases_depend_on_how_fast_the_server_answers():
    schedule = HarvestSchedule()
    schedule.note_ended_pods(100.0)
    assert schedule.next_action(100.0, Backlog(0, 0, 9))[0] is Action.RELEASE_SLOWLY
    schedule.note_slow_release(100.0, took_s=0.02)
    assert schedule.next_action(100.0, Backlog(0, 0, 9)) == (
        Action.WAIT,
        pytest.approx(SLOW_RELEASE_PAUSE_FACTOR * 0.02),
    )
    schedule.note_slow_release(100.0, took_s=0.0)
    assert schedule.next_action(100.0, Backlog(0, 0, 9)) == (Action.WAIT, pytest.approx(SLOW_RELEASE_PAUSE_MIN_S))


def test_all_are_released_once_no_more_pods_have_ended_for_a_moment():
    schedule = _busy()
    assert schedule.next_action(100.0 + QUIET_AFTER_S, Backlog(0, 0, 9))[0] is Action.RELEASE_ALL


@pytest.mark.parametrize(("recorded", "pause_s"), [(10, 0.02), (100, 0.2), (100_000, RECORD_INTERVAL_MAX_S)])
def test_large_gangs_are_recorded_in_larger_parts(recorded, pause_s):
    schedule = _busy()
    schedule.note_record(100.0, recorded)
    step, wait_s = schedule.next_action(100.0, Backlog(5, 0, 0))
    assert (step, wait_s) == (Action.WAIT, pytest.approx(pause_s))
    assert schedule.next_action(100.0 + pause_s, Backlog(5, 0, 0))[0] is Action.RECORD


@pytest.mark.parametrize(
    ("backlog", "action"),
    [
        (Backlog(0, 0, 0), Action.WAIT),
        (Backlog(1, 1, 9), Action.RELEASE_TERMINATING),
        (Backlog(1, 0, 9), Action.RECORD),
        (Backlog(0, 0, 9), Action.RELEASE_ALL),
    ],
)
def test_drain_has_no_pauses(backlog, action):
    schedule = _busy()
    schedule.note_record(100.0, 100_000)
    assert schedule.next_action(100.0, backlog, is_draining=True)[0] is action


@pytest.mark.parametrize(
    ("after_s", "backlog", "is_draining", "continues"),
    [
        (0, Backlog(0, 0, 9), False, False),
        (0, Backlog(0, 0, 9), True, True),
        (0, Backlog(0, 1, 9), True, False),
        (0, Backlog(5, 0, 9), True, True),
        (RECORD_INTERVAL_MAX_S, Backlog(5, 0, 9), True, False),
        (QUIET_AFTER_S, Backlog(0, 0, 9), False, True),
    ],
)
def test_release_of_all_is_interrupted_only_by_urgent_work(after_s, backlog, is_draining, continues):
    schedule = _busy()
    schedule.note_record(100.0, 100_000)
    assert schedule.continues_to_release(100.0 + after_s, backlog, is_draining=is_draining) is continues


# -- The log of the harvest: one line when a problem begins, and one line when the problem ends ----------------------

TABLE: dict[str, tuple[Exception, bool, tuple[int, str]]] = {
    "ledger forbidden": (Forbidden(403, request="patch configmaps"), True, NOT_STORED),
    "ledger in conflict": (Conflict(409, request="patch configmaps"), True, NOT_STORED),
    "ledger too large": (TooLarge(413, request="patch configmaps"), True, NOT_STORED),
    "ledger unavailable": (LedgerUnavailable("team/train", "it keeps changing"), True, NOT_STORED),
    "server down": (ServerError(503, request="patch configmaps"), True, NOT_STORED),
    "release refused": (Forbidden(403, request="patch pods"), False, NOT_RELEASED),
    "release lost": (ReplyLost("patch pods", "reset"), False, NOT_RELEASED),
    "busy while storing": (TooManyRequests(429, request="patch configmaps"), True, SLOWED_DOWN),
    "busy while releasing": (TooManyRequests(429, request="patch pods"), False, SLOWED_DOWN),
}


def logged(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if hasattr(record, "fields")]


FAILED: Final = Forbidden(403, request="patch configmaps")
NOTES: dict[str, tuple[tuple[int, int, Exception | None], list[str]]] = {
    "nothing to say": ((0, 0, None), []),
    "one pod ran": ((1, 0, None), ["1 pod had not ended when the gang was over. Its outcome is unknown."]),
    "pods ran": ((2, 0, None), ["2 pods had not ended when the gang was over. Their outcome is unknown."]),
    "one pod is held": (
        (0, 1, FAILED),
        [
            (
                f"1 pod is still held, because its outcome could not be stored: {FAILED}. A task that succeeds "
                "reads its outcome and releases it. Otherwise release it with `gangjobs release`."
            )
        ],
    ),
    "pods are held without an error": (
        (0, 2, None),
        [
            (
                "2 pods are still held. A task that succeeds reads their outcome and releases them. Otherwise release "
                "them with `gangjobs release`."
            )
        ],
    ),
    "an error, and no pod is held": (
        (0, 0, FAILED),
        [f"The harvest of the pods failed: {FAILED}. No pod is held, and the outcome of some pods may be unknown."],
    ),
}


@pytest.mark.parametrize(("given", "notes"), NOTES.values(), ids=NOTES)
def test_notes_of_a_harvest_that_gave_up_say_what_is_so(given: Any, notes: list[str]) -> None:
    assert list(notes_of(*given)) == notes


@pytest.mark.parametrize(("error", "storing", "line"), TABLE.values(), ids=TABLE)
def test_problem_and_its_end_are_logged_once(
    error: Exception, storing: bool, line: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    harvest_log = HarvestLog("team/train")
    harvest_log.succeeded(0.0, backlog=0)
    for now in (10.0, 20.0, 30.0):
        harvest_log.failed(error, now, is_storing=storing, backlog=7)
    harvest_log.succeeded(40.0, backlog=1)
    harvest_log.succeeded(50.0, backlog=0)
    first, last = logged(caplog)
    assert (first.levelno, first.what) == line
    assert first.fields == {"gang": "team/train", "pods": 7, "cause": f"{type(error).__name__}: {error}"}
    assert (last.levelname, last.what) == ("INFO", RECOVERED[1])
    assert last.fields == {"gang": "team/train", "pods": 1, "after_s": 30.0, "tries": 3}


def test_another_problem_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    harvest_log = HarvestLog("team/train")
    for name in ("busy while storing", "ledger forbidden", "ledger forbidden", "release refused"):
        error, storing, _ = TABLE[name]
        harvest_log.failed(error, 1.0, is_storing=storing, backlog=1)
    assert [record.what for record in logged(caplog)] == [SLOWED_DOWN[1], NOT_STORED[1], NOT_RELEASED[1]]


@in_virtual_time
async def test_harvest_that_cannot_store_logs_this_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    """The whole harvester, with a ledger that is refused three times."""
    caplog.set_level(logging.INFO)
    refusals = [Forbidden(403, request="patch configmaps", reason="Forbidden", message="may not")] * 3
    stored = asyncio.Event()

    class Refused:
        ref = REF
        recorded: frozenset[str] = frozenset()

        async def record(self, outcomes: Any, *_: Any) -> None:
            if refusals:
                raise refusals.pop()
            stored.set()

    harvester = Harvester(SimpleNamespace(clock=loop_clock()), Refused())  # type: ignore[arg-type]
    harvester.enqueue([pod("a").failed(1).view()])
    running = asyncio.create_task(harvester.run())
    await stored.wait()
    await asyncio.sleep(0.1)
    running.cancel()
    assert [record.what for record in logged(caplog)] == [NOT_STORED[1], RECOVERED[1]]
    assert logged(caplog)[1].fields["tries"] == 3


# -- Each pod of a gang is released or reported with an error, exactly once, whatever the server does ----------------

PODS_OF_A_LARGE_GANG = 128


class ServerAction(Enum):
    """What the server does with one request."""

    OK = auto()
    GONE = auto()
    CONFLICT = auto()
    REFUSED = auto()
    BUSY = auto()
    BROKEN = auto()
    DIES_BEFORE = auto()
    """The connection ends, and the request is not applied."""
    DIES_AFTER = auto()
    """The request is applied, and the connection ends."""
    DIES_MIDWAY = auto()
    """The request is applied, and half of the response is sent."""
    LAST = auto()
    """The request is applied, and the response says that the connection will be closed."""
    CHUNKED = auto()
    """The request is applied, and the response is chunked, byte by byte."""
    TWICE = auto()
    """The request is applied, and two responses are sent."""
    GARBAGE = auto()
    INTERIM = auto()
    """The request is applied, and a 100 is sent before the response."""
    SILENT = auto()


APPLIED = ("OK", "LAST", "CHUNKED", "TWICE", "DIES_AFTER", "DIES_MIDWAY", "INTERIM")
REFUSALS = {"GONE": 404, "CONFLICT": 409, "REFUSED": 401, "BUSY": 429, "BROKEN": 500}
CODES = {ServerAction[name]: code for name, code in (dict.fromkeys(APPLIED, 200) | REFUSALS).items()}


class Server:
    """A server that keeps connections open, and has a scripted action for each of its first requests."""

    def __init__(self, script: Iterable[ServerAction] = ()) -> None:
        self.script = iter(script)
        self.requests: list[tuple[str, bytes]] = []
        self.heads: list[str] = []
        self.applied: Counter[str] = Counter()
        self.connections = 0
        self.in_flight = self.most_in_flight = 0
        self.busy = asyncio.Event()
        """Set when three requests have arrived."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert not [end for end in ends if isinstance(end, Exception)], "the server has raised an error"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        sizes = [int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length")]
        body = await reader.readexactly(sum(sizes))
        method, path, _ = head.split(" ", 2)
        if method == "GET":
            found = json.dumps({"metadata": {"uid": f"uid-{path.rpartition('/p')[2]}"}}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(found), found))
            return True
        self.heads.append(head)
        self.requests.append((path, body))
        if len(self.requests) >= 3:
            self.busy.set()
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        return await self._do(next(self.script, ServerAction.OK), path, writer, reader)

    async def _do(
        self, does: ServerAction, path: str, writer: asyncio.StreamWriter, reader: asyncio.StreamReader
    ) -> bool:
        code = CODES.get(does, 0)
        if code == 200:
            self.applied[path] += 1
        reply = json.dumps({"metadata": {}} if code == 200 else status(code, "Whatever")).encode()
        head = f"HTTP/1.1 {code} Whatever\r\nContent-Type: application/json\r\n"
        whole = f"{head}Content-Length: {len(reply)}\r\n\r\n".encode() + reply
        match does:
            case ServerAction.DIES_BEFORE | ServerAction.DIES_AFTER:
                return False
            case ServerAction.DIES_MIDWAY:
                writer.write(whole[: len(whole) - 4])
                await writer.drain()
                return False
            case ServerAction.LAST:
                writer.write(f"{head}Connection: close\r\nContent-Length: {len(reply)}\r\n\r\n".encode() + reply)
            case ServerAction.CHUNKED:
                chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in reply)
                for byte in f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n":
                    writer.write(bytes([byte]))
            case ServerAction.TWICE:
                writer.write(whole + whole)
            case ServerAction.GARBAGE:
                writer.write(b"220 mail.example ESMTP\r\n\r\n")  # after the empty line, nothing more is awaited
            case ServerAction.INTERIM:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + whole)
            case ServerAction.SILENT:
                await reader.read()
            case _:
                writer.write(whole)
        return True


def pods(count: int) -> list[PodView]:
    metas = (
        Meta(name=f"p{n}", namespace="team", uid=f"uid-{n}", finalizers=(FINALIZER_HARVEST,)) for n in range(count)
    )
    return [PodView(metadata=meta) for meta in metas]


async def released(
    server: Server, count: int, *, retry_for_s: float = 1, **more: Any
) -> dict[str, ClusterError | None]:
    reported: dict[str, ClusterError | None] = {}

    def report(pod: PodView, error: ClusterError | None) -> None:
        assert pod.metadata.name not in reported, "a pod is reported twice"
        reported[pod.metadata.name] = error

    clock = Clock(sleep=lambda _: asyncio.sleep(0))
    async with (
        asyncio.timeout(TIMEOUT_S),
        Client(config_for(server.url), clock=clock, retry_for_s=retry_for_s) as client,
    ):
        await release(client, pods(count), report, **more)
        assert client.statistics().requests["patch"] <= len(server.requests)
    return reported


async def test_a_large_gang_is_released_over_a_few_connections() -> None:
    async with Server() as server:
        reported = await released(server, 5 * PODS_OF_A_LARGE_GANG)
    assert set(reported.values()) == {None}
    assert set(server.applied.values()) == {1}
    assert len(server.applied) == len(reported) == 5 * PODS_OF_A_LARGE_GANG
    assert server.connections <= PATCHES_IN_FLIGHT_MAX


@given(st.lists(st.sampled_from([one for one in ServerAction if one is not ServerAction.SILENT]), max_size=30))
def test_each_pod_is_reported_once_and_released_if_the_server_allows(script: list[ServerAction]) -> None:
    async def run() -> None:
        async with Server(script) as server:
            reported = await released(server, PODS_OF_A_LARGE_GANG)
        assert len(reported) == PODS_OF_A_LARGE_GANG
        for name, error in reported.items():
            assert (
                error is not None
                or server.applied[f"/api/v1/namespaces/team/pods/{name}"]
                or ServerAction.GONE in script
            )
            assert error is None or isinstance(error, ClusterError)

    asyncio.run(run())


async def test_busy_server_is_retried() -> None:
    async with Server([ServerAction.OK] * 10 + [ServerAction.BUSY] * 3) as server:
        reported = await released(server, 2 * PODS_OF_A_LARGE_GANG, retry_for_s=TIMEOUT_S)
    assert set(reported.values()) == {None}
    assert len(server.applied) == 2 * PODS_OF_A_LARGE_GANG


async def test_stopped_release_reports_finished_pods_only() -> None:
    async with Server() as server:
        reported = await released(server, PODS_OF_A_LARGE_GANG, is_stopped=lambda: len(server.requests) >= 40)
    assert 40 <= len(reported) < PODS_OF_A_LARGE_GANG
    assert len(reported) == len(server.requests)


async def test_permanent_refusal_is_reported_for_each_pod() -> None:
    async with Server([ServerAction.REFUSED] * 10_000) as server:
        reported = await released(server, PODS_OF_A_LARGE_GANG)
    assert all(isinstance(error, ApiError) for error in reported.values())
    assert len(reported) == PODS_OF_A_LARGE_GANG
    assert "strategic-merge" in server.heads[0]
    assert PODS.path("team", "p0") in {path for path, _ in server.requests}

"""List and watch in virtual time: exact delays, the reaction to each end of a watch, and the log of both."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.clock import Clock, TimeSlice
from airflow_provider_gangjobs.cluster.errors import (
    RETRY_AFTER_MAX_S,
    ClusterError,
    Forbidden,
    Gone,
    MethodNotAllowed,
    NotFound,
    ReplyLost,
    ServerError,
    TooManyRequests,
    UnexpectedReply,
    Unreachable,
)
from airflow_provider_gangjobs.cluster.informer.health import SILENCE_BEFORE_WARNING_S, Health
from airflow_provider_gangjobs.cluster.informer.reflector import (
    InformerConfig,
    Reflector,
    Target,
    Undecoded,
    ViewDecoder,
    WatchEvent,
    decode_page,
    error_of_watch,
    has_expired,
)
from airflow_provider_gangjobs.cluster.informer.store import Store
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.kube.text import log_fields
from airflow_provider_gangjobs.kube.views import JobView, PodView, view
from tests.unit.builders import pod

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from airflow_provider_gangjobs.cluster.errors import ClusterError


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    resource_version: str = ""


class View(msgspec.Struct, frozen=True):
    metadata: Meta
    value: str = ""


def obj(uid: str, version: int, value: str = "") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "value": value}


def page(version: int, *items: Any, more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)}


def event(kind: str, of: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": of}


def bookmark(version: int) -> dict[str, Any]:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def expired() -> dict[str, Any]:
    return event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})


@dataclass
class OpenWatch:
    """A watch that is open for this many seconds, and then ends or breaks."""

    seconds: float
    broken_by: ClusterError | None = None


class ScriptEndedError(Exception):
    """The script has no further response."""


@dataclass
class ScriptedAnswers:
    """Responses to the requests of a reflector, and the times of these requests."""

    answers: list[Any]
    now: float = 0.0
    requests: list[tuple[float, str]] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    """The limit of each page."""

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now, sleep=self.sleep, random=random.Random(7))

    def _next(self, request: str) -> Any:
        if not self.answers:
            raise ScriptEndedError
        self.requests.append((round(self.now, 3), request))
        return self.answers.pop(0)

    async def list_page(self, *_: Any, limit: int = 500, continue_token: str | None = None, **__: Any) -> bytes:
        self.limits += [limit] if self.answers else []
        answer = self._next(f"list {continue_token or ''}".strip())
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode() if isinstance(answer, dict) else answer

    async def watch(
        self, *_: Any, resource_version: str, on_open: Callable[[], None], **__: Any
    ) -> AsyncGenerator[bytes, None]:
        answer = self._next(f"watch {resource_version}")
        if isinstance(answer, Exception):
            raise answer
        on_open()
        for step in answer:
            if isinstance(step, OpenWatch):
                self.now += step.seconds
                if step.broken_by:
                    raise step.broken_by
            else:
                yield step if isinstance(step, bytes) else json.dumps(step).encode()

    @property
    def asked(self) -> list[str]:
        return [request for _, request in self.requests]

    @property
    def gaps(self) -> list[float]:
        times = [at for at, _ in self.requests]
        return [round(b - a, 3) for a, b in itertools.pairwise(times)]


def everything(_: View) -> str:
    return "all"


async def play(
    *answers: Any, pace: InformerConfig | None = None
) -> tuple[ScriptedAnswers, Store[View], Reflector[View]]:
    """Run a reflector until the end of the script."""
    script = ScriptedAnswers(list(answers))
    store: Store[View] = Store(everything)
    pace = pace or InformerConfig()
    health = Health("jobs in team", script.clock, healthy_after_s=pace.healthy_after_s)
    target = Target(JOBS, "team")
    reflector = Reflector(script, target, View, store, health=health, clock=script.clock, config=pace)
    with pytest.raises(ScriptEndedError):
        await reflector.run()
    return script, store, reflector


def values(store: Store[View]) -> dict[str, str]:
    return {uid: view.value for uid, view in store.objects("all").items()}


# -- List and watch in virtual time: exact delays, and the reaction to each end of a watch ---------------------------

# -- ends of watches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expired"),
    [
        (None, False),
        (Gone(410, request=""), True),
        (ServerError(504, request="", details={"causes": [{"reason": "ResourceVersionTooLarge"}]}), True),
        (ServerError(504, request=""), False),
        (NotFound(404, request=""), False),
    ],
    ids=str,
)
def test_error_of_a_watch_shows_whether_its_version_has_expired(error: ClusterError | None, expired: bool) -> None:
    assert has_expired(error) is expired


async def test_list_then_watch_from_its_version() -> None:
    changes = [event("ADDED", obj("b", 6, "new")), event("MODIFIED", obj("a", 7, "changed")), OpenWatch(300)]
    script, store, _ = await play(page(5, obj("a", 3)), changes)
    assert script.asked == ["list", "watch 5"]
    assert values(store) == {"a": "changed", "b": "new"}


async def test_pages_are_read_to_the_end() -> None:
    script, store, _ = await play(
        page(5, obj("a", 1), more="x"), page(5, obj("b", 2), more="y"), page(5), [OpenWatch(300)]
    )
    assert script.asked == ["list", "list x", "list y", "watch 5"]
    assert set(values(store)) == {"a", "b"}


async def test_watch_that_ended_regularly_is_resumed_at_once() -> None:
    script, _, _ = await play(page(5), [event("ADDED", obj("a", 6)), OpenWatch(300)], [OpenWatch(300)])
    assert script.requests == [(0.0, "list"), (0.0, "watch 5"), (300.0, "watch 6")]


async def test_bookmark_moves_the_version_to_resume_from() -> None:
    script, _, reflector = await play(page(5), [bookmark(90), OpenWatch(300)], [OpenWatch(300)])
    assert script.asked == ["list", "watch 5", "watch 90"]
    assert reflector.statistics().bookmarks == 1


@pytest.mark.parametrize("how", [[expired()], Gone(410, request="")], ids=["in band", "by status"])
async def test_expired_version_means_list_again(how: Any) -> None:
    relisted = page(9, obj("b", 9))
    script, store, reflector = await play(page(5, obj("a", 1)), how, relisted, [OpenWatch(300)])
    assert script.asked == ["list", "watch 5", "list", "watch 9"]
    assert values(store) == {"b": ""}
    assert reflector.statistics().lists == 2


async def test_list_that_expires_is_read_in_larger_pages_and_never_whole() -> None:
    gone = Gone(410, request="", continue_token="leaves-a-gap")
    script, _, _ = await play(*[page(5, more="x"), gone] * 6, page(7), [OpenWatch(300)])
    assert script.asked == [*["list", "list x"] * 6, "list", "watch 7"]
    assert script.limits == [500, 500, 1000, 1000, 2000, 2000, *[4000] * 7]


async def test_list_after_an_expired_one_uses_the_normal_page_size() -> None:
    gone = Gone(410, request="")
    script, _, _ = await play(page(5, more="x"), gone, page(7), [expired()], page(9), [OpenWatch(300)])
    assert script.limits == [500, 500, 1000, 500]


async def test_failed_page_is_requested_again() -> None:
    script, store, _ = await play(
        page(5, obj("a", 1), more="x"), ReplyLost("", ""), page(5, obj("b", 1)), [OpenWatch(300)]
    )
    assert script.asked == ["list", "list x", "list x", "watch 5"]
    assert set(values(store)) == {"a", "b"}


async def test_version_that_never_works_is_listed_again() -> None:
    script, _, _ = await play(page(5), *[ServerError(500, request="")] * 5, page(6), [OpenWatch(300)])
    assert script.asked == ["list", *["watch 5"] * 5, "list", "watch 6"]


# -- delays ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [bookmark(5)],
        [b"<html>"],
        ServerError(500, request=""),
        Unreachable("", ""),
        [OpenWatch(0.1, ReplyLost("", ""))],
    ],
    ids=["closed", "bookmark and closed", "html", "500", "unreachable", "broken"],
)
async def test_short_watches_back_off(answer: Any) -> None:
    script, _, reflector = await play(*[part for _ in range(20) for part in (page(5), *[answer] * 5)])
    assert all(0.5 <= gap <= 30.2 for gap in script.gaps if gap)
    assert script.now / len(script.requests) > 5
    assert reflector.statistics().problem is not None


MUCH = [event("ADDED", obj(f"u{number}", number + 6)) for number in range(10)]


async def test_watch_with_many_changes_is_resumed_soon() -> None:
    """An API server under load ends all watches whose buffers are full, repeatedly until the burst is over."""
    ends = [[event("MODIFIED", obj(f"u{n}", 100 * k + n)) for n in range(10)] for k in range(1, 30)]
    script, store, reflector = await play(page(5), MUCH, *ends, [OpenWatch(300)])
    assert len(script.requests) == 32
    assert all(0.02 <= gap <= 0.1 for gap in script.gaps[1:])
    assert len(store) == 10
    statistics = reflector.statistics()
    assert (statistics.lists, statistics.back_offs, statistics.problem) == (1, 0, None)


@pytest.mark.parametrize(
    "answer",
    [
        MUCH[:9],
        [OpenWatch(0.9)],
        [*MUCH, OpenWatch(0.1, ReplyLost("", ""))],
        [bookmark(number) for number in range(6, 60)],
        [event("MODIFIED", {"metadata": {"uid": "u", "resourceVersion": str(n)}, "value": n}) for n in range(6, 60)],
    ],
    ids=["too little", "too soon", "broken", "bookmarks", "nothing that can be read"],
)
async def test_short_watch_without_changes_is_followed_by_a_delay(answer: Any) -> None:
    script, _, reflector = await play(page(5), answer, [OpenWatch(300)])
    assert 0.5 <= script.gaps[1] <= 2.5
    assert reflector.statistics().back_offs == 1


async def test_healthy_watch_resets_the_backoff() -> None:
    fails = ServerError(500, request="")
    script, _, reflector = await play(page(5), *[fails] * 4, [OpenWatch(6, ReplyLost("", ""))], [OpenWatch(300)])
    assert 6.5 <= script.gaps[-1] <= 7.5
    assert reflector.statistics().problem is None


async def test_retry_after_is_respected() -> None:
    busy = TooManyRequests(429, request="", retry_after_s=47.0)
    script, _, _ = await play(busy, page(5), busy, [OpenWatch(300)])
    assert script.requests == [(0.0, "list"), (47.0, "list"), (47.0, "watch 5"), (94.0, "watch 5")]


async def test_excessive_retry_after_is_cut() -> None:
    script, _, _ = await play(TooManyRequests(429, request="", retry_after_s=86400.0), page(5), [OpenWatch(300)])
    assert script.gaps[0] == RETRY_AFTER_MAX_S


# -- clusters that refuse to watch -----------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [Forbidden(403, request=""), MethodNotAllowed(405, request="")], ids=str)
async def test_refused_watch_is_replaced_by_polls(refusal: ClusterError) -> None:
    script, store, reflector = await play(page(5, obj("a", 1)), refusal, page(6), page(7, obj("b", 7)))
    assert script.asked == ["list", "watch 5", "list", "list"]
    assert all(8 <= gap <= 12 for gap in script.gaps[1:])
    assert set(values(store)) == {"b"}
    assert reflector.statistics().polling


async def test_watch_is_tried_again_after_a_while() -> None:
    polls = [page(5)] * 60
    script, _, reflector = await play(page(5), Forbidden(403, request=""), *_until_watched(polls))
    watched = [at for at, request in script.requests if request.startswith("watch")]
    assert len(watched) == 2
    assert 300 <= watched[1] - watched[0] <= 312
    assert not reflector.statistics().polling


def _until_watched(polls: list[Any]) -> list[Any]:
    """Return how many polls there are until the watch is tried again, with the seed of the script."""
    clock = Clock(random=random.Random(7))
    clock.random_between(240, 360)
    waited, count = 0.0, 0
    while waited < 300:
        waited += clock.random_between(8, 12)
        count += 1
    return [*polls[:count], [OpenWatch(300)]]


# -- undecodable objects -----------------------------------------------------------------------------------------------

ODD = [{"metadata": {"uid": 7}}, {"metadata": {"uid": "", "resourceVersion": "9"}}, {}, [], "x", None]


@pytest.mark.parametrize("odd", ODD, ids=str)
async def test_undecodable_object_in_a_list_is_skipped(odd: Any) -> None:
    _, store, reflector = await play(page(5, odd, obj("a", 1)), [OpenWatch(300)])
    assert set(values(store)) == {"a"}
    assert reflector.statistics().decode_errors == 1


async def test_known_object_that_is_undecodable_in_a_later_list_stays() -> None:
    odd = {"metadata": {"uid": "a", "resourceVersion": "8"}, "value": 7}
    _, store, _ = await play(page(5, obj("a", 1, "old"), obj("b", 1)), [expired()], page(9, odd), [OpenWatch(300)])
    assert values(store) == {"a": "old"}


async def test_undecodable_event_is_skipped_and_not_repeated() -> None:
    odd = event("MODIFIED", {"metadata": {"uid": "a", "resourceVersion": "6"}, "value": 7})
    script, store, reflector = await play(page(5, obj("a", 1, "old")), [odd, OpenWatch(300)], [OpenWatch(300)])
    assert script.asked[-1] == "watch 6"
    assert values(store) == {"a": "old"}
    assert reflector.statistics().decode_errors == 1


# -- staleness -------------------------------------------------------------------------------------------------


def test_staleness_is_infinite_before_the_first_list() -> None:
    assert Health("jobs", ScriptedAnswers([]).clock, healthy_after_s=5).staleness_s == float("inf")


async def test_staleness_counts_from_the_last_response() -> None:
    script, _, reflector = await play(page(5), [OpenWatch(100), bookmark(6), OpenWatch(200)])
    assert script.now == 300
    assert reflector.statistics().staleness_s == 200


# -- other tasks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "looks"), [("list", 90), ("watch", 90), ("watch in one part", 5)])
async def test_other_tasks_run_during_a_long_read(how: str, looks: int) -> None:
    """The source sends a page of a thousand objects, or as many events, and never waits."""
    many = [obj(str(number), number + 6) for number in range(1000)]
    events = [json.dumps(event("ADDED", one)).encode() + b"\n" for one in many]
    answers = {
        "list": [page(2000, *many)],
        "watch": [page(5), [*events, OpenWatch(300)]],
        "watch in one part": [page(5), [b"".join(events), OpenWatch(300)]],
    }
    script = ScriptedAnswers(answers[how])
    store: Store[View] = Store(everything)
    health = Health("jobs", script.clock, healthy_after_s=5)
    reflector = Reflector(script, Target(JOBS), View, store, health=health, clock=script.clock, config=InformerConfig())
    ticks = itertools.count()
    reflector._time_slice = TimeSlice(slice_s=10, monotonic=lambda: float(next(ticks)))
    seen: set[int] = set()

    async def others() -> None:
        while True:
            seen.add(len(store))
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    with pytest.raises(ScriptEndedError):
        await reflector.run()
    running.cancel()
    assert len(store) == 1000
    assert len(seen) > looks


# -- The log lines of the informer, with level and fields. Events of a watch are not logged --------------------------

Line = tuple[str, str, dict[str, Any]]

DOWN = ServerError(503, request="watch jobs", reason="ServiceUnavailable", message="etcd is gone")
REFUSED = Forbidden(403, request="watch jobs", reason="Forbidden", message="may not")
DOWN_TEXT = "watch jobs: 503 ServiceUnavailable: etcd is gone"
REFUSED_TEXT = "watch jobs: 403 Forbidden: may not"

SYNCED = ("INFO", "informer synced", {"objects": 1, "seconds": 0.0})
OPENED = ("DEBUG", "watch opened", {"version": "5"})
REOPENED = ("DEBUG", "watch opened", {"version": "9"})


def ended(why: str, lived_s: float, events: int) -> Line:
    return "DEBUG", "watch ended", {"why": why, "lived_s": lived_s, "events": events}


def pause(failures: int, cause: str) -> Line:
    return "DEBUG", "backing off", {"failures": failures, "cause": cause}


def listed(why: str, objects: int) -> Line:
    return "DEBUG", "list read", {"why": why, "objects": objects}


def warned(cause: str) -> Line:
    return "WARNING", "informer fails repeatedly and keeps retrying", {"failures": 3, "cause": cause}


FIRST = page(5, obj("a", 1))
EVENTS = [event("MODIFIED", obj("a", version)) for version in range(6, 9)]

POLLS = "informer polls because the API server refuses the watch verb, grant it"

TABLE: dict[str, tuple[list[Any], list[Line]]] = {
    "all is well": (
        [FIRST, [*EVENTS, bookmark(9), OpenWatch(300)], [OpenWatch(300)]],
        [SYNCED, OPENED, ended("closed by the server", 300, 3), REOPENED, ended("closed by the server", 300, 0)],
    ),
    "version expired": (
        [FIRST, [expired()], page(9), [OpenWatch(300)]],
        [
            SYNCED,
            OPENED,
            ended("watch jobs.batch in team: 410 Expired", 0, 0),
            ("DEBUG", "version expired", {"of": "watch", "cause": "watch jobs.batch in team: 410 Expired"}),
            pause(1, "watch jobs.batch in team: 410 Expired"),
            listed("expired", 0),
            REOPENED,
            ended("closed by the server", 300, 0),
        ],
    ),
    "trouble that lasts, and its end": (
        [FIRST, *[DOWN] * 4, [OpenWatch(300)]],
        [
            SYNCED,
            pause(1, DOWN_TEXT),
            pause(2, DOWN_TEXT),
            pause(3, DOWN_TEXT),
            warned(DOWN_TEXT),
            pause(4, DOWN_TEXT),
            OPENED,
            ended("closed by the server", 300, 0),
            ("INFO", "informer recovered", {"failures": 4}),
        ],
    ),
    "watch refused": (
        [FIRST, REFUSED, page(6), page(7)],
        [
            SYNCED,
            (
                "WARNING",
                POLLS,
                {"cause": REFUSED_TEXT},
            ),
            listed("polling", 0),
            listed("polling", 0),
        ],
    ),
}


@pytest.mark.parametrize(("answers", "lines"), TABLE.values(), ids=TABLE)
async def test_each_change_of_state_is_logged(
    answers: list[Any], lines: list[Line], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="airflow_provider_gangjobs")
    await play(*answers)
    assert [(record.levelname, record.what) for record in logged(caplog)] == [(level, what) for level, what, _ in lines]
    for record, (_, _, fields) in zip(logged(caplog), lines, strict=True):
        assert record.fields["informer"] == "jobs in team"
        assert record.fields | fields == record.fields


def logged(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if hasattr(record, "fields")]


async def test_watch_permission_granted_later_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="airflow_provider_gangjobs")
    script = ScriptedAnswers([])
    health = Health("jobs", script.clock, healthy_after_s=5)
    health.watch_refused(REFUSED)
    script.now = 310
    health.watch_refused(REFUSED)
    health.watch_opened("5")
    assert [(record.levelname, record.what) for record in logged(caplog)] == [
        ("WARNING", POLLS),
        ("INFO", "informer watches again"),
    ]
    assert logged(caplog)[1].fields["after_s"] == 310


async def test_silence_and_its_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="airflow_provider_gangjobs")
    script = ScriptedAnswers([])
    words = {100.0, 1000.0, 1100.0}
    health = Health("jobs", script.clock, healthy_after_s=5)
    ended = asyncio.Event()

    async def sleep(seconds: float) -> None:
        until = script.now + seconds
        for at in sorted(words):
            if script.now < at <= until:
                script.now = at
                health.received(events=0, bookmarks=1)
        script.now = until
        if script.now > 1200:
            ended.set()
            await asyncio.Event().wait()

    health._clock = type(script.clock)(monotonic=lambda: script.now, sleep=sleep)
    attending = asyncio.create_task(health.warn_when_stale())
    await ended.wait()
    attending.cancel()
    assert [(record.levelname, record.what, record.fields["silent_s"]) for record in logged(caplog)] == [
        ("WARNING", "informer is stale, the API server does not respond", SILENCE_BEFORE_WARNING_S),
        ("INFO", "informer is up to date again", 900),
    ]


async def test_events_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    burst = [event("MODIFIED", obj("a", version)) for version in range(6, 1000)]
    await play(FIRST, [*burst, OpenWatch(300)])
    assert len(caplog.records) == 3


async def test_outage_of_a_day_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="airflow_provider_gangjobs")
    script, _, _ = await play(FIRST, *[part for _ in range(1100) for part in (*[DOWN] * 5, page(9))])
    assert script.now > 86400
    assert [record.what for record in logged(caplog)] == ["informer synced", warned("")[1]]


# -- the form of a line ----------------------------------------------------------------------------------------

FORMS = {
    "plain": ({"a": "b", "n": 1}, "what a=b n=1"),
    "seconds are rounded": ({"s": 1.23456}, "what s=1.2"),
    "spaces are quoted": ({"who": "jobs in team"}, 'what who="jobs in team"'),
    "quotes are escaped": ({"why": 'no "x"'}, 'what why="no \\"x\\""'),
    "a line stays a line": ({"why": "one\ntwo"}, 'what why="one\\ntwo"'),
    "nothing is left out": ({"why": "", "who": None, "n": 0}, "what n=0"),
    "other scripts stay readable": ({"why": "größer als"}, 'what why="größer als"'),
}


@pytest.mark.parametrize(("fields", "text"), FORMS.values(), ids=FORMS)
def test_line_has_message_and_fields(fields: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_fields(logging.getLogger("x"), logging.INFO, "what", **fields)
    assert caplog.messages == [text]


def test_every_line_that_a_triggerer_logs_by_default_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    logged_messages = {what for _, lines in TABLE.values() for level, what, _ in lines if level != "DEBUG"}
    assert [what for what in sorted(logged_messages) if f"`{what}`" not in documented] == []


# -- Pages and events become views. An object that cannot be decoded is reported, and affects no other object --------

STATUS = {"kind": "Status", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410}


def named(name: str, **more: Any) -> dict[str, Any]:
    obj = pod(name).rank(0).running(5).obj
    return obj | {"metadata": obj["metadata"] | {"uid": f"uid-{name}", "resourceVersion": f"v-{name}"}} | more


def odd(name: str) -> dict[str, Any]:
    """Return an object with a uid and a version whose other fields have a wrong type."""
    return named(name, status="odd")


def bookmark_of_pod(version: str) -> dict[str, Any]:
    """Return a bookmark, which has an object with a version only."""
    return {"kind": "Pod", "metadata": {"resourceVersion": version}, "spec": {"containers": None}, "status": {}}


def line(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def summary_of(event: WatchEvent[PodView]) -> tuple[str, PodView | None, str, str]:
    """Return type, object, uid and version of an event. The object is None if it could not be decoded."""
    seen, meta = event.object, event.object.metadata
    return event.type, seen if isinstance(seen, PodView) and meta.uid else None, meta.uid, meta.resource_version


# -- events ----------------------------------------------------------------------------------------------------


def test_lines_of_pods_are_views() -> None:
    lines = line("ADDED", named("a")) + line("DELETED", named("b"))
    assert [(event.type, event.object) for event in ViewDecoder(PodView).decode_events(lines)] == [
        ("ADDED", view(PodView, named("a"))),
        ("DELETED", view(PodView, named("b"))),
    ]


KINDS = st.one_of(
    st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), st.sampled_from([named("a"), odd("b"), {}, [], None])),
    st.tuples(st.just("BOOKMARK"), st.sampled_from([bookmark_of_pod("9"), {}, None])),
    st.tuples(st.just("ERROR"), st.just(STATUS)),
    st.just(("", None)),
)


@given(st.lists(KINDS, max_size=6))
def test_event_does_not_depend_on_other_events_of_the_chunk(events: list[tuple[str, Any]]) -> None:
    lines = [line(*event) if event[0] else b"\n" for event in events]
    views = ViewDecoder(PodView)
    assert [summary_of(event) for event in views.decode_events(b"".join(lines))] == [
        summary_of(event) for one in lines for event in views.decode_events(one)
    ]


def test_object_that_cannot_be_decoded_has_its_uid() -> None:
    (event,) = ViewDecoder(PodView).decode_events(line("MODIFIED", odd("a")))
    assert summary_of(event) == ("MODIFIED", None, "uid-a", "v-a")
    assert isinstance(event.object, Undecoded)


@pytest.mark.parametrize("kind", [PodView, JobView], ids=lambda kind: kind.__name__)
def test_bookmark_has_a_version(kind: Any) -> None:
    (event,) = ViewDecoder(kind).decode_events(line("BOOKMARK", bookmark_of_pod("9")))
    assert (event.type, event.object.metadata.resource_version) == ("BOOKMARK", "9")


@pytest.mark.parametrize("odd", [b'"\xff"', b'{"a":' * 9999 + b"1" + b"}" * 9999], ids=["no UTF-8", "too deep"])
def test_object_that_no_decoder_reads_is_no_view(odd: bytes) -> None:
    pod = msgspec.Raw(b'{"metadata":{"name":' + odd + b"}}")
    assert isinstance(ViewDecoder(PodView).decode(pod), Undecoded)
    with pytest.raises(UnexpectedReply):
        list(ViewDecoder(PodView).decode_events(b'{"type":' + odd + b"}\n"))


def test_events_before_an_invalid_line_are_returned() -> None:
    events = iter(
        ViewDecoder(PodView).decode_events(line("ADDED", named("a")) + b"<html>\n" + line("ADDED", named("b")))
    )
    assert summary_of(next(events)) == ("ADDED", view(PodView, named("a")), "uid-a", "v-a")
    with pytest.raises(UnexpectedReply):
        next(events)


def test_event_of_type_error_raises_the_error_of_the_server() -> None:
    error = error_of_watch(line("ADDED", named("a")) + line("ERROR", STATUS), request="watch pods")
    assert (error.status, error.reason) == (410, "Expired")


# -- pages -----------------------------------------------------------------------------------------------------


def page_of_pods(*items: Any) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "7", "continue": "more"}, "items": items}).encode()


def read_views(body: bytes) -> list[PodView | Undecoded]:
    return [ViewDecoder(PodView).decode(item) for item in decode_page(body).items or ()]


ITEMS = st.lists(st.sampled_from([named("a"), named("b"), odd("c"), {}, None]), max_size=5)


@given(ITEMS)
def test_object_of_a_page_does_not_depend_on_other_objects(items: list[Any]) -> None:
    read = decode_page(page_of_pods(*items))
    assert (read.metadata.resource_version, read.metadata.continue_) == ("7", "more")
    assert read_views(page_of_pods(*items)) == [view for item in items for view in read_views(page_of_pods(item))]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"metadata":{},"items":[]}'], ids=repr)
def test_response_that_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(UnexpectedReply):
        decode_page(body)


def test_list_without_items_is_empty() -> None:
    assert read_views(b'{"metadata":{"resourceVersion":"7"},"items":null}') == []

"""List and watch in virtual time: exact delays, and the reaction to each end of a watch."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import Any

import pytest

from airflow_provider_gangjobs.cluster.clock import Clock, TimeSlice
from airflow_provider_gangjobs.cluster.errors import (
    RETRY_AFTER_MAX_S,
    ClusterError,
    CredentialsFailed,
    Forbidden,
    Gone,
    MethodNotAllowed,
    NotFound,
    ReplyLost,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from airflow_provider_gangjobs.cluster.informer.health import Health
from airflow_provider_gangjobs.cluster.informer.reflector import (
    InformerConfig,
    NextAction,
    Reflector,
    Target,
    next_action,
)
from airflow_provider_gangjobs.cluster.informer.store import Store
from airflow_provider_gangjobs.cluster.resources import JOBS
from tests.unit.scripted_reflector import (
    OpenWatch,
    ScriptedAnswers,
    ScriptEndedError,
    View,
    bookmark,
    event,
    everything,
    expired,
    obj,
    page,
    play,
    values,
)

# -- ends of watches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (None, NextAction.RESUME),
        (Gone(410, request=""), NextAction.RELIST),
        (ServerError(504, request="", details={"causes": [{"reason": "ResourceVersionTooLarge"}]}), NextAction.RELIST),
        (ServerError(504, request=""), NextAction.RESUME),
        (Forbidden(403, request=""), NextAction.POLL),
        (MethodNotAllowed(405, request=""), NextAction.POLL),
        (Unauthorized(401, request=""), NextAction.RESUME),
        (NotFound(404, request=""), NextAction.RESUME),
        (ReplyLost("", ""), NextAction.RESUME),
        (Unreachable("", ""), NextAction.RESUME),
        (CredentialsFailed("", ""), NextAction.RESUME),
    ],
    ids=str,
)
def test_error_of_a_watch_decides_the_next_action(error: ClusterError | None, ending: NextAction) -> None:
    assert next_action(error) is ending


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

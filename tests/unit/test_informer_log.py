"""The log lines of the informer, with level and fields. Events of a watch are not logged."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_gangjobs.cluster.errors import Forbidden, ReplyLost, ServerError
from airflow_provider_gangjobs.cluster.informer.health import SILENCE_BEFORE_WARNING_S, Health
from airflow_provider_gangjobs.kube.text import log_fields
from tests.unit.scripted_reflector import OpenWatch, ScriptedAnswers, bookmark, event, expired, obj, page, play

Line = tuple[str, str, dict[str, Any]]

DOWN = ServerError(503, request="watch jobs", reason="ServiceUnavailable", message="etcd is gone")
REFUSED = Forbidden(403, request="watch jobs", reason="Forbidden", message="may not")
LOST = ReplyLost("watch jobs", "reset")
DOWN_TEXT = "watch jobs: 503 ServiceUnavailable: etcd is gone"
REFUSED_TEXT = "watch jobs: 403 Forbidden: may not"
LOST_TEXT = "watch jobs: the response was lost, the request may have been applied: reset"

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


def test_every_line_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    logged_messages = {what for _, lines in TABLE.values() for _, what, _ in lines}
    assert [what for what in sorted(logged_messages) if f"`{what}`" not in documented] == []

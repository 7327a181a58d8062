"""The rendered page: every value from a cluster stays text, whatever the value contains."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.outcome.event import build_event
from airflow_provider_gangjobs.gang.outcome.rank_rows import RankRow, Tone
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import Phase, Status, SubmissionState
from airflow_provider_gangjobs.gang.view import GangView
from airflow_provider_gangjobs.kube.text import format_duration
from airflow_provider_gangjobs.plugins.html import PageContext, format_remaining, render, render_rank
from airflow_provider_gangjobs.plugins.locator import MappedRow, choose_indexes, mapped_rows
from airflow_provider_gangjobs.tracking.logs.last_lines import RankLog
from tests.unit.builders import REF, at

MARKUP = """<script>alert(1)</script><img src=x onerror="alert(2)">'"`{{ 7 * 7 }}</style></td>"""


KEY = TaskKey("dag", "run", "task")
VIEW = GangView(
    namespace="team",
    name="train-0",
    uid="",
    phase=Phase.RUNNING,
    state=SubmissionState.IN_PROGRESS,
    category=Category.RUNNING,
    attempt=1,
    since=at(0),
    times={Phase.SUBMITTED: at(0), Phase.RUNNING: at(3)},
    ranks=1200,
    ready=0,
)
OVER = {"phase": Phase.FAILED, "times": {Phase.SUBMITTED: at(0), Phase.FAILED: at(50)}}


def view_of(text: str, **fields: Any) -> GangView:
    """Return a view with `text` in every text field."""
    row = RankRow(3, text, Tone.BAD, 137, seconds=61.4, node=text, restarts=2, message=text, has_log=True)
    values = {
        "namespace": text,
        "name": text,
        "summary": text,
        "remedy": text,
        "installation": text,
        "queue": text,
        "deadline": at(90),
        "deadline_parameter": text,
        "states": {text: 1200},
        "pods": (row,),
        "pods_omitted": 99_999,
        "notes": (text,),
        "unread": (text,),
    }
    return with_fields(VIEW, **{**values, **fields})


def page_of(text: str) -> PageContext:
    key, mapped = (
        TaskKey(text, text, text, 2),
        (MappedRow(7, text, Tone.BAD, text, at(30)), MappedRow(2, text, Tone.GOOD)),
    )
    earlier = with_fields(VIEW, name=text, summary=text, **OVER)
    return PageContext(key, view_of(text), text, "", text, at(60), 3, text, mapped, attempts=(earlier,))


class Elements(HTMLParser):
    """What a browser parses from the page: elements with the names of their attributes, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


EXPECTED_ELEMENTS = Elements(render(page_of("text"), nonce="n")).elements


@given(st.text() | st.just(MARKUP))
def test_no_text_becomes_markup(text: str) -> None:
    assert Elements(render(page_of(text or "text"), nonce="n")).elements == EXPECTED_ELEMENTS


def test_every_text_of_the_view_is_on_the_page() -> None:
    html = render(page_of(MARKUP), nonce="n", part=True)

    # The title and the text fields of the view are at least twelve places.
    assert Elements(html).text.count("{{ 7 * 7 }}") >= 12
    assert "<script" not in html


def test_error_is_escaped() -> None:
    html = render(PageContext(KEY, None, MARKUP, MARKUP, MARKUP, at(60), 3), nonce="n", part=True)

    assert "<script" not in html
    assert Elements(html).text.count("alert(1)") == 3


def test_page_loads_no_other_resources() -> None:
    html = render(page_of("text"), nonce="secret")

    assert "http://" not in html
    assert "https://" not in html
    assert " src=" not in html
    assert "<link" not in html
    assert html.count('nonce="secret"') == 2


def test_page_links_to_the_task_in_airflow_and_to_its_other_map_indexes() -> None:
    html = render(page_of("a/b"), nonce="n", part=True)

    task = "../" * 7 + "dags/a%2Fb/runs/a%2Fb/tasks/a%2Fb/mapped/"
    assert f'href="{task}2"' in html
    assert f'href="{task}2/xcom"' not in html, "there are no results yet"
    over = replace(page_of("a/b"), view=view_of("x", **OVER))
    assert f'href="{task}2/xcom"' in render(over, nonce="n", part=True)
    assert f'href="{task}7/plugin/gang"' in html
    assert f'href="{"../" * 7}plugin/gangs?dag=a%2Fb&amp;hours=24"' in html


def test_refused_task_shows_the_error_in_the_place_of_a_gang() -> None:
    html = render(PageContext(KEY, None, "", "", "failed", at(60), refusal="workers: must be 1 or more."), nonce="n")

    assert "not submitted" in html
    assert "workers: must be 1 or more." in html
    assert "This task has not submitted a gang." not in html


def test_what_is_over_has_an_age_and_what_lasts_a_duration() -> None:
    over = render(replace(page_of("x"), view=view_of("x", **OVER)), nonce="n", part=True)

    assert ">1 min 00 s ago</time>" in over
    assert ">for 1 min 00 s</span>" in render(page_of("x"), nonce="n", part=True)
    assert ">attempt 1</span>" in over


def test_map_indexes_that_failed_come_first_with_the_reason() -> None:
    states = {0: "success", 1: "deferred", 2: "failed", 3: ""}
    end = build_event(REF, Status.FAILED, Phase.FAILED, message="rank 0 ran out of memory", times={"ended": at(9)})

    rows = mapped_rows(choose_indexes(states), states, {2: end.to_payload(), 1: {"v": 99}})

    assert [(row.map_index, row.state, row.tone) for row in rows] == [
        (2, "failed", Tone.BAD),
        (1, "deferred", Tone.BUSY),
        (3, "no state", Tone.WAIT),
        (0, "success", Tone.GOOD),
    ]
    assert (rows[0].sentence, rows[0].ended) == ("rank 0 ran out of memory", at(9))


def test_page_contains_the_part() -> None:
    page = page_of("text")

    assert render(page, nonce="n", part=True).strip() in render(page, nonce="n")


def test_page_of_a_task_without_a_gang_names_the_reason() -> None:
    html = render(PageContext(KEY, None, "", "", "success", at(60), 0), nonce="n")

    assert "This task has not submitted a gang." in html
    assert 'data-refresh-s="0"' in html


LINKS = {"Logs": "https://logs.example.com/?q=a&b=c"}


def test_every_field_of_a_row_has_a_column() -> None:
    html = render(
        replace(
            page_of("x"),
            view=view_of("x", pods=(RankRow(5, "s", Tone.BAD, 9, 7.6, "n", 4, "m", has_log=True, links=LINKS),)),
        ),
        nonce="n",
        part=True,
    )

    body = html[html.index("<tbody>") : html.index("</tbody>")]
    assert Elements(body).text.split() == ["5", "s", "Log", "9", "7", "s", "n", "4", "m", "Logs"]
    shown = {field.name for field in fields(RankRow)} - {"tone", "role", "role_rank", "pod"}
    assert len(shown) == body.count("<td") + body.count("<th"), "every field has a column, and a role that of the rank"


def test_row_of_a_gang_with_roles_names_the_role_and_the_rank_in_it() -> None:
    row = RankRow(5, "s", Tone.BAD, role="worker", role_rank=2)
    html = render(replace(page_of("x"), view=view_of("x", pods=(row,))), nonce="n", part=True)
    body = html[html.index("<tbody>") : html.index("</tbody>")]
    assert Elements(body).text.split()[:2] == ["worker", "2"]


def test_row_leads_to_the_log_of_its_rank_if_there_may_be_one() -> None:
    rows = (
        RankRow(5, "s", Tone.BUSY, has_log=True),
        RankRow(6, "s", Tone.BUSY, role="worker", role_rank=2, has_log=True),
        RankRow(7, "s", Tone.BAD),
    )

    html = render(replace(page_of("x"), view=view_of("x", pods=rows)), nonce="n", part=True)

    links = re.findall(r'<a href="([^"]*)" aria-label="(Log of [^"]*)">', html)
    assert links == [("2/ranks/5", "Log of rank 5"), ("2/ranks/6", "Log of worker 2")]


def rank_page(**log: str) -> str:
    found = RankLog(pod=log.pop("pod", "train-0-3"), rank=3, **log)
    return render_rank(TaskKey("a/b", "r", "t"), "default/train-0", 3, (found,), "", nonce="n")


@given(st.text() | st.just(MARKUP))
def test_no_line_of_a_log_becomes_markup(text: str) -> None:
    plain = rank_page(pod="a", text="a", problem="a", left_out="a")
    found = rank_page(pod=text or "a", text=text or "a", problem=text or "a", left_out=text or "a")
    assert Elements(found).elements == Elements(plain).elements


def test_log_keeps_its_lines_and_loses_what_would_change_the_page() -> None:
    text = "\x1b[31mred\x1b[0m\n 10%\r 20%\r\n\u202eevil\u2069\n\tindented\n" + "\U0001f642" * 1024
    (shown,) = re.findall(r"<pre[^>]*>(.*)</pre>", rank_page(text=text), re.DOTALL)
    assert shown.split("\n") == ["red", " 10%", " 20%", r"\u202eevil\u2069", "        indented", "\U0001f642" * 1024]


def test_page_of_a_log_leads_back_and_says_why_there_is_none() -> None:
    html = rank_page(problem="the kubelet has removed it")
    assert "No log: <bdi>the kubelet has removed it</bdi>" in html
    assert '<a href="../../-1">Gang</a>' in html
    assert f'href="{"../" * 9}dags/a%2Fb/runs/r/tasks/t"' in html


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.9, "7 s"), (463, "7 min 43 s"), (7500, "2 h 05 min"), (3 * 86400 + 4 * 3600, "3 d 4 h"), (0, "0 s")],
)
def test_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_remaining_time_of_a_passed_deadline_is_now() -> None:
    assert format_remaining(at(0), at(1)) == "now"
    assert format_remaining(at(721), at(1)) == "in 12 min 00 s"

"""The rendered page: every value from a cluster stays text, whatever the value contains."""

from __future__ import annotations

from dataclasses import fields, replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.gang.outcome.rank_rows import RankRow, Tone
from airflow_provider_gangjobs.plugins.html import PageContext, format_duration, format_remaining, render
from airflow_provider_gangjobs.plugins.view_model import AttemptRow, DeadlineView, GangView
from tests.unit.builders import at

MARKUP = """<script>alert(1)</script><img src=x onerror="alert(2)">'"`{{ 7 * 7 }}</style></td>"""


def view_of(text: str) -> GangView:
    """Return a view with `text` in every text field."""
    row = RankRow(3, text, Tone.BAD, exit_code=137, seconds=61.4, node=text, restarts=2, message=text)
    return GangView(
        title=text,
        phase=text,
        tone=Tone.WAIT,
        attempt=1,
        since=at(0),
        summary=text,
        remedy=text,
        details=((text, text),),
        phase_times=((text, at(3)),),
        deadline=DeadlineView(text, at(90)),
        state_counts=((text, 1200),),
        rows=(row,),
        rows_omitted=99_999,
        other_attempts=(AttemptRow(0, text, text, Tone.BAD, at(0), None, text),),
        notes=(text,),
    )


def page_of(text: str) -> PageContext:
    return PageContext(view_of(text), text, "", text, at(60), 3)


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
    html = render(PageContext(None, MARKUP, MARKUP, MARKUP, at(60), 3), nonce="n", part=True)

    assert "<script" not in html
    assert Elements(html).text.count("alert(1)") == 3


def test_page_loads_no_other_resources() -> None:
    html = render(page_of("text"), nonce="secret")

    assert "http://" not in html
    assert "https://" not in html
    assert " src=" not in html
    assert "<link" not in html
    assert html.count('nonce="secret"') == 2


def test_page_contains_the_part() -> None:
    page = page_of("text")

    assert render(page, nonce="n", part=True).strip() in render(page, nonce="n")


def test_page_of_a_task_without_a_gang_names_the_reason() -> None:
    html = render(PageContext(None, "", "", "success", at(60), 0), nonce="n")

    assert "This task has not submitted a gang." in html
    assert 'data-refresh-s="0"' in html


def test_every_field_of_a_row_has_a_column() -> None:
    html = render(
        replace(page_of("x"), view=replace(view_of("x"), rows=(RankRow(5, "s", Tone.BAD, 9, 7.6, "n", 4, "m"),))),
        nonce="n",
        part=True,
    )

    body = html[html.index("<tbody>") : html.index("</tbody>")]
    assert Elements(body).text.split() == ["5", "s", "9", "8", "n", "4", "m"]
    shown = {field.name for field in fields(RankRow)} - {"tone", "role", "role_rank"}
    assert len(shown) == body.count("<td") + body.count("<th"), "every field has a column, and a role that of the rank"


def test_row_of_a_gang_with_roles_names_the_role_and_the_rank_in_it() -> None:
    row = RankRow(5, "s", Tone.BAD, role="worker", role_rank=2)
    html = render(replace(page_of("x"), view=replace(view_of("x"), rows=(row,))), nonce="n", part=True)
    body = html[html.index("<tbody>") : html.index("</tbody>")]
    assert Elements(body).text.split()[:2] == ["worker", "2"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.9, "7 s"), (463, "7 min 43 s"), (7500, "2 h 05 min"), (3 * 86400 + 4 * 3600, "3 d 4 h"), (0, "0 s")],
)
def test_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_remaining_time_of_a_passed_deadline_is_now() -> None:
    assert format_remaining(at(0), at(1)) == "now"
    assert format_remaining(at(721), at(1)) == "in 12 min 00 s"

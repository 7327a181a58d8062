"""The page as HTML: everything that comes from a cluster is text, whatever it looks like."""

from __future__ import annotations

from dataclasses import fields, replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.plugins.html import Shown, lasting, render, until
from airflow_provider_gangjobs.plugins.rank_rows import Row, Tone
from airflow_provider_gangjobs.plugins.view_model import AttemptLine, Board, Due
from tests.unit.builders import at

EVIL = """<script>alert(1)</script><img src=x onerror="alert(2)">'"`{{ 7 * 7 }}</style></td>"""


def board_of(text: str) -> Board:
    """A board that has `text` in every place that holds text."""
    row = Row(3, text, Tone.BAD, exit_code=137, seconds=61.4, node=text, restarts=2, message=text)
    return Board(
        title=text,
        phase=text,
        tone=Tone.WAIT,
        attempt=1,
        since=at(0),
        says=text,
        remedy=text,
        facts=((text, text),),
        times=((text, at(3)),),
        due=Due(text, at(90)),
        tally=((text, 1200),),
        rows=(row,),
        rows_left_out=99_999,
        attempts=(AttemptLine(0, text, text, Tone.BAD, at(0), None, text),),
        notes=(text,),
    )


def shown_of(text: str) -> Shown:
    return Shown(board_of(text), text, "", text, at(60), 3)


class Elements(HTMLParser):
    """What a browser would make of it: elements with attributes, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


HARMLESS = Elements(render(shown_of("text"), nonce="n")).elements


@given(st.text() | st.just(EVIL))
def test_no_text_becomes_markup(text: str) -> None:
    assert Elements(render(shown_of(text or "text"), nonce="n")).elements == HARMLESS


def test_all_texts_are_on_the_page() -> None:
    html = render(shown_of(EVIL), nonce="n", part=True)

    # In the title, and in each of the twelve places of the board where text is shown.
    assert Elements(html).text.count("{{ 7 * 7 }}") >= 12
    assert "<script" not in html


def test_trouble_is_text_too() -> None:
    html = render(Shown(None, EVIL, EVIL, EVIL, at(60), 3), nonce="n", part=True)

    assert "<script" not in html
    assert Elements(html).text.count("alert(1)") == 3


def test_page_loads_nothing_from_anywhere() -> None:
    html = render(shown_of("text"), nonce="secret")

    assert "http://" not in html
    assert "https://" not in html
    assert " src=" not in html
    assert "<link" not in html
    assert html.count('nonce="secret"') == 2


def test_part_is_what_the_page_holds() -> None:
    shown = shown_of("text")

    assert render(shown, nonce="n", part=True).strip() in render(shown, nonce="n")


def test_task_without_a_gang_is_told_so() -> None:
    html = render(Shown(None, "", "", "success", at(60), 0), nonce="n")

    assert "This task has not submitted a gang." in html
    assert 'data-refresh-s="0"' in html


def test_every_field_of_a_row_has_its_column() -> None:
    html = render(
        replace(shown_of("x"), board=replace(board_of("x"), rows=(Row(5, "s", Tone.BAD, 9, 7.6, "n", 4, "m"),))),
        nonce="n",
        part=True,
    )

    body = html[html.index("<tbody>") : html.index("</tbody>")]
    assert Elements(body).text.split() == ["5", "s", "9", "8", "n", "4", "m"]
    assert len(fields(Row)) - 1 == body.count("<td") + body.count("<th"), "all but the tone"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.9, "7 s"), (463, "7 min 43 s"), (7500, "2 h 05 min"), (3 * 86400 + 4 * 3600, "3 d 4 h"), (0, "0 s")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


def test_deadline_that_has_passed_is_now() -> None:
    assert until(at(0), at(1)) == "now"
    assert until(at(721), at(1)) == "in 12 min 00 s"

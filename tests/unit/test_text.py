"""Shortened texts keep whole words or lines, and say by an ellipsis that something is missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.kube.text import cut_end, keep_end

RUNC = "OCI runtime create failed: runc create failed: unable to start container process"


@pytest.mark.parametrize(
    ("text", "characters_max", "shown"),
    [
        pytest.param("short", 5, "short", id="fits"),
        pytest.param(RUNC, 58, "...runc create failed: unable to start container process", id="word"),
        pytest.param("one two", 6, "...two", id="word that just fits"),
        pytest.param("step 1\nstep 2\nValueError: no", 26, "...\nstep 2\nValueError: no", id="line"),
        pytest.param(f"{'a b ' * 50}\nlast", 23, "...b a b a b a b \nlast", id="most of the text is one line"),
        pytest.param("x" * 200, 103, f"...{'x' * 100}", id="no white space"),
    ],
)
def test_end_of_a_text_begins_with_a_whole_line_or_word(text: str, characters_max: int, shown: str) -> None:
    assert keep_end(text, characters_max) == shown


@pytest.mark.parametrize(
    ("text", "characters_max", "shown"),
    [
        pytest.param("short", 5, "short", id="fits"),
        pytest.param("one two three", 12, "one two...", id="word"),
        pytest.param("one two three", 10, "one two...", id="word that just fits"),
        pytest.param("x" * 200, 103, f"{'x' * 100}...", id="no white space"),
    ],
)
def test_beginning_of_a_text_ends_with_a_whole_word(text: str, characters_max: int, shown: str) -> None:
    assert cut_end(text, characters_max) == shown


@given(st.text(alphabet="ab \n", max_size=300), st.integers(20, 300))
def test_shortened_text_is_within_its_limit_and_part_of_the_text(text: str, characters_max: int) -> None:
    beginning, end = cut_end(text, characters_max), keep_end(text, characters_max)
    assert max(len(beginning), len(end)) <= characters_max + 1
    assert text.startswith(beginning.removesuffix("..."))
    assert text.endswith(end.removeprefix("...").removeprefix("\n"))

"""Lines of ranks are logged several in a message."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.airflow_api.task_log import (
    MESSAGE_CHARACTERS_MAX,
    MESSAGE_LINES_MAX,
    join_lines,
    log_lines,
)

if TYPE_CHECKING:
    import pytest

LINES = st.lists(st.one_of(st.text(st.characters(exclude_characters="\n")), st.just("x" * MESSAGE_CHARACTERS_MAX)))


@given(LINES)
def test_messages_have_all_lines_in_order_within_the_limits(lines: list[str]) -> None:
    messages = list(join_lines(lines))

    assert [line for message in messages for line in message.split("\n")] == lines
    for message in messages:
        assert len(message.split("\n")) <= MESSAGE_LINES_MAX
        assert len(message) <= MESSAGE_CHARACTERS_MAX or "\n" not in message


@given(LINES)
def test_no_message_could_have_had_the_lines_of_the_next_one(lines: list[str]) -> None:
    messages = list(join_lines(lines))

    for message, following in pairwise(messages):
        first = following.split("\n")[0]
        is_full = len(message.split("\n")) == MESSAGE_LINES_MAX
        assert is_full or len(message) + 1 + len(first) >= MESSAGE_CHARACTERS_MAX


def test_a_percent_sign_of_a_line_is_no_format(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_lines(["[rank 0] 50 %s", "[rank 0] 100 %d"], logging.getLogger("task"))

    assert caplog.messages == ["[rank 0] 50 %s\n[rank 0] 100 %d"]

"""The rows of a mapped task: one for each map index, by what Airflow has recorded. Pure.

A gang that has not ended is shown by the state of its task, because the other gangs of a large map would cost a request
each. The page "Gangs" has all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.outcome.rank_rows import Tone
from airflow_provider_gangjobs.plugins.locator import parse_end
from airflow_provider_gangjobs.plugins.page_text import SENTENCE_CHARACTERS_MAX, clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

ROWS_MAX: Final = 100
_STATES: Final = {
    "failed": (0, Tone.BAD),
    "upstream_failed": (0, Tone.BAD),
    "up_for_retry": (1, Tone.WAIT),
    "running": (2, Tone.BUSY),
    "deferred": (2, Tone.BUSY),
    "success": (4, Tone.GOOD),
}
"""The state of a task: its place in the order of the rows, and its tone."""
_OTHER_STATE: Final = (3, Tone.WAIT)


@dataclass(frozen=True)
class MappedRow:
    """One map index of a mapped task."""

    map_index: int
    state: str
    """State of the task."""
    tone: Tone
    sentence: str = ""
    """Why its last gang failed, if Airflow has recorded it."""
    ended: datetime | None = None


def choose_indexes(states: Mapping[int, str]) -> list[int]:
    """Return the map indexes that get a row: those that failed first, and then those that are not over."""
    return sorted(states, key=lambda index: (_STATES.get(states[index], _OTHER_STATE)[0], index))[:ROWS_MAX]


def mapped_rows(indexes: Iterable[int], states: Mapping[int, str], ends: Mapping[int, Any]) -> list[MappedRow]:
    """Return the rows of these map indexes.

    :param ends: The XComs `gang_end`.
    """
    rows = []
    for index in indexes:
        state = states[index] or "no state"
        end = parse_end(ends.get(index))
        has_failed = end is not None and end.status is not Status.SUCCEEDED
        rows.append(
            MappedRow(
                index,
                state,
                _STATES.get(state, _OTHER_STATE)[1],
                clean(end.message, SENTENCE_CHARACTERS_MAX) if end is not None and has_failed else "",
                end.times.get("ended") if end is not None else None,
            )
        )
    return rows

"""Texts of clusters and programs without what a page must not show, and addresses of Airflow's own pages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from airflow_provider_gangjobs.kube.text import cut_end, to_printable, to_printable_line

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT_CHARACTERS_MAX: Final = 250
"""An id of Airflow has at most 250 characters."""
SENTENCE_CHARACTERS_MAX: Final = 300


def clean(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Return a text from a cluster or a program as `to_printable_line` does, cut at its end."""
    return cut_end(to_printable_line(text[: 4 * characters_max]), characters_max)


def clean_lines(text: str) -> str:
    """Return a text of several lines, such as a log, as `to_printable` does."""
    return "\n".join(map(to_printable, text.expandtabs().splitlines()))


def format_duration(seconds: float) -> str:
    """Return `7 s`, `7 min 43 s`, `2 h 05 min` or `3 d 4 h`."""
    whole = int(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days} d {hours_left} h"
    if hours:
        return f"{hours} h {minutes_left:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def format_requests(requests: Mapping[str, str]) -> str:
    """Return quantities with their resources, and those that each program requests at the end."""
    common = ("cpu", "memory")
    names = sorted(requests, key=lambda name: (common.index(name) if name in common else -1, name))
    return clean(", ".join(f"{requests[name]} {name}" for name in names))


def format_ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `3rd`, `4th`, `11th`."""
    teen = number % 100 in {11, 12, 13}
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def dag_url(dag_id: str) -> str:
    """Return the address of a DAG in Airflow's UI, relative to Airflow's base URL."""
    return f"dags/{_quote(dag_id)}"


def run_url(dag_id: str, run_id: str) -> str:
    """Return the address of a run of a DAG. See `dag_url`."""
    return f"{dag_url(dag_id)}/runs/{_quote(run_id)}"


def task_url(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """Return the address of a task instance, whose first tab is its log. See `dag_url`."""
    task = f"{run_url(dag_id, run_id)}/tasks/{_quote(task_id)}"
    return f"{task}/mapped/{map_index}" if map_index >= 0 else task


def _quote(text: str) -> str:
    return quote(text, safe="", errors="replace")

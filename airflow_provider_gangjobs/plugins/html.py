"""Render the tab, the log of a rank, and the page "Gangs" as HTML. Nothing is judged here.

The template engine escapes every value; no text of a rank becomes markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.outcome.rank_rows import tone_of
from airflow_provider_gangjobs.gang.outcome.restarts import to_time
from airflow_provider_gangjobs.gang.state.pods import name_rank
from airflow_provider_gangjobs.kube.text import format_duration
from airflow_provider_gangjobs.plugins.page_view import (
    Filters,
    clean,
    clean_lines,
    task_url,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import Template

    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.view import GangView
    from airflow_provider_gangjobs.plugins.locator import MappedRow
    from airflow_provider_gangjobs.plugins.page_view import GangsView
    from airflow_provider_gangjobs.tracking.logs.last_lines import RankLog

PACKAGE: Final = "airflow_provider_gangjobs.plugins"
_BASE: Final = "../" * 7
"""Airflow's base URL, relative to the tab."""
ROWS_MAX: Final = 200
SPAN_WIDTH_MIN: Final = 2.0
"""In percent of the bar, so that a short phase is visible."""


@dataclass(frozen=True)
class PageContext:
    """The values that the templates use."""

    key: TaskKey
    """The task instance, to which the page has links."""
    view: GangView | None
    gang_name: str
    """`<namespace>/<name>` of the Job; empty if the task has no known gang."""
    error: str
    """Why the API server could not read the cluster; empty if it could."""
    task_state: str
    now: datetime
    refresh_s: int = 0
    """Seconds until the next refresh; 0 if the page will not change any more."""
    refusal: str = ""
    """Why the last try of the task has submitted no gang; empty if it has, or if that is not known."""
    mapped: tuple[MappedRow, ...] = ()
    """Other map indexes of the task."""
    mapped_omitted: int = 0
    attempts: Sequence[GangView] = ()
    """The other attempts, the latest first."""

    @property
    def task_url(self) -> str:
        """The address of the task instance in Airflow, relative to the page."""
        return _url_of(self.key)

    @property
    def gangs_url(self) -> str:
        """The address of the page "Gangs" with the gangs of the DAG, relative to the page."""
        return f"{_BASE}plugin/gangs{Filters(dag=self.key.dag_id).query()}"

    @property
    def is_of_all_indexes(self) -> bool:
        """The page is that of a mapped task, and of none of its map indexes."""
        return bool(self.mapped) and self.key.map_index < 0

    def rank_url(self, rank: int) -> str:
        """Return the address of the page with the log of a rank, relative to this page."""
        return f"{self.key.map_index}/ranks/{rank}"

    def index_url(self, row: MappedRow) -> str:
        """Return the address of another map index in Airflow, relative to the page."""
        return f"{_url_of(replace(self.key, map_index=row.map_index))}/plugin/gang"


def _url_of(key: TaskKey) -> str:
    return f"{_BASE}{task_url(key.dag_id, key.run_id, key.task_id, key.map_index)}"


def render(page: PageContext, *, nonce: str, part: bool = False) -> str:
    """Return the whole page, or with `part` the part of the page that a refresh replaces."""
    view, parts = page.view, dict[str, Any]()
    if view is not None:
        rows = view.pods[:ROWS_MAX]
        parts = {
            "bar": bar_of(view, page.now),
            "rows": rows,
            "rows_omitted": len(view.pods) + view.pods_omitted - len(rows),
            "columns": columns_of(view),
        }
    template = "part.html" if part else "page.html"
    return _render(template, page=page, gang_name=page.gang_name, view=view, nonce=nonce, part="part.html", **parts)


def render_rank(key: TaskKey, gang_name: str, rank: int, logs: Sequence[RankLog], problem: str, *, nonce: str) -> str:
    """Return the page with the last lines of the log of a rank of the gang of a task.

    :param problem: Why there is no log; empty if there is one.
    """
    return _render(
        "page.html",
        nonce=nonce,
        part="rank.html",
        gang_name=gang_name,
        label=logs[0].label if logs else name_rank(rank, pod=""),
        rank=rank,
        logs=logs,
        problem=problem,
        gang_url=f"../../{key.map_index}",
        task_url=f"../../{_url_of(key)}",
    )


def render_gangs(view: GangsView, now: datetime, as_of: datetime, *, nonce: str, part: bool = False) -> str:
    """Return the whole page "Gangs", or with `part` the part of it that a refresh replaces.

    :param as_of: When the oldest of the lists was read.
    """
    template = "gangs_part.html" if part else "gangs.html"
    return _render(template, nonce=nonce, view=view, filters=view.filters, now=now, as_of=as_of)


# -- what the tab shows of a view ------------------------------------------------------------------------------------


class BarPart(NamedTuple):
    """A phase as a part of the bar."""

    phase: str
    began: datetime
    seconds: float
    start: float
    """In percent of the width of the bar, and so is `width`."""
    width: float


def bar_of(view: GangView, now: datetime) -> list[BarPart]:
    """Return the phases of a gang as parts of a bar."""
    spans = [(phase, at, lasted / timedelta(seconds=1)) for phase, at, lasted in view.spans(now)]
    whole = sum(seconds for _, _, seconds in spans)
    widths = [max(SPAN_WIDTH_MIN, 100 * seconds / whole) for _, _, seconds in spans]
    found, start = [], 0.0
    for (phase, at, seconds), width in zip(spans, widths, strict=True):
        part = 100 * width / sum(widths)
        found.append(BarPart(phase, at, seconds, round(start, 2), round(part, 2)))
        start += part
    return found


_COLUMNS: Final = ("has_log", "exit_code", "seconds", "node", "restarts", "message", "links")


def columns_of(view: GangView) -> frozenset[str]:
    """Return the fields of rows that some row has."""
    rows = view.pods[:ROWS_MAX]
    return frozenset(name for name in _COLUMNS if any(getattr(row, name) not in (None, "", 0, {}) for row in rows))


# -- templates -------------------------------------------------------------------------------------------------------


def _render(template: str, **values: Any) -> str:
    """Return a page. What UTF-8 does not have is replaced: a text that was JSON may have half of a character."""
    return _template(template).render(**values).encode(errors="replace").decode()


def format_time(at: datetime) -> str:
    """Return `2026-01-31 12:00:00 UTC`. The date is there because servers, users and clusters differ in time zone."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def format_age(at: datetime, now: datetime) -> str:
    """Return the time from `at` to now, such as `7 min 43 s`."""
    return format_duration(max(0.0, (now - at) / timedelta(seconds=1)))


def format_remaining(at: datetime, now: datetime) -> str:
    """Return the time from now to `at`, such as `in 12 min 00 s`, or `now` if `at` has passed."""
    left_s = (at - now) / timedelta(seconds=1)
    return f"in {format_duration(left_s)}" if left_s > 0 else "now"


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader(PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "age": format_age,
        "clean": clean,
        "clean_lines": clean_lines,
        "duration": format_duration,
        "remaining": format_remaining,
        "time": format_time,
        "tone": tone_of,
        "unix_time": to_time,
    }
    return environment.get_template(name)


def security_headers(nonce: str, *, has_form: bool = False) -> dict[str, Any]:
    """Return the headers of a page. Only its own script and style run, and only Airflow may show it in a frame.

    :param has_form: The page has a form, which may be sent to Airflow only.
    """
    form = "'self'" if has_form else "'none'"
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            f"base-uri 'none'; form-action {form}; frame-ancestors 'self'"
        ),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }

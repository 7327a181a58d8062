"""Render the view of a gang as HTML. The template engine escapes every value; no text of a rank becomes markup."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.outcome.rank_rows import tone_of
from airflow_provider_gangjobs.gang.outcome.restarts import to_time
from airflow_provider_gangjobs.gang.state.pods import name_rank
from airflow_provider_gangjobs.plugins.page_text import (
    clean,
    clean_lines,
    format_duration,
    format_ordinal,
    task_url,
)
from airflow_provider_gangjobs.plugins.page_view import Filters
from airflow_provider_gangjobs.plugins.tab_view import ROWS_MAX, bar_of, columns_of, details_of, notes_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from jinja2 import Template

    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.view import GangView
    from airflow_provider_gangjobs.plugins.locator import MappedRow
    from airflow_provider_gangjobs.plugins.page_view import GangsView
    from airflow_provider_gangjobs.tracking.logs.last_lines import RankLog

PACKAGE: Final = "airflow_provider_gangjobs.plugins"
_BASE: Final = "../" * 7
"""Airflow's base URL, relative to the tab."""


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
    template, view = _template("part.html" if part else "page.html"), page.view
    parts: dict[str, Any] = {}
    if view is not None:
        rows = view.pods[:ROWS_MAX]
        parts = {
            "bar": bar_of(view, page.now),
            "details": details_of(view),
            "notes": notes_of(view),
            "rows": rows,
            "rows_omitted": len(view.pods) + view.pods_omitted - len(rows),
            "columns": columns_of(view),
        }
    return _encodable(template.render(page=page, view=view, nonce=nonce, part="part.html", **parts))


@dataclass(frozen=True)
class RankContext:
    """The values that the template of the page with the log of a rank uses."""

    gang_name: str
    key: TaskKey
    rank: int
    logs: Sequence[RankLog] = ()
    problem: str = ""
    """Why there is no log; empty if there is one."""

    @property
    def label(self) -> str:
        """How the page names the rank."""
        return self.logs[0].label if self.logs else name_rank(self.rank, pod="")

    @property
    def gang_url(self) -> str:
        """The address of the tab, relative to the page."""
        return f"../../{self.key.map_index}"

    @property
    def task_url(self) -> str:
        """The address of the task instance in Airflow, relative to the page."""
        return f"../../{_url_of(self.key)}"


def render_rank(page: RankContext, *, nonce: str) -> str:
    """Return the page with the last lines of the log of a rank."""
    return _encodable(_template("page.html").render(page=page, nonce=nonce, part="rank.html"))


@dataclass(frozen=True)
class GangsContext:
    """The values that the templates of the page "Gangs" use."""

    view: GangsView
    now: datetime
    as_of: datetime
    """When the oldest of the lists was read."""


def render_gangs(page: GangsContext, *, nonce: str, part: bool = False) -> str:
    """Return the whole page "Gangs", or with `part` the part of it that a refresh replaces."""
    template = _template("gangs_part.html" if part else "gangs.html")
    return _encodable(template.render(page=page, view=page.view, filters=page.view.filters, nonce=nonce))


def _encodable(html: str) -> str:
    """Replace what UTF-8 does not have: a text that was JSON may have half of a character."""
    return html.encode(errors="replace").decode()


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
        "ordinal": format_ordinal,
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

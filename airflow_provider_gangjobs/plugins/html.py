"""Render the view of a gang as HTML. The template engine escapes every value; no text of a rank becomes markup."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

if TYPE_CHECKING:
    from datetime import datetime

    from jinja2 import Template

    from airflow_provider_gangjobs.plugins.view_model import GangView

PACKAGE: Final = "airflow_provider_gangjobs.plugins"


@dataclass(frozen=True)
class PageContext:
    """The values that the templates use."""

    view: GangView | None
    gang_name: str
    """`<namespace>/<name>` of the Job; empty if the task has no known gang."""
    error: str
    """Why the API server could not read the cluster; empty if it could."""
    task_state: str
    now: datetime
    refresh_s: int = 0
    """Seconds until the next refresh; 0 if the page will not change any more."""


def render(page: PageContext, *, nonce: str, part: bool = False) -> str:
    """Return the whole page, or with `part` the part of the page that a refresh replaces."""
    return _template("part.html" if part else "page.html").render(page=page, view=page.view, nonce=nonce)


def format_time(at: datetime) -> str:
    """Return `2026-01-31 12:00:00 UTC`. The date is there because servers, users and clusters differ in time zone."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


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
    environment.filters |= {"time": format_time, "age": format_age, "remaining": format_remaining}
    return environment.get_template(name)

"""Page: a board as HTML. Every value is escaped by the template engine; no text of a rank is ever markup."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

if TYPE_CHECKING:
    from datetime import datetime

    from jinja2 import Template

    from airflow_provider_gangjobs.plugins.view_model import Board

PACKAGE: Final = "airflow_provider_gangjobs.plugins"


@dataclass(frozen=True)
class Shown:
    """What the page is made of."""

    board: Board | None
    name: str
    """Of the gang, if the task is known to have one."""
    trouble: str
    """Why the cluster was not looked at."""
    task_state: str
    at: datetime
    refresh_s: int = 0
    """0 if nothing will change any more."""


def render(shown: Shown, *, nonce: str, part: bool = False) -> str:
    """The whole page, or the part of it that a refresh replaces."""
    return _template("part.html" if part else "page.html").render(shown=shown, board=shown.board, nonce=nonce)


def clock(at: datetime) -> str:
    """A time of day with its date: servers, users and clusters are in different places."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def lasting(seconds: float) -> str:
    """`7 s`, `7 min 43 s`, `2 h 05 min`, `3 d 4 h`."""
    whole = int(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days} d {hours_left} h"
    if hours:
        return f"{hours} h {minutes_left:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def since(at: datetime, now: datetime) -> str:
    """How long ago it was."""
    return lasting(max(0.0, (now - at) / timedelta(seconds=1)))


def until(at: datetime, now: datetime) -> str:
    """`in 12 min 00 s`, or that it has passed."""
    left_s = (at - now) / timedelta(seconds=1)
    return f"in {lasting(left_s)}" if left_s > 0 else "now"


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader(PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"clock": clock, "lasting": lasting, "since": since, "until": until}
    return environment.get_template(name)

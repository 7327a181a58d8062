"""The filters, the order, and the number of the page "Gangs", as the query of its address says them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from airflow_provider_gangjobs.gang.gang_lists import WAITING
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.plugins.page_text import TEXT_CHARACTERS_MAX, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from airflow_provider_gangjobs.plugins.page_gangs import PageGang

HOURS: Final = (1, 6, 24, 72, 168)
HOURS_DEFAULT: Final = 24
_WAITING_CHOICE: Final = "waiting"
PHASE_CHOICES: Final = (_WAITING_CHOICE, *map(str, Phase))
PHASE_ORDER: Final = {phase: number for number, phase in enumerate(Phase)}
SORTS: Final[dict[str, Callable[[PageGang], Any]]] = {
    "submitted": lambda gang: gang.row.submitted_at,
    "phase": lambda gang: PHASE_ORDER[gang.row.phase],
    "task": lambda gang: (gang.row.dag_id, gang.row.task_id, gang.row.run_id, gang.row.submission_id),
    "ranks": lambda gang: gang.row.ranks,
    "queue": lambda gang: gang.row.queue,
}
"""By the names in the URL. A minus before the name reverses the order."""


@dataclass(frozen=True)
class Filters:
    """What the user wants to see, as the query of the URL says it."""

    phase: str = ""
    dag: str = ""
    queue: str | None = None
    """`None` for all queues, and empty for the gangs without a queue."""
    hours: int = HOURS_DEFAULT
    """Gangs that were live within the last hours."""
    text: str = ""
    sort: str = "-submitted"
    page: int = 1

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Filters:
        """Read the query of the URL. A value that is unknown is the default, so that an old address still works."""
        hours, page = query.get("hours", ""), query.get("page", "")
        queue = query.get("queue", "*")
        return cls(
            phase=found if (found := query.get("phase", "")) in PHASE_CHOICES else "",
            dag=query.get("dag", "")[:TEXT_CHARACTERS_MAX],
            queue=None if queue == "*" else queue[:TEXT_CHARACTERS_MAX],
            hours=int(hours) if hours in set(map(str, HOURS)) else HOURS_DEFAULT,
            text=clean(query.get("text", "")),
            sort=found if (found := query.get("sort", "")).removeprefix("-") in SORTS else "-submitted",
            page=int(page) if page.isascii() and page.isdecimal() and 0 < len(page) < 7 else 1,
        )

    def query(self, **changes: Any) -> str:
        """Return the query of the URL of these filters with some changes, without most of what is the default.

        A change without a page goes back to the first one. The query is never empty: an empty one makes no choice.
        """
        wanted = replace(self, **{"page": 1, **changes})
        values = {one.name: getattr(wanted, one.name) for one in fields(Filters)}
        defaults = {one.name: one.default for one in fields(Filters)}
        shown = {name: value for name, value in values.items() if value != defaults[name] or name == "hours"}
        return f"?{urlencode(shown, errors='replace')}"

    @property
    def cleared(self) -> str:
        """The query that shows everything."""
        return Filters().query()

    def sorted_by(self, name: str) -> str:
        """Return the value of `aria-sort` of a column."""
        if self.sort.removeprefix("-") != name:
            return "none"
        return "descending" if self.sort.startswith("-") else "ascending"

    def sort_query(self, name: str) -> str:
        """Return the query that sorts by a column, or reverses its order."""
        return self.query(sort=f"-{name}" if self.sort == name else name)

    def match(self, gang: PageGang, oldest: datetime) -> bool:
        """Return whether everything but the phase fits."""
        row = gang.row
        return (
            (row.ended_at is None or row.ended_at >= oldest)
            and (not self.dag or row.dag_id == self.dag)
            and (self.queue is None or row.queue == self.queue)
            and (not self.text or self.text.casefold() in gang.words)
        )

    def match_phase(self, phase: Phase) -> bool:
        return phase in WAITING if self.phase == _WAITING_CHOICE else self.phase in {"", phase}

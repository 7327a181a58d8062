"""Build the view of the page "Gangs" from the gangs that the user may see: filters, rows, counts, choices, bars. Pure.

Both pages show texts of clusters and programs without what a page must not show, and addresses of Airflow's own pages.

The query of the address of the page says the filters, the order, and the number. The bars show what the live gangs of
each DAG hold and wait for, by queue and resource.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from airflow_provider_gangjobs.gang.capacity import CPU, THOUSANDTHS, format_sum
from airflow_provider_gangjobs.gang.outcome.rank_rows import tone_of
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.view import WAITING, GangView, with_end
from airflow_provider_gangjobs.kube.quantity import format_amount, parse
from airflow_provider_gangjobs.kube.text import cut_end, pluralize, to_printable, to_printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.gang.gang_lists import DagUse
    from airflow_provider_gangjobs.gang.outcome.rank_rows import Tone
    from airflow_provider_gangjobs.tracking.overview import Overview


TEXT_CHARACTERS_MAX: Final = 250
"""An id of Airflow has at most 250 characters."""
SENTENCE_CHARACTERS_MAX: Final = 300
HOURS: Final = (1, 6, 24, 72, 168)
HOURS_DEFAULT: Final = 24
_WAITING_CHOICE: Final = "waiting"
PHASE_CHOICES: Final = (_WAITING_CHOICE, *map(str, Phase))
PHASE_ORDER: Final = {phase: number for number, phase in enumerate(Phase)}
SORTS: Final[dict[str, Callable[[GangView], Any]]] = {
    "submitted": lambda gang: gang.submitted_at,
    "phase": lambda gang: gang.urgency,
    "task": lambda gang: (gang.dag_id, gang.task_id, gang.run_id, gang.submission_id),
    "ranks": lambda gang: gang.ranks,
    "queue": lambda gang: gang.queue,
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
    sort: str = "phase"
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
            sort=found if (found := query.get("sort", "")).removeprefix("-") in SORTS else "phase",
            page=max(1, int(page)) if page.isascii() and page.isdecimal() and len(page) < 7 else 1,
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

    def match(self, gang: GangView, oldest: datetime) -> bool:
        """Return whether everything but the phase fits."""
        return (
            (gang.ended_at is None or gang.ended_at >= oldest)
            and (not self.dag or gang.dag_id == self.dag)
            and (self.queue is None or gang.queue == self.queue)
            and (not self.text or self.text.casefold() in _words_of(gang))
        )

    def match_phase(self, phase: Phase) -> bool:
        return phase in WAITING if self.phase == _WAITING_CHOICE else self.phase in {"", phase}


def _words_of(gang: GangView) -> str:
    """Return what the filter by text searches, in one case."""
    ids = (gang.namespace, gang.name, gang.dag_id, gang.task, gang.run_id, gang.submission_id, gang.queue)
    return "\n".join((*ids, gang.category, clean(gang.summary, SENTENCE_CHARACTERS_MAX))).casefold()


SEGMENTS_MAX: Final = 5


@dataclass(frozen=True)
class Segment:
    """A part of a bar, in percent of its width."""

    dag_id: str
    amount: str
    start: float
    width: float
    style: str
    """Class of the element: `held-0`, `held-1`, ..., `others`, `free`, `waits` or `never`."""

    @property
    def is_held(self) -> bool:
        return bool(self.dag_id)


@dataclass(frozen=True)
class Bar:
    """What the live gangs of one queue hold and wait for of one resource."""

    queue: str
    source: str
    resource: str
    held: str
    free: str
    """Empty if it is unknown."""
    wanted: str
    never: str
    """What can never run; empty if nothing is known to."""
    segments: tuple[Segment, ...]


def build_bars(
    filters: Filters,
    lists: Sequence[tuple[str, Overview]],
    dag_ids: AbstractSet[str],
    without_dag: AbstractSet[str],
) -> Iterable[Bar]:
    """Yield the bars of the DAGs and queues that the filters choose, of gangs that the user may see."""
    for source, found in lists:
        by_queue: dict[str, list[DagUse]] = defaultdict(list)
        for queue, use in found.uses:
            is_visible = use.dag_id in dag_ids if use.dag_id else source in without_dag
            if is_visible and (not filters.dag or use.dag_id == filters.dag) and filters.queue in {None, queue}:
                by_queue[queue].append(use)
        for queue, uses in sorted(by_queue.items()):
            names = {name for use in uses for name in (*use.held, *use.wanted, *use.never)}
            for name in sorted(names, key=lambda name: (name not in {"cpu", "memory"}, name)):
                # The quota of a queue decides about its gangs, and not what is free on nodes.
                yield _bar(queue, source, name, uses, Decimal(0) if queue else found.free.get(name, Decimal(0)))


def _bar(queue: str, source: str, resource: str, uses: Sequence[DagUse], free: Decimal) -> Bar:
    held = sorted(((_amount(use.held, resource), use.dag_id) for use in uses), reverse=True)
    wanted = sorted(((_amount(use.wanted, resource), use.dag_id) for use in uses), reverse=True)
    never = sorted(((_amount(use.never, resource), use.dag_id) for use in uses), reverse=True)
    total_held, total_wanted, total_never = (sum(n for n, _ in amounts) for amounts in (held, wanted, never))
    whole = (total_held + total_wanted + total_never + free) or Decimal(1)
    parts = [(n, dag_id or "gangs without a DAG", f"held-{i}") for i, (n, dag_id) in enumerate(held[:SEGMENTS_MAX])]
    parts.append((Decimal(sum(n for n, _ in held[SEGMENTS_MAX:])), "other DAGs", "others"))
    parts += [(free, "", "free"), (Decimal(total_wanted), "", "waits"), (Decimal(total_never), "", "never")]
    segments, start = [], 0.0
    for amount, label, style in parts:
        if amount:
            width = float(amount / whole * 100)
            segments.append(Segment(clean(label), _format(resource, amount), round(start, 3), round(width, 3), style))
            start += width
    return Bar(
        queue=clean(queue),
        source=clean(source),
        resource=clean(resource),
        held=_format(resource, Decimal(total_held)),
        free=_format(resource, free) if free else "",
        wanted=_describe_waiting(resource, Decimal(total_wanted), wanted),
        never=_describe_waiting(resource, Decimal(total_never), never),
        segments=tuple(segments),
    )


def _describe_waiting(resource: str, total: Decimal, wanted: Sequence[tuple[Decimal, str]]) -> str:
    """Return how much is waited for, and by which DAGs."""
    if not total:
        return ""
    names = [clean(dag_id) or "gangs without a DAG" for amount, dag_id in wanted if amount]
    more = f" and {len(names) - SEGMENTS_MAX} more" if len(names) > SEGMENTS_MAX else ""
    return f"{_format(resource, total)} by {', '.join(names[:SEGMENTS_MAX])}{more}"


def _format(resource: str, amount: Decimal) -> str:
    """Return a sum in cores or GiB, as reasons do, and less than one as a Kubernetes quantity."""
    if amount < (1 if resource == CPU else 2**30):
        return format_amount(resource, amount)
    return format_sum(resource, int(amount * (THOUSANDTHS if resource == CPU else 1)))


def _amount(amounts: Mapping[str, str], resource: str) -> Decimal:
    return parse(amounts.get(resource, "0"))


ROWS_PER_PAGE: Final = 50
REFRESH_S: Final = 10
REFRESH_OF_MANY_S: Final = 30
MANY: Final = 2000
"""From so many gangs on, an open page refreshes less often: a view of ten thousand takes a tenth of a second."""
MAPPED_ROWS_MAX: Final = 100
CHOICES_MAX: Final = 500
BARS_MAX: Final = 20
_MAPPED_ORDER: Final = PHASE_ORDER | {Phase.FAILED: -2, Phase.DELETED: -1}
_BASE: Final = "../"
"""Airflow's base URL, relative to the page."""


@dataclass(frozen=True)
class GangLine:
    """One row of the table: a gang, or the gangs of a mapped task."""

    first: GangView
    """The gang; of a mapped task the one that is the reason of its row."""
    anchor: str
    """Id of the element, which stays the same after a refresh."""
    name: str
    """Task or submission id."""
    gang: str
    """`<namespace>/<name>` of the Job; for a mapped task, how many gangs there are."""
    task_url: str
    """Address of the task instance, whose first tab is its log; empty without a task. All addresses are relative."""
    phases: tuple[tuple[str, Tone, int], ...]
    """Phase, tone, and number of gangs."""
    sentence: str
    ranks: str
    requests: str
    submitted: datetime
    ended: datetime | None
    spans: tuple[tuple[str, float], ...]
    """What the gang did, and for how many seconds."""
    queue: str
    mapped: tuple[GangLine, ...] = ()
    mapped_omitted: int = 0

    @property
    def dag_url(self) -> str:
        return _BASE + dag_url(self.first.dag_id)

    @property
    def run_url(self) -> str:
        return _BASE + run_url(self.first.dag_id, self.first.run_id)


@dataclass(frozen=True)
class GangsView:
    """Everything that the page shows."""

    filters: Filters
    lines: tuple[GangLine, ...] = ()
    total: int = 0
    """Number of gangs that fit the filters."""
    pages: int = 1
    phases: Mapping[str, int] = field(default_factory=dict)
    """How many gangs are in each phase, and in all phases under the empty name."""
    dags: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()
    bars_omitted: int = 0
    refresh_s: int = REFRESH_S
    has_sources: bool = False
    """Gangs come from several clusters or namespaces, which have to be told apart."""
    notes: tuple[str, ...] = ()
    phase_choices: tuple[str, ...] = PHASE_CHOICES
    hour_choices: tuple[int, ...] = HOURS

    @property
    def shows_queue(self) -> bool:
        """Some gang is in a queue."""
        return any(line.queue for line in self.lines) or self.filters.sort.removeprefix("-") == "queue"

    @property
    def shows_never(self) -> bool:
        """Some gangs wait for what never comes."""
        return any(bar.never for bar in self.bars)

    @property
    def shows_free(self) -> bool:
        """What is free is known of some resource."""
        return any(bar.free for bar in self.bars)


def build_gangs_view(
    filters: Filters,
    lists: Sequence[tuple[str, Overview]],
    ends: Iterable[GangView],
    *,
    dag_ids: AbstractSet[str],
    without_dag: AbstractSet[str],
    now: datetime,
    notes: Sequence[str] = (),
) -> GangsView:
    """Return the page of a user.

    :param lists: Pairs of a source and its gangs.
    :param ends: Of DAGs that the user may see.
    :param dag_ids: The DAGs that the user may see.
    :param without_dag: The sources of which the user may see the gangs that belong to no DAG.
    """
    listed = {
        gang.uid: gang
        for source, found in lists
        for gang in found.gangs
        if (gang.dag_id in dag_ids if gang.dag_id else source in without_dag)
    }
    gangs = _merge_ends(listed.values(), (end for end in ends if end.dag_id in dag_ids))
    oldest = now - timedelta(hours=filters.hours)
    fitting = [gang for gang in gangs if filters.match(gang, oldest)]
    shown = [gang for gang in fitting if filters.match_phase(gang.phase)]
    groups = _groups(shown, filters.sort)
    pages = max(1, -(-len(groups) // ROWS_PER_PAGE))
    filters = replace(filters, page=min(filters.page, pages))
    start = (filters.page - 1) * ROWS_PER_PAGE
    bars = list(build_bars(filters, lists, dag_ids, without_dag))
    return GangsView(
        filters,
        lines=tuple(_line(group, now) for group in groups[start : start + ROWS_PER_PAGE]),
        total=len(shown),
        pages=pages,
        phases=_phase_counts(fitting, filters.phase),
        dags=_choices((gang.dag_id for gang in gangs), filters.dag),
        queues=_choices((gang.queue for gang in gangs), filters.queue or ""),
        bars=tuple(bars[:BARS_MAX]),
        bars_omitted=len(bars[BARS_MAX:]),
        refresh_s=REFRESH_S if len(gangs) < MANY else REFRESH_OF_MANY_S,
        has_sources=len({gang.source for gang in gangs if gang.source}) > 1,
        notes=tuple(notes),
    )


def _merge_ends(gangs: Iterable[GangView], ends: Iterable[GangView]) -> list[GangView]:
    """Return the gangs with what their tasks were told at the end, and the ended gangs whose Jobs are gone."""
    by_uid = {end.uid: end for end in ends}
    merged = []
    for gang in gangs:
        end = by_uid.get(gang.uid)
        if end is not None and _task_of(gang) == _task_of(end):
            del by_uid[gang.uid]
            gang = with_end(gang, end)
        merged.append(gang)
    return [*merged, *by_uid.values()]


def _task_of(gang: GangView) -> tuple[str, str, str, int]:
    return gang.dag_id, gang.run_id, gang.task_id, gang.map_index


def _choices(values: Iterable[str], chosen: str) -> tuple[str, ...]:
    """Return the choices of a filter in their order. The chosen value stays, also if no gang has it any more."""
    found = sorted({*values, chosen} - {""})[:CHOICES_MAX]
    return tuple(found if chosen in found or not chosen else [*found, chosen])


def _phase_counts(gangs: Sequence[GangView], chosen: str) -> dict[str, int]:
    counts = Counter(gang.phase for gang in gangs)
    return {"": len(gangs)} | {phase: counts[phase] for phase in Phase if counts[phase] or phase == chosen}


def _groups(gangs: Iterable[GangView], sort: str) -> list[list[GangView]]:
    """Return the rows of the table in their order: one for each gang, and one for all gangs of a mapped task."""
    key = SORTS[sort.removeprefix("-")]
    ordered = sorted(gangs, key=lambda gang: (gang.submitted_at, gang.uid), reverse=True)
    ordered.sort(key=key, reverse=sort.startswith("-"))
    groups: dict[tuple[str, ...], list[GangView]] = {}
    for gang in ordered:
        is_mapped = gang.map_index >= 0
        of_task = (gang.dag_id, gang.run_id, gang.task_id)
        group = of_task if is_mapped else (gang.uid, gang.namespace, gang.name, gang.source)
        groups.setdefault(group, []).append(gang)
    return list(groups.values())


# -- rows -----------------------------------------------------------------------------------------------------------


def _line(group: Sequence[GangView], now: datetime) -> GangLine:
    """Return the row of a gang, or of the gangs of a mapped task, which begins with the reason of the first one."""
    ordered = sorted(group, key=lambda gang: (_MAPPED_ORDER[gang.phase], gang.map_index, -gang.attempt))
    first, gang = _line_of_gang(ordered[0], now), ordered[0]
    if len(ordered) == 1:
        return first
    counts = Counter(gang.phase for gang in ordered)
    ended = [gang.ended_at for gang in ordered if gang.ended_at is not None]
    return replace(
        first,
        anchor=clean(f"m-{gang.dag_id}-{gang.run_id}-{gang.task_id}", 3 * TEXT_CHARACTERS_MAX),
        name=clean(gang.task_id),
        gang=f"{pluralize(len(ordered), 'gang')} of a mapped task",
        task_url=f"{_BASE}{task_url(gang.dag_id, gang.run_id, gang.task_id)}/mapped",
        phases=tuple(
            (str(phase), tone_of(phase), counts[phase]) for phase in sorted(counts, key=_MAPPED_ORDER.__getitem__)
        ),
        sentence=f"{first.name}: {first.sentence}" if first.sentence else "",
        ranks=f"{sum(gang.started for gang in ordered)}/{sum(gang.ranks for gang in ordered)}",
        requests="",
        submitted=min(gang.submitted_at for gang in ordered),
        ended=max(ended) if len(ended) == len(ordered) else None,
        spans=(),
        queue=clean(_common({gang.queue for gang in ordered})),
        mapped=tuple(_line_of_gang(gang, now) for gang in ordered[:MAPPED_ROWS_MAX]),
        mapped_omitted=len(ordered[MAPPED_ROWS_MAX:]),
    )


def _common(texts: set[str]) -> str:
    return "several" if len(texts) > 1 else "".join(texts)


def _line_of_gang(gang: GangView, now: datetime) -> GangLine:
    spans = ((phase, lasted / timedelta(seconds=1)) for phase, _, lasted in gang.spans(now))
    return GangLine(
        first=gang,
        anchor=clean(f"g-{gang.uid}"),
        name=clean(gang.task or gang.submission_id or gang.name),
        gang=clean(str(gang), 2 * TEXT_CHARACTERS_MAX),
        task_url=_BASE + task_url(gang.dag_id, gang.run_id, gang.task_id, gang.map_index) if gang.dag_id else "",
        phases=((str(gang.phase), tone_of(gang.phase), 1),),
        sentence=clean(gang.summary, SENTENCE_CHARACTERS_MAX),
        ranks=f"{gang.started}/{gang.ranks}",
        requests=gang.requests_told,
        submitted=gang.submitted_at,
        ended=gang.ended_at,
        spans=tuple((phase, seconds) for phase, seconds in spans if seconds >= 1),
        queue=clean(gang.queue),
    )


# -- texts and addresses ---------------------------------------------------------------------------------------------


def clean(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Return a text from a cluster or a program as `to_printable_line` does, cut at its end."""
    return cut_end(to_printable_line(text[: 4 * characters_max]), characters_max)


def clean_lines(text: str) -> str:
    """Return a text of several lines, such as a log, as `to_printable` does."""
    return "\n".join(map(to_printable, text.expandtabs().splitlines()))


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

"""Build the view of the page "Gangs": filters, rows, counts, and bars, from lists of gangs and Airflow's records. Pure.

Everything is computed from the gangs that the user may see, also counts, sums, and the choices of the filters. Phases
and diagnoses are those of the other lists; nothing is judged here. Every list of the view has a limit.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.gang.gang_rows import WAITING, GangRow, format_amount
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.outcome.rank_rows import tone_of
from airflow_provider_gangjobs.gang.state.phase import FINAL_PHASES, Phase
from airflow_provider_gangjobs.kube.quantity import parse
from airflow_provider_gangjobs.kube.text import cut_end, pluralize, to_one_line, to_sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.gang.gang_rows import DagUse
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.gang.outcome.rank_rows import Tone
    from airflow_provider_gangjobs.tracking.overview import ListedGang, Overview

ROWS_PER_PAGE: Final = 50
REFRESH_S: Final = 10
REFRESH_OF_MANY_S: Final = 30
MANY: Final = 2000
"""From so many gangs on, an open page refreshes less often: a view of ten thousand takes a tenth of a second."""
MAPPED_ROWS_MAX: Final = 100
CHOICES_MAX: Final = 500
BARS_MAX: Final = 20
SEGMENTS_MAX: Final = 5
SENTENCE_CHARACTERS_MAX: Final = 300
TEXT_CHARACTERS_MAX: Final = 250
"""An id of Airflow has at most 250 characters."""
HOURS: Final = (1, 6, 24, 72, 168)
HOURS_DEFAULT: Final = 24
_WAITING_CHOICE: Final = "waiting"
PHASE_CHOICES: Final = (_WAITING_CHOICE, *map(str, Phase))
_PHASE_ORDER: Final = {phase: number for number, phase in enumerate(Phase)}
_MAPPED_ORDER: Final = _PHASE_ORDER | {Phase.FAILED: -2, Phase.DELETED: -1}
# Control characters, marks that change the direction of a text, and halves of characters, which UTF-8 does not have.
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
_SPANS: Final = (
    ("submitted", "admitted", "queued"),
    ("submitted", "running", "waited"),
    ("submitted", "ended", "waited"),
    ("admitted", "running", "assembled"),
    ("admitted", "ended", "since start"),
    ("running", "ended", "ran"),
)
"""Two times of a gang that follow each other, and what the gang did in between."""


def clean(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Return a text as one line of at most so many characters, without characters that a reader cannot see."""
    return cut_end(to_one_line(_UNPRINTABLE.sub(" ", text[: 4 * characters_max])), characters_max)


# -- gangs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageGang:
    """One gang, as the page shows it."""

    row: GangRow
    category: str = ""
    sentence: str = ""
    remedy: str = ""
    """What to do about a gang that failed; what to do about one that waits is on its tab."""
    requests: str = ""
    followed_by: str = ""
    source: str = ""
    """Connection and namespace; empty for a gang that only Airflow's records show."""
    times: tuple[tuple[str, datetime], ...] = ()
    """Names as in `GangEvent.times`."""
    words: str = ""
    """What the filter by text searches, in one case."""


@dataclass(frozen=True)
class PageList:
    """The gangs of one source by DAG, and what they hold. Gangs that belong to no DAG are under the empty id."""

    by_dag: Mapping[str, tuple[PageGang, ...]] = field(default_factory=dict)
    uses: tuple[tuple[str, DagUse], ...] = ()
    """Pairs of a queue and a DAG's use of it."""


@dataclass(frozen=True)
class EndRecord:
    """How a gang ended, by the XCom `gang_end` of its task."""

    key: TaskKey
    event: GangEvent
    at: datetime
    """When the XCom was written."""

    @classmethod
    def of(cls, key: TaskKey, event: GangEvent, at: datetime) -> EndRecord:
        """Return the record without what the page does not show, since many are kept, and without times that have no
        zone, which only somebody else can have written."""
        counts = {"ranks": len(event.ranks)} | event.counts
        times = {name: when for name, when in event.times.items() if when.tzinfo is not None}
        unshown: dict[str, Any] = {"ranks": (), "notes": (), "streamed": {}, "whole_logs": (), "restarts": ()}
        slim = with_fields(event, counts=counts, times=times, **unshown, progress=None, time_use=None)
        return cls(key, slim, at)


def list_for_page(overview: Overview, source: str) -> PageList:
    """Return the gangs of an overview for the page. All viewers share the result."""
    by_dag: dict[str, list[PageGang]] = defaultdict(list)
    for gang in overview.gangs:
        by_dag[gang.row.dag_id].append(_page_gang(gang, source))
    uses = tuple((use.queue, dag) for use in overview.uses for dag in use.dags)
    return PageList({dag_id: tuple(gangs) for dag_id, gangs in by_dag.items()}, uses)


NOT_EXPLAINED: Final = "Not all ranks have started. The tab of the task says what the gang waits for."
RANKS_NOT_READ: Final = "The tab of the task says which rank failed."


def _page_gang(gang: ListedGang, source: str) -> PageGang:
    row, found = gang.row, gang.diagnosis
    times = (("submitted", row.submitted_at), ("admitted", row.started_at), ("ended", row.ended_at))
    return _with_words(
        PageGang(
            row,
            category=found.category if found else "",
            sentence=clean(found.summary if found else _describe_unread(row), SENTENCE_CHARACTERS_MAX),
            remedy=clean(found.remedy, SENTENCE_CHARACTERS_MAX) if found and row.has_failed else "",
            requests=_format_requests(gang.requests),
            followed_by=_format_followers(gang),
            source=source,
            times=tuple((name, at) for name, at in times if at is not None),
        )
    )


def _describe_unread(row: GangRow) -> str:
    return f"{to_sentence(row.reason)} {RANKS_NOT_READ}" if row.phase in FINAL_PHASES else NOT_EXPLAINED


def _format_followers(gang: ListedGang) -> str:
    if gang.row.phase in FINAL_PHASES:
        return ""
    if gang.followed_by is None:
        return "unknown"
    return clean(", ".join(gang.followed_by)) or "no triggerer"


def _format_requests(requests: Mapping[str, str]) -> str:
    common = ("cpu", "memory")
    names = sorted(requests, key=lambda name: (common.index(name) if name in common else -1, name))
    return clean(", ".join(f"{requests[name]} {name}" for name in names))


def _with_words(gang: PageGang) -> PageGang:
    row = gang.row
    parts = (row.namespace, row.name, row.dag_id, row.task, row.run_id, row.submission_id, row.queue)
    return replace(gang, words="\n".join((*parts, gang.category, gang.sentence)).casefold())


_PHASE_OF_STATUS: Final = {
    Status.SUCCEEDED: Phase.SUCCEEDED,
    Status.FAILED: Phase.FAILED,
    Status.TIMEOUT: Phase.FAILED,
    Status.DELETED: Phase.DELETED,
    Status.REPLACED: Phase.DELETED,
}
"""The other events do not say that the gang has ended."""


def merge_ends(gangs: Sequence[PageGang], ends: Iterable[EndRecord]) -> list[PageGang]:
    """Return the gangs with what their tasks were told at the end, and the ended gangs whose Jobs are gone."""
    by_uid = {end.event.uid: end for end in ends if end.event.status in _PHASE_OF_STATUS}
    merged = []
    for gang in gangs:
        end = by_uid.get(gang.row.uid)
        if end is not None and _task_of(gang.row) == end.key.to_mapping():
            del by_uid[gang.row.uid]
            gang = _with_end(gang, end)
        merged.append(gang)
    return merged + [_with_end(PageGang(_row_of_end(end)), end) for end in by_uid.values()]


def _task_of(row: GangRow) -> dict[str, Any]:
    return {"dag_id": row.dag_id, "run_id": row.run_id, "task_id": row.task_id, "map_index": row.map_index}


def _with_end(gang: PageGang, end: EndRecord) -> PageGang:
    event = end.event
    phase = _PHASE_OF_STATUS[event.status]
    return _with_words(
        replace(
            gang,
            row=with_fields(gang.row, phase=phase, ended_at=gang.row.ended_at or event.times.get("ended", end.at)),
            category=clean(event.category),
            sentence=clean(event.message, SENTENCE_CHARACTERS_MAX),
            remedy=clean(event.remedy, SENTENCE_CHARACTERS_MAX),
            requests=gang.requests or _format_requests(event.requests),
            followed_by="",
            times=tuple(sorted(event.times.items(), key=lambda item: item[1])) or gang.times,
        )
    )


def _row_of_end(end: EndRecord) -> GangRow:
    event = end.event
    ended = event.times.get("ended", end.at)
    return GangRow(
        namespace=event.namespace,
        name=event.name,
        uid=event.uid,
        phase=_PHASE_OF_STATUS[event.status],
        attempt=event.attempt or 0,
        ranks=event.counts.get("ranks", 0),
        ready=0,
        succeeded=event.counts.get("succeeded", 0),
        failed=event.counts.get("failed", 0),
        submitted_at=event.times.get("submitted", ended),
        started_at=event.times.get("admitted"),
        ended_at=ended,
        queue=clean(event.queue),
        **end.key.to_mapping(),  # type: ignore[arg-type]
    )


# -- filters ---------------------------------------------------------------------------------------------------------


SORTS: Final[dict[str, Callable[[PageGang], Any]]] = {
    "submitted": lambda gang: gang.row.submitted_at,
    "phase": lambda gang: _PHASE_ORDER[gang.row.phase],
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


# -- the view --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GangLine:
    """One row of the table: a gang, or the gangs of a mapped task."""

    anchor: str
    """Id of the element, which stays the same after a refresh."""
    name: str
    """Task or submission id."""
    dag_id: str
    run_id: str
    gang: str
    """`<namespace>/<name>` of the Job; for a mapped task, how many gangs there are."""
    task_url: str
    """Address of the task instance, whose first tab is its log; empty without a task. All addresses are relative."""
    phases: tuple[tuple[str, Tone, int], ...]
    """Phase, tone, and number of gangs."""
    category: str
    sentence: str
    remedy: str
    ranks: str
    requests: str
    submitted: datetime
    ended: datetime | None
    spans: tuple[tuple[str, float], ...]
    """What the gang did, and for how many seconds."""
    queue: str
    followed_by: str
    attempt: int = 0
    source: str = ""
    mapped: tuple[GangLine, ...] = ()
    mapped_omitted: int = 0

    @property
    def dag_url(self) -> str:
        return dag_url(self.dag_id)

    @property
    def run_url(self) -> str:
        return f"{self.dag_url}/runs/{_quote(self.run_id)}"


@dataclass(frozen=True)
class PhaseCount:
    """How many gangs are in a phase, and the query that shows them."""

    phase: str
    tone: Tone | None
    count: int
    query: str
    is_chosen: bool


@dataclass(frozen=True)
class Segment:
    """A part of a bar, in percent of its width."""

    dag_id: str
    amount: str
    start: float
    width: float
    style: str
    """Class of the element: `held-0`, `held-1`, ..., `others` or `waits`."""


@dataclass(frozen=True)
class Bar:
    """What the live gangs of one queue hold and wait for of one resource."""

    queue: str
    source: str
    resource: str
    held: str
    wanted: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class GangsView:
    """Everything that the page shows."""

    filters: Filters
    lines: tuple[GangLine, ...] = ()
    total: int = 0
    """Number of gangs that fit the filters."""
    pages: int = 1
    phases: tuple[PhaseCount, ...] = ()
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


def build_gangs_view(
    filters: Filters,
    lists: Sequence[tuple[str, PageList]],
    ends: Iterable[EndRecord],
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
        gang.row.uid: gang
        for source, found in lists
        for dag_id, gangs in found.by_dag.items()
        if (dag_id in dag_ids if dag_id else source in without_dag)
        for gang in gangs
    }
    gangs = merge_ends(tuple(listed.values()), (end for end in ends if end.key.dag_id in dag_ids))
    oldest = now - timedelta(hours=filters.hours)
    fitting = [gang for gang in gangs if filters.match(gang, oldest)]
    shown = [gang for gang in fitting if filters.match_phase(gang.row.phase)]
    groups = _groups(shown, filters.sort)
    pages = max(1, -(-len(groups) // ROWS_PER_PAGE))
    filters = replace(filters, page=min(filters.page, pages))
    start = (filters.page - 1) * ROWS_PER_PAGE
    bars = list(_bars(filters, lists, dag_ids, without_dag))
    return GangsView(
        filters,
        lines=tuple(_line(group, now) for group in groups[start : start + ROWS_PER_PAGE]),
        total=len(shown),
        pages=pages,
        phases=tuple(_phase_counts(fitting, filters)),
        dags=_choices((gang.row.dag_id for gang in gangs), filters.dag),
        queues=_choices((gang.row.queue for gang in gangs), filters.queue or ""),
        bars=tuple(bars[:BARS_MAX]),
        bars_omitted=len(bars[BARS_MAX:]),
        refresh_s=REFRESH_S if len(gangs) < MANY else REFRESH_OF_MANY_S,
        has_sources=len({gang.source for gang in gangs if gang.source}) > 1,
        notes=tuple(notes),
    )


def _choices(values: Iterable[str], chosen: str) -> tuple[str, ...]:
    """Return the choices of a filter in their order. The chosen value stays, also if no gang has it any more."""
    found = sorted({*values, chosen} - {""})[:CHOICES_MAX]
    return tuple(found if chosen in found or not chosen else [*found, chosen])


def _phase_counts(gangs: Iterable[PageGang], filters: Filters) -> Iterable[PhaseCount]:
    counts = Counter(gang.row.phase for gang in gangs)
    yield PhaseCount("all", None, counts.total(), filters.query(phase=""), not filters.phase)
    for phase in Phase:
        if counts[phase] or filters.phase == phase:
            yield PhaseCount(phase, tone_of(phase), counts[phase], filters.query(phase=phase), filters.phase == phase)


def _groups(gangs: Iterable[PageGang], sort: str) -> list[list[PageGang]]:
    """Return the rows of the table in their order: one for each gang, and one for all gangs of a mapped task."""
    key = SORTS[sort.removeprefix("-")]
    ordered = sorted(gangs, key=lambda gang: (gang.row.submitted_at, gang.row.uid), reverse=True)
    if sort != "-submitted":
        ordered.sort(key=key, reverse=sort.startswith("-"))
    groups: dict[tuple[str, ...], list[PageGang]] = {}
    for gang in ordered:
        row = gang.row
        is_mapped = row.map_index >= 0
        group = (row.dag_id, row.run_id, row.task_id) if is_mapped else (row.uid, row.namespace, row.name, gang.source)
        groups.setdefault(group, []).append(gang)
    return list(groups.values())


# -- rows ------------------------------------------------------------------------------------------------------------


def _line(group: Sequence[PageGang], now: datetime) -> GangLine:
    if len(group) == 1:
        return _line_of_gang(group[0], now)
    ordered = sorted(group, key=lambda gang: (_MAPPED_ORDER[gang.row.phase], gang.row.map_index, -gang.row.attempt))
    first, rows = ordered[0], [gang.row for gang in ordered]
    counts = Counter(row.phase for row in rows)
    ended = [row.ended_at for row in rows if row.ended_at is not None]
    queues = {row.queue for row in rows}
    followers = {gang.followed_by for gang in ordered if gang.followed_by}
    url = _task_url(first.row, with_index=False)
    return GangLine(
        anchor=clean(f"m-{first.row.dag_id}-{first.row.run_id}-{first.row.task_id}", 3 * TEXT_CHARACTERS_MAX),
        name=clean(first.row.task_id),
        dag_id=first.row.dag_id,
        run_id=first.row.run_id,
        gang=f"{pluralize(len(group), 'gang')} of a mapped task",
        task_url=url,
        phases=tuple(
            (str(phase), tone_of(phase), counts[phase]) for phase in sorted(counts, key=_MAPPED_ORDER.__getitem__)
        ),
        category=first.category,
        sentence=f"{clean(first.row.task)}: {first.sentence}" if first.sentence else "",
        remedy=first.remedy,
        ranks=f"{sum(map(_started, rows))}/{sum(row.ranks for row in rows)}",
        requests="",
        submitted=min(row.submitted_at for row in rows),
        ended=max(ended) if len(ended) == len(rows) else None,
        spans=(),
        queue=clean(queues.pop()) if len(queues) == 1 else "several",
        followed_by=followers.pop() if len(followers) == 1 else "several" if followers else "",
        source=first.source,
        mapped=tuple(_line_of_gang(gang, now) for gang in ordered[:MAPPED_ROWS_MAX]),
        mapped_omitted=len(ordered[MAPPED_ROWS_MAX:]),
    )


def _line_of_gang(gang: PageGang, now: datetime) -> GangLine:
    row = gang.row
    return GangLine(
        anchor=clean(f"g-{row.uid}"),
        name=clean(row.task or row.submission_id or row.name),
        dag_id=row.dag_id,
        run_id=row.run_id,
        gang=clean(f"{row.namespace}/{row.name}", 2 * TEXT_CHARACTERS_MAX),
        task_url=_task_url(row, with_index=True) if row.dag_id else "",
        phases=((str(row.phase), tone_of(row.phase), 1),),
        category=gang.category,
        sentence=gang.sentence,
        remedy=gang.remedy,
        ranks=f"{_started(row)}/{row.ranks}",
        requests=gang.requests,
        submitted=row.submitted_at,
        ended=row.ended_at,
        spans=tuple(_spans(gang, now)),
        queue=clean(row.queue),
        followed_by=gang.followed_by,
        attempt=row.attempt,
        source=gang.source,
    )


def _started(row: GangRow) -> int:
    return min(row.ready + row.succeeded, row.ranks)


def _spans(gang: PageGang, now: datetime) -> Iterable[tuple[str, float]]:
    """Return what the gang did between its known times; until now, if it has not ended."""
    times = dict(gang.times)
    if gang.row.phase not in FINAL_PHASES:
        times["ended"] = now
    names = [name for name in ("submitted", "admitted", "running", "ended") if name in times]
    did = {(first, then): what for first, then, what in _SPANS}
    for first, then in pairwise(names):
        what = "assembling" if gang.row.phase is Phase.ASSEMBLING and first == "admitted" else did[first, then]
        yield what, max(0.0, (times[then] - times[first]).total_seconds())


def _quote(text: str) -> str:
    return quote(text, safe="", errors="replace")


def dag_url(dag_id: str) -> str:
    """Return the address of a DAG in Airflow's UI, relative to the page."""
    return f"../dags/{_quote(dag_id)}"


def _task_url(row: GangRow, *, with_index: bool) -> str:
    task = f"{dag_url(row.dag_id)}/runs/{_quote(row.run_id)}/tasks/{_quote(row.task_id)}"
    if row.map_index < 0:
        return task
    return f"{task}/mapped/{row.map_index}" if with_index else f"{task}/mapped"


# -- bars ------------------------------------------------------------------------------------------------------------


def _bars(
    filters: Filters,
    lists: Sequence[tuple[str, PageList]],
    dag_ids: AbstractSet[str],
    without_dag: AbstractSet[str],
) -> Iterable[Bar]:
    for source, found in lists:
        by_queue: dict[str, list[DagUse]] = defaultdict(list)
        for queue, use in found.uses:
            is_visible = use.dag_id in dag_ids if use.dag_id else source in without_dag
            if is_visible and (not filters.dag or use.dag_id == filters.dag) and filters.queue in {None, queue}:
                by_queue[queue].append(use)
        for queue, uses in sorted(by_queue.items()):
            names = {name for use in uses for name in (*use.held, *use.wanted)}
            for name in sorted(names, key=lambda name: (name not in {"cpu", "memory"}, name)):
                yield _bar(queue, source, name, uses)


def _bar(queue: str, source: str, resource: str, uses: Sequence[DagUse]) -> Bar:
    held = sorted(((_amount(use.held, resource), use.dag_id) for use in uses), reverse=True)
    wanted = sorted(((_amount(use.wanted, resource), use.dag_id) for use in uses), reverse=True)
    total_held, total_wanted = sum(n for n, _ in held), sum(n for n, _ in wanted)
    whole = (total_held + total_wanted) or Decimal(1)
    parts = [(n, dag_id or "gangs without a DAG", f"held-{i}") for i, (n, dag_id) in enumerate(held[:SEGMENTS_MAX])]
    parts.append((Decimal(sum(n for n, _ in held[SEGMENTS_MAX:])), "other DAGs", "others"))
    parts.append((Decimal(total_wanted), "", "waits"))
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
        wanted=_describe_waiting(resource, Decimal(total_wanted), wanted),
        segments=tuple(segments),
    )


def _describe_waiting(resource: str, total: Decimal, wanted: Sequence[tuple[Decimal, str]]) -> str:
    """Return how much is waited for, and by which DAGs."""
    if not total:
        return ""
    names = [clean(dag_id) or "gangs without a DAG" for amount, dag_id in wanted if amount]
    more = f" and {len(names) - SEGMENTS_MAX} more" if len(names) > SEGMENTS_MAX else ""
    return f"{_format(resource, total)} by {', '.join(names[:SEGMENTS_MAX])}{more}"


def _amount(amounts: Mapping[str, str], resource: str) -> Decimal:
    return parse(amounts.get(resource, "0"))


def _format(resource: str, amount: Decimal) -> str:
    return format_amount(resource, amount)

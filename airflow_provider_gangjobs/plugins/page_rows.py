"""The gangs of the page "Gangs": from lists of clusters, and from what Airflow recorded of their ends. Pure.

Phases and diagnoses are those of the other lists; nothing is judged here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.gang.gang_lists import GangRow
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.state.phase import FINAL_PHASES, Phase
from airflow_provider_gangjobs.kube.text import to_sentence
from airflow_provider_gangjobs.plugins.page_text import SENTENCE_CHARACTERS_MAX, clean, format_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from decimal import Decimal

    from airflow_provider_gangjobs.gang.gang_lists import DagUse
    from airflow_provider_gangjobs.gang.identity import TaskKey
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.tracking.overview import ListedGang, Overview


@dataclass(frozen=True)
class PageGang:
    """One gang, as the page shows it."""

    row: GangRow
    category: str = ""
    sentence: str = ""
    remedy: str = ""
    """What to do about a gang that failed; what to do about one that waits is on its tab."""
    requests: str = ""
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
    free: Mapping[str, Decimal] = field(default_factory=dict)
    """What is free in the cluster, by resource, as far as it is known."""


def list_for_page(overview: Overview, source: str) -> PageList:
    """Return the gangs of an overview for the page. All viewers share the result."""
    by_dag: dict[str, list[PageGang]] = defaultdict(list)
    for gang in overview.gangs:
        by_dag[gang.row.dag_id].append(_page_gang(gang, source))
    uses = tuple((use.queue, dag) for use in overview.uses for dag in use.dags)
    return PageList({dag_id: tuple(gangs) for dag_id, gangs in by_dag.items()}, uses, overview.free)


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
            requests=format_requests(gang.requests),
            source=source,
            times=tuple((name, at) for name, at in times if at is not None),
        )
    )


def _describe_unread(row: GangRow) -> str:
    return f"{to_sentence(row.reason)} {RANKS_NOT_READ}" if row.phase in FINAL_PHASES else NOT_EXPLAINED


def _with_words(gang: PageGang) -> PageGang:
    row = gang.row
    parts = (row.namespace, row.name, row.dag_id, row.task, row.run_id, row.submission_id, row.queue)
    return replace(gang, words="\n".join((*parts, gang.category, gang.sentence)).casefold())


PHASE_OF_STATUS: Final = {
    Status.SUCCEEDED: Phase.SUCCEEDED,
    Status.FAILED: Phase.FAILED,
    Status.TIMEOUT: Phase.FAILED,
    Status.DELETED: Phase.DELETED,
    Status.REPLACED: Phase.DELETED,
}
"""The other events do not say that the gang has ended."""


def gang_of_end(key: TaskKey, event: GangEvent, at: datetime) -> PageGang | None:
    """Return an ended gang by the XCom `gang_end` of its task; `None` if the event does not say that it has ended.

    :param at: When the XCom was written.
    """
    phase = PHASE_OF_STATUS.get(event.status)
    if phase is None:
        return None
    times = event.times
    ended = times.get("ended", at)
    row = GangRow(
        namespace=event.namespace,
        name=event.name,
        uid=event.uid,
        phase=phase,
        attempt=event.attempt or 0,
        ranks=event.counts.get("ranks", len(event.ranks)),
        ready=0,
        succeeded=event.counts.get("succeeded", 0),
        failed=event.counts.get("failed", 0),
        submitted_at=times.get("submitted", ended),
        started_at=times.get("admitted"),
        ended_at=ended,
        queue=clean(event.queue),
        **key.to_mapping(),  # type: ignore[arg-type]
    )
    return _with_words(
        PageGang(
            row,
            category=clean(event.category),
            sentence=clean(event.message, SENTENCE_CHARACTERS_MAX),
            remedy=clean(event.remedy, SENTENCE_CHARACTERS_MAX),
            requests=format_requests(event.requests),
            times=tuple(sorted(times.items(), key=lambda item: item[1])),
        )
    )


def merge_ends(gangs: Sequence[PageGang], ends: Iterable[PageGang]) -> list[PageGang]:
    """Return the gangs with what their tasks were told at the end, and the ended gangs whose Jobs are gone."""
    by_uid = {end.row.uid: end for end in ends}
    merged = []
    for gang in gangs:
        end = by_uid.get(gang.row.uid)
        if end is not None and _task_of(gang.row) == _task_of(end.row):
            del by_uid[gang.row.uid]
            gang = _with_end(gang, end)
        merged.append(gang)
    return [*merged, *by_uid.values()]


def _task_of(row: GangRow) -> tuple[str, str, str, int]:
    return row.dag_id, row.run_id, row.task_id, row.map_index


def _with_end(gang: PageGang, end: PageGang) -> PageGang:
    return _with_words(
        replace(
            end,
            row=with_fields(gang.row, phase=end.row.phase, ended_at=gang.row.ended_at or end.row.ended_at),
            requests=gang.requests or end.requests,
            source=gang.source,
            times=end.times or gang.times,
        )
    )

"""The bars of the page "Gangs": what the live gangs of each DAG hold and wait for, by queue and resource. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from airflow_provider_gangjobs.gang.capacity import CPU, THOUSANDTHS, format_sum
from airflow_provider_gangjobs.gang.gang_lists import format_amount
from airflow_provider_gangjobs.kube.quantity import parse
from airflow_provider_gangjobs.plugins.page_text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_gangjobs.gang.gang_lists import DagUse
    from airflow_provider_gangjobs.plugins.page_filters import Filters
    from airflow_provider_gangjobs.plugins.page_gangs import PageList

SEGMENTS_MAX: Final = 5


@dataclass(frozen=True)
class Segment:
    """A part of a bar, in percent of its width."""

    dag_id: str
    amount: str
    start: float
    width: float
    style: str
    """Class of the element: `held-0`, `held-1`, ..., `others`, `free` or `waits`."""

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
    segments: tuple[Segment, ...]


def build_bars(
    filters: Filters,
    lists: Sequence[tuple[str, PageList]],
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
            names = {name for use in uses for name in (*use.held, *use.wanted)}
            for name in sorted(names, key=lambda name: (name not in {"cpu", "memory"}, name)):
                # The quota of a queue decides about its gangs, and not what is free on nodes.
                yield _bar(queue, source, name, uses, Decimal(0) if queue else found.free.get(name, Decimal(0)))


def _bar(queue: str, source: str, resource: str, uses: Sequence[DagUse], free: Decimal) -> Bar:
    held = sorted(((_amount(use.held, resource), use.dag_id) for use in uses), reverse=True)
    wanted = sorted(((_amount(use.wanted, resource), use.dag_id) for use in uses), reverse=True)
    total_held, total_wanted = sum(n for n, _ in held), sum(n for n, _ in wanted)
    whole = (total_held + total_wanted + free) or Decimal(1)
    parts = [(n, dag_id or "gangs without a DAG", f"held-{i}") for i, (n, dag_id) in enumerate(held[:SEGMENTS_MAX])]
    parts.append((Decimal(sum(n for n, _ in held[SEGMENTS_MAX:])), "other DAGs", "others"))
    parts += [(free, "", "free"), (Decimal(total_wanted), "", "waits")]
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
    """Return a sum in cores or GiB, as diagnoses do, and less than one as a Kubernetes quantity."""
    if amount < (1 if resource == CPU else 2**30):
        return format_amount(resource, amount)
    return format_sum(resource, int(amount * (THOUSANDTHS if resource == CPU else 1)))


def _amount(amounts: Mapping[str, str], resource: str) -> Decimal:
    return parse(amounts.get(resource, "0"))

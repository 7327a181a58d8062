"""The view of the page "Gangs": what a user may see, filters, order, mapped tasks, ends, bars, and its HTML."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from airflow_provider_gangjobs.gang.gang_lists import DagUse
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import build_event
from airflow_provider_gangjobs.gang.state.category import Category
from airflow_provider_gangjobs.gang.state.phase import Phase, Status, SubmissionState
from airflow_provider_gangjobs.gang.view import GangView, view_end
from airflow_provider_gangjobs.plugins.html import render_gangs
from airflow_provider_gangjobs.plugins.locator import mapped_rows, with_waits
from airflow_provider_gangjobs.plugins.page_view import (
    CHOICES_MAX,
    MANY,
    MAPPED_ROWS_MAX,
    REFRESH_OF_MANY_S,
    REFRESH_S,
    ROWS_PER_PAGE,
    SENTENCE_CHARACTERS_MAX,
    Filters,
    GangsView,
    build_gangs_view,
    clean,
)
from airflow_provider_gangjobs.tracking.overview import Overview
from tests.plugins.test_html import MARKUP, Elements
from tests.unit.builders import at

if TYPE_CHECKING:
    from collections.abc import Iterable

NOW = at(3600)
SOURCE = "gpu/team"


def gang(uid: str, phase: Phase = Phase.RUNNING, *, text: str = "", submitted: float = 0, **fields: Any) -> GangView:
    """Return a gang of the task `train` of the DAG `etl`."""
    times = {Phase.SUBMITTED: at(submitted)} | ({phase: at(60)} if phase in {Phase.SUCCEEDED, Phase.FAILED} else {})
    values = {
        "namespace": "team",
        "name": uid,
        "attempt": 0,
        "dag_id": "etl",
        "task_id": "train",
        "run_id": "run",
        "state": {Phase.SUCCEEDED: SubmissionState.SUCCEEDED, Phase.FAILED: SubmissionState.FAILED}.get(
            phase, SubmissionState.IN_PROGRESS
        ),
        "category": Category.RUNNING,
        "summary": text or f"sentence of {uid}",
        "ranks": 4,
        "ready": 1,
        "requests": {"cpu": "8"},
    }
    return GangView(uid=uid, phase=phase, times=times, **{**values, **fields})


def view_of(
    gangs: Iterable[GangView],
    *,
    dags: Iterable[str] = ("etl", "eval"),
    own_connection: bool = False,
    ends: Iterable[GangView] = (),
    uses: Iterable[tuple[str, DagUse]] = (),
    free: dict[str, Decimal] | None = None,
    now: datetime = NOW,
    **query: str,
) -> GangsView:
    """Return the page of a user who may see some DAGs."""
    return build_gangs_view(
        Filters.parse(query),
        [(SOURCE, Overview(tuple(gangs), tuple(uses), free or {}))],
        ends,
        dag_ids=frozenset(dags),
        without_dag={SOURCE} if own_connection else set(),
        now=now,
    )


def names(view: GangsView) -> list[str]:
    return [line.gang.removeprefix("team/") for line in view.lines]


def end(name: str, *, dag_id: str = "etl", task_id: str = "train", **fields: Any) -> GangView:
    status = fields.pop("status", Status.FAILED)
    event = build_event(GangRef("team", name, name), status, Phase.FAILED, **fields)
    return view_end(event, TaskKey(dag_id, "run", task_id), at=at(90))


# -- who sees what ---------------------------------------------------------------------------------------------------


SECRET = "of another team"


def test_gangs_of_other_dags_are_nowhere_on_the_page() -> None:
    use = DagUse(dag_id=SECRET, running=1, waiting=0, held={f"cpu {SECRET}": "7"}, wanted={})
    foreign = gang(f"job {SECRET}", Phase.FAILED, dag_id=SECRET, queue=f"queue {SECRET}", text=f"failed {SECRET}")
    ended = end(f"ended {SECRET}", dag_id=SECRET, message=f"message {SECRET}")

    view = view_of([gang("own"), foreign], ends=[ended], uses=[(f"queue {SECRET}", use)])

    assert (names(view), view.total, view.dags, view.queues, view.bars) == (["own"], 1, ("etl",), (), ())
    assert view.phases == {"": 1, "running": 1}
    assert SECRET not in render_gangs(view, NOW, NOW, nonce="n")


@pytest.mark.parametrize(("own_connection", "shown"), [(True, ["adhoc"]), (False, [])])
def test_gang_of_no_dag_is_shown_to_users_of_its_connection(own_connection: bool, shown: list[str]) -> None:
    adhoc = gang("adhoc", dag_id="", task_id="", run_id="", submission_id="nightly")

    view = view_of([adhoc], dags=["etl"], own_connection=own_connection)

    assert names(view) == shown
    assert [line.name for line in view.lines] == ["nightly"] * len(shown)


def test_end_of_another_task_does_not_change_a_gang() -> None:
    """Whoever may write XComs of one DAG may write there the uid of the gang of another DAG."""
    forged = end("own", dag_id="eval", message="forged")

    view = view_of([gang("own")], dags=["etl"], ends=[forged])

    assert [line.sentence for line in view.lines] == ["sentence of own"]


# -- filters, order, pages -------------------------------------------------------------------------------------------


TONIGHT = [
    gang("a", Phase.QUEUED, queue="gpus", submitted=10),
    gang("b", Phase.RUNNING, ranks=9, submitted=20),
    gang("c", Phase.FAILED, dag_id="eval", submitted=30, text="rank 1 ran out of memory"),
]
FILTERS = {
    "none": ({}, ["c", "a", "b"]),
    "a phase": ({"phase": "failed"}, ["c"]),
    "phases that wait": ({"phase": "waiting"}, ["a"]),
    "an unknown phase": ({"phase": "dancing"}, ["c", "a", "b"]),
    "a DAG": ({"dag": "etl"}, ["a", "b"]),
    "the latest first": ({"sort": "-submitted"}, ["c", "b", "a"]),
    "a DAG without gangs": ({"dag": "other"}, []),
    "a queue": ({"queue": "gpus"}, ["a"]),
    "no queue": ({"queue": ""}, ["c", "b"]),
    "a text in another case": ({"text": "OUT of MEMORY"}, ["c"]),
    "the oldest first": ({"sort": "submitted"}, ["a", "b", "c"]),
    "the largest first": ({"sort": "-ranks"}, ["b", "c", "a"]),
    "an unknown order": ({"sort": "colour"}, ["c", "a", "b"]),
    "a page that does not exist": ({"page": "99"}, ["c", "a", "b"]),
    "a page that is no number": ({"page": "٣"}, ["c", "a", "b"]),
}


@pytest.mark.parametrize(("query", "expected"), FILTERS.values(), ids=FILTERS)
def test_filters_choose_and_order_the_rows(query: dict[str, str], expected: list[str]) -> None:
    assert names(view_of(TONIGHT, **query)) == expected


def test_counts_of_phases_ignore_the_chosen_phase_only() -> None:
    view = view_of(TONIGHT, dag="etl", phase="queued")

    html = render_gangs(view, NOW, NOW, nonce="n", part=True)

    assert list(view.phases.items()) == [("", 2), ("queued", 1), ("running", 1)]
    links = re.findall(
        r'<a href="\?[^"]*"( aria-current="true")?><span class="state[^>]*>(all|queued|running)</span>', html
    )
    assert links == [("", "all"), (' aria-current="true"', "queued"), ("", "running")]


def test_gang_that_ended_long_ago_is_left_out() -> None:
    gangs = [gang("ended", Phase.SUCCEEDED), gang("runs")]
    later = at(60) + timedelta(hours=1, seconds=1)

    assert names(view_of(gangs, now=later, hours="1")) == ["runs"]
    assert names(view_of(gangs, now=later, hours="6")) == ["runs", "ended"]


def test_every_gang_is_on_exactly_one_page() -> None:
    gangs = [gang(f"job-{number:03}", submitted=number) for number in range(2 * ROWS_PER_PAGE + 1)]

    pages = [view_of(gangs, page=str(page)) for page in (1, 2, 3)]

    assert [len(page.lines) for page in pages] == [ROWS_PER_PAGE, ROWS_PER_PAGE, 1]
    assert [name for page in pages for name in names(page)] == [f"job-{number:03}" for number in range(100, -1, -1)]
    assert {page.pages for page in pages} == {3}


@pytest.mark.parametrize("page", ["0", "-1", "2", "999999", "x", ""])
def test_page_that_does_not_exist_is_an_existing_one(page: str) -> None:
    view = view_of([gang("a")], page=page)
    assert (view.filters.page, [line.name for line in view.lines]) == (1, ["train"])


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "phase": st.sampled_from(["failed", "waiting", "no"]),
            "dag": st.text(max_size=20),
            "queue": st.text(max_size=20),
            "hours": st.sampled_from(["1", "168", "-3"]),
            "text": st.text(max_size=20),
            "sort": st.sampled_from(["-ranks", "queue", ""]),
            "page": st.sampled_from(["1", "7", "x"]),
        },
    )
)
def test_address_has_the_whole_state_of_the_filters(query: dict[str, str]) -> None:
    filters = Filters.parse(query)

    address = filters.query(page=filters.page)

    assert Filters.parse(dict(parse_qsl(address[1:], keep_blank_values=True))) == filters


def test_page_with_many_gangs_refreshes_less_often() -> None:
    gangs = [gang(str(number)) for number in range(MANY)]

    assert (view_of(gangs[1:]).refresh_s, view_of(gangs).refresh_s) == (REFRESH_S, REFRESH_OF_MANY_S)


def test_choices_of_a_filter_are_limited_and_keep_the_chosen_one() -> None:
    dags = [f"dag-{number:04}" for number in range(CHOICES_MAX + 50)]

    view = view_of([gang(dag, dag_id=dag) for dag in dags], dags=dags, dag=dags[-1])

    assert len(view.dags) == CHOICES_MAX + 1
    assert view.dags[-1] == dags[-1]


# -- mapped tasks ----------------------------------------------------------------------------------------------------


def test_mapped_task_is_one_row_with_a_row_for_each_gang() -> None:
    phases = [Phase.SUCCEEDED, Phase.RUNNING, Phase.FAILED, Phase.RUNNING]
    mapped = [gang(f"m{index}", phase, map_index=index) for index, phase in enumerate(phases)]

    (line,) = view_of(mapped).lines

    assert [(phase, count) for phase, _, count in line.phases] == [("failed", 1), ("running", 2), ("succeeded", 1)]
    assert [one.name for one in line.mapped] == ["train[2]", "train[1]", "train[3]", "train[0]"]
    assert line.sentence == "train[2]: sentence of m2"
    assert line.ranks == "4/16"
    assert line.task_url == "../dags/etl/runs/run/tasks/train/mapped"
    assert line.mapped[0].task_url == "../dags/etl/runs/run/tasks/train/mapped/2"


def test_rows_of_a_mapped_task_are_limited() -> None:
    mapped = [gang(f"m{index}", map_index=index) for index in range(MAPPED_ROWS_MAX + 7)]

    (line,) = view_of(mapped).lines

    assert (len(line.mapped), line.mapped_omitted) == (MAPPED_ROWS_MAX, 7)


def test_ids_are_quoted_in_addresses() -> None:
    (line,) = view_of(
        [gang("a", dag_id="a/../b", run_id="manual__2026-01-01T00:00:00+00:00", task_id="g.t?#")], dags=["a/../b"]
    ).lines

    assert line.task_url == "../dags/a%2F..%2Fb/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/g.t%3F%23"


# -- what ended ------------------------------------------------------------------------------------------------------


TIMES = {"submitted": at(0), "admitted": at(30), "running": at(40), "ended": at(80)}


def test_ended_gang_has_the_reason_and_the_times_that_its_task_was_told() -> None:
    ended = end("a", category="OutOfMemory", message="rank 1 ran out of memory", remedy="Raise it.", times=TIMES)

    (line,) = view_of(
        [gang("a", Phase.FAILED, text="BackoffLimitExceeded", category=Category.UNKNOWN)], ends=[ended]
    ).lines

    assert (line.first.category, line.sentence, line.first.remedy) == (
        "OutOfMemory",
        "rank 1 ran out of memory",
        "Raise it.",
    )
    assert line.spans == (("submitted", 30.0), ("assembling", 10.0), ("running", 20.0))


def test_gang_whose_job_is_gone_is_shown_from_its_event() -> None:
    ended = end("gone", status=Status.SUCCEEDED, category="Succeeded", times=TIMES, queue="gpus", requests={"cpu": "3"})

    (line,) = view_of([], ends=[ended]).lines

    assert (line.gang, line.phases[0][0], line.queue, line.requests) == ("team/gone", "succeeded", "gpus", "3 cpu")
    assert (line.submitted, line.ended) == (at(0), at(80))
    assert line.task_url == "../dags/etl/runs/run/tasks/train"


def test_reason_that_the_ranks_left_is_not_replaced_by_that_of_the_task() -> None:
    ended = end("a", category="JobDeleted", message="told to the task")

    (line,) = view_of([gang("a", Phase.FAILED, text="rank 1 failed")], ends=[ended]).lines

    assert (line.first.category, line.sentence) == ("Running", "rank 1 failed")


def test_end_that_the_task_was_told_is_later_than_a_list_in_which_the_gang_runs() -> None:
    ended = end("a", message="rank 1 ran out of memory", times=TIMES)

    (line,) = view_of([gang("a", Phase.RUNNING, source=SOURCE)], ends=[ended]).lines

    assert (line.phases[0][0], line.sentence, line.first.source) == ("failed", "rank 1 ran out of memory", SOURCE)


def test_waiting_map_index_in_the_tab_says_what_its_gang_waits_for() -> None:
    rows = mapped_rows([0, 1, 2], {0: "deferred", 1: "deferred", 2: "deferred"}, {})
    gangs = [
        gang("a", Phase.QUEUED, map_index=0, text="Position 3 in the ClusterQueue"),
        gang("b", Phase.RUNNING, map_index=1),
        gang("c", Phase.QUEUED, map_index=2, run_id="another"),
    ]
    found = with_waits(rows, TaskKey("etl", "run", "train", 2), gangs)
    assert [row.sentence for row in found] == ["Position 3 in the ClusterQueue", "", ""]


# -- bars ------------------------------------------------------------------------------------------------------------


def test_bar_shows_who_holds_and_who_waits() -> None:
    uses = [
        DagUse(dag_id="etl", running=2, waiting=0, held={"nvidia.com/gpu": "6"}, wanted={}),
        DagUse(dag_id="eval", running=1, waiting=3, held={"nvidia.com/gpu": "2"}, wanted={"nvidia.com/gpu": "8"}),
    ]

    (bar,) = view_of([], uses=[("gpus", use) for use in uses]).bars

    assert (bar.queue, bar.resource, bar.held, bar.wanted) == ("gpus", "nvidia.com/gpu", "8", "8 by eval")
    assert [(one.dag_id, one.amount, one.start, one.width, one.style) for one in bar.segments] == [
        ("etl", "6", 0, 37.5, "held-0"),
        ("eval", "2", 37.5, 12.5, "held-1"),
        ("", "8", 50, 50, "waits"),
    ]


def test_bar_tells_what_can_never_run_from_what_waits() -> None:
    wanted, never = {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "6"}
    use = DagUse(dag_id="etl", running=0, waiting=2, held={}, wanted=wanted, never=never)
    view = view_of([], uses=[("", use)])
    (bar,) = view.bars
    assert (bar.wanted, bar.never) == ("2 by etl", "6 by etl")
    assert [(one.style, one.width) for one in bar.segments] == [("waits", 25), ("never", 75)]
    html = render_gangs(view, NOW, NOW, nonce="n")
    assert '<span class="key never"><bdi>6 by etl</bdi></span>' in html


def test_sums_are_in_cores_and_gib_unless_they_are_small() -> None:
    held = {"cpu": "19500m", "memory": "9472Mi"}
    use = DagUse(dag_id="etl", running=2, waiting=1, held=held, wanted={"cpu": "250m", "memory": "64Mi"})

    cpu, memory = view_of([], uses=[("", use)]).bars

    assert (cpu.held, cpu.wanted) == ("19.5", "250m by etl")
    assert (memory.held, memory.wanted) == ("9.25Gi", "64Mi by etl")


def test_column_of_queues_is_there_if_a_gang_has_one() -> None:
    for queue, is_shown in (("", False), ("gpus", True)):
        html = render_gangs(view_of([gang("a", queue=queue)]), NOW, NOW, nonce="n", part=True)
        assert ('data-label="Queue"' in html) is is_shown


def test_free_capacity_is_shown_for_gangs_that_no_queue_holds_back() -> None:
    use = DagUse(dag_id="etl", running=1, waiting=1, held={"cpu": "4"}, wanted={"cpu": "8"})

    view = view_of([], uses=[("", use), ("gpus", use)], free={"cpu": Decimal("2.5")})

    assert [(bar.queue, bar.free) for bar in view.bars] == [("", "2.5"), ("gpus", "")]
    assert [(one.style, one.amount) for one in view.bars[0].segments] == [
        ("held-0", "4"),
        ("free", "2.5"),
        ("waits", "8"),
    ]
    assert '<span class="key free">2.5</span>' in render_gangs(view, NOW, NOW, nonce="n")


# -- hostile data ----------------------------------------------------------------------------------------------------


HOSTILE = (
    st.text(st.characters(exclude_categories=()), max_size=60) | st.just(MARKUP) | st.just("\u202egnp.exe\x00\x1b[2J")
)


def hostile_view(text: str) -> GangsView:
    """Return a page with `text` wherever somebody may write it."""
    ids = {"task_id": text, "run_id": text, "queue": clean(text), "namespace": text, "name": text}
    one = gang("a", text=text, **ids)
    mapped = [gang(f"m{i}", text=text, **ids, map_index=i) for i in (0, 1)]
    ended = end("e", message=text, remedy=text, category=text, requests={text: text})
    use = DagUse(dag_id="etl", running=1, waiting=0, held={text: "1"}, wanted={text: "2"})
    gangs = [with_fields(each, requests={text: text}) for each in (one, *mapped)]
    view = view_of(gangs, ends=[ended], uses=[(text, use)])
    return replace(view, filters=replace(view.filters, text=clean(text)), notes=(clean(text),))


EXPECTED = Elements(render_gangs(hostile_view("text"), NOW, NOW, nonce="n"))


@given(HOSTILE)
def test_no_text_becomes_markup_or_breaks_the_response(text: str) -> None:
    html = render_gangs(hostile_view(text), NOW, NOW, nonce="n")

    html.encode()
    allowed = {tag for tag, _ in EXPECTED.elements}
    assert {tag for tag, _ in Elements(html).elements} <= allowed
    assert not any(name.startswith("on") for _, attributes in Elements(html).elements for name in attributes)
    assert not {"\u202e", "\x1b", "\x00"} & set(html)


@given(st.text(st.characters(exclude_categories=())))
def test_clean_text_is_one_bounded_line(text: str) -> None:
    cleaned = clean(text * 30, 100)

    assert len(cleaned) <= 100
    assert cleaned.isprintable() or "\n" not in cleaned
    cleaned.encode()


def test_long_message_is_cut() -> None:
    (line,) = view_of([gang("a", text="🦑 ink " * 4096)]).lines

    assert len(line.sentence) <= SENTENCE_CHARACTERS_MAX


def test_page_loads_no_other_resources_and_has_labels() -> None:
    html = render_gangs(view_of(TONIGHT), NOW, NOW, nonce="secret")

    assert "http://" not in html
    assert " src=" not in html
    assert "style=" not in html
    assert html.count('nonce="secret"') == 2
    assert html.count("<caption") == html.count("<table")
    assert html.count("<th>") == 0, "each header has a scope"

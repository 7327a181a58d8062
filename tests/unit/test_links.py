"""Links to other systems: which templates are read, and what they become for a gang and its ranks."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import InvalidConnection
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.state.stored_gang import read_gang
from airflow_provider_gangjobs.gang.view import GangSnapshot, view_gang
from airflow_provider_gangjobs.kube.links import LINKS_MAX, LinkTemplate, fill, parse_links
from tests.unit.builders import at, job, pod

LOGS = "https://logs.example.com/?q={namespace}%2F{pod}&from={start}&to={end}"
RUNS = "https://runs.example.com/{dag_id}/{run_id}"


@pytest.mark.parametrize(
    "written",
    [
        {"GPU metrics": LOGS, "Runs": RUNS},
        f"GPU metrics: {LOGS}\n\nRuns: {RUNS}\n",
        f"GPU metrics: {LOGS} Runs: {RUNS}",
    ],
    ids=["mapping", "lines", "one line"],
)
def test_links_are_read_from_a_mapping_and_from_lines(written: Any) -> None:
    assert parse_links(written) == (LinkTemplate("GPU metrics", LOGS), LinkTemplate("Runs", RUNS))


REFUSED = {
    "unknown field": ("a: https://x/{pods}", r"link 'a' has the unknown field \{pods\}. Known are namespace, job"),
    "attribute": ("a: https://x/{pod.__class__}", "unknown field"),
    "index": ("a: https://x/{pod[0]}", "unknown field"),
    "conversion": ("a: https://x/{pod!r}", "unknown field"),
    "format": ("a: https://x/{rank:>9999}", "unknown field"),
    "position": ("a: https://x/{}", "unknown field"),
    "open brace": ("a: https://x/{pod", "is no address"),
    "http": ("a: http://x/{pod}", "does not begin with https://"),
    "script": ({"a": "javascript:alert(1)"}, "does not begin with https://"),
    "host from a value": ("a: https://{dag_id}.example.com/", "in its host"),
    "user": ("a: https://me@example.com/", "in its host"),
    "no host": ("a: https:///x", "and a host"),
    "no name": ("https://x/{pod}", "needs a name"),
    "long name": ({"a" * 99: "https://x/"}, "needs a name"),
    "long address": ({"a": "https://x/" + "a" * 1000}, "is no address of at most 1000 characters"),
    "line end": ({"a": "https://x/\nb"}, "is no address"),
    "no address": ("a: https://x/ b:", "has no address after 'b:'"),
    "list": (["a: https://x/"], "is no text"),
    "too many": ({str(number): "https://x/" for number in range(LINKS_MAX + 1)}, "has 11 links, and may have 10"),
}


@pytest.mark.parametrize(("written", "problem"), REFUSED.values(), ids=REFUSED)
def test_template_that_cannot_be_used_is_refused_with_its_reason(written: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_links(written)


def test_connection_with_an_unknown_field_cannot_be_used() -> None:
    with pytest.raises(InvalidConnection, match=r"extra links link 'Logs' has the unknown field \{pods\}"):
        ClusterConfig.from_extras("gpu", {"links": "Logs: https://x/{pods}"})
    assert ClusterConfig.from_extras("gpu", {}).links == ()


def test_values_are_quoted_and_choose_neither_host_nor_path() -> None:
    (link,) = parse_links("a: https://x.example.com/{dag_id}?q={run_id}")
    found = fill([link], {"dag_id": '../"><script>', "run_id": "manual__2026-01-01T00:00:00+00:00&x=\ud800"})
    path, run = "..%2F%22%3E%3Cscript%3E", "manual__2026-01-01T00%3A00%3A00%2B00%3A00%26x%3D%3F"
    assert found == {"a": f"https://x.example.com/{path}?q={run}"}


def test_link_whose_field_has_no_value_is_left_out() -> None:
    links = parse_links("Runs: https://x/{dag_id} Ids: https://x/{submission_id} Ranks: https://x/{map_index}")
    assert fill(links, {"dag_id": "", "submission_id": "nightly", "map_index": -1}) == {
        "Ids": "https://x/nightly",
        "Ranks": "https://x/-1",
    }


def test_gang_and_each_rank_have_their_own_links() -> None:
    gang = job(2).record(task=TaskKey("etl", "run", "train")).resumed(3)
    pods = [pod("a").rank(0).running(4).view(), pod("b").rank(1).failed(137, 9).view()]
    links = parse_links({"Logs": LOGS, "Runs": RUNS})
    found = view_gang(GangSnapshot(read_gang(gang.view(), ()), pods, [], is_whole=True, links=links), now=at(20))
    start = int(at(3).timestamp() * 1000)
    address = f"https://logs.example.com/?q={found.namespace}%2F{{}}&from={start}&to=now"
    assert found.links == {"Runs": "https://runs.example.com/etl/run"}
    assert [(row.rank, dict(row.links)) for row in found.pods] == [
        (1, {"Logs": address.format("b")}),
        (0, {"Logs": address.format("a")}),
    ]
    assert found.first_links == {**found.links, "Logs of rank 1": address.format("b")}


def test_gang_that_has_ended_has_the_time_of_its_end() -> None:
    ended = job(1).record(task=TaskKey("etl", "run", "train")).resumed(3).complete(9)
    view = view_gang(GangSnapshot(read_gang(ended.view(), ()), links=parse_links("a: https://x/?to={end}")))
    assert view.links == {"a": f"https://x/?to={int(at(9).timestamp() * 1000)}"}

"""Pages and events become views. An object that cannot be decoded is reported, and affects no other object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.errors import UnexpectedReply
from airflow_provider_gangjobs.cluster.informer.reflector import (
    Undecoded,
    ViewDecoder,
    WatchEvent,
    decode_page,
    error_of_watch,
)
from airflow_provider_gangjobs.kube.views import JobView, PodView, view
from tests.unit.builders import pod

STATUS = {"kind": "Status", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410}


def named(name: str, **more: Any) -> dict[str, Any]:
    obj = pod(name).rank(0).running(5).obj
    return obj | {"metadata": obj["metadata"] | {"uid": f"uid-{name}", "resourceVersion": f"v-{name}"}} | more


def odd(name: str) -> dict[str, Any]:
    """Return an object with a uid and a version whose other fields have a wrong type."""
    return named(name, status="odd")


def bookmark(version: str) -> dict[str, Any]:
    """Return a bookmark, which has an object with a version only."""
    return {"kind": "Pod", "metadata": {"resourceVersion": version}, "spec": {"containers": None}, "status": {}}


def line(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def summary_of(event: WatchEvent[PodView]) -> tuple[str, PodView | None, str, str]:
    """Return type, object, uid and version of an event. The object is None if it could not be decoded."""
    seen, meta = event.object, event.object.metadata
    return event.type, seen if isinstance(seen, PodView) and meta.uid else None, meta.uid, meta.resource_version


# -- events ----------------------------------------------------------------------------------------------------


def test_lines_of_pods_are_views() -> None:
    lines = line("ADDED", named("a")) + line("DELETED", named("b"))
    assert [(event.type, event.object) for event in ViewDecoder(PodView).decode_events(lines)] == [
        ("ADDED", view(PodView, named("a"))),
        ("DELETED", view(PodView, named("b"))),
    ]


KINDS = st.one_of(
    st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), st.sampled_from([named("a"), odd("b"), {}, [], None])),
    st.tuples(st.just("BOOKMARK"), st.sampled_from([bookmark("9"), {}, None])),
    st.tuples(st.just("ERROR"), st.just(STATUS)),
    st.just(("", None)),
)


@given(st.lists(KINDS, max_size=6))
def test_event_does_not_depend_on_other_events_of_the_chunk(events: list[tuple[str, Any]]) -> None:
    lines = [line(*event) if event[0] else b"\n" for event in events]
    views = ViewDecoder(PodView)
    assert [summary_of(event) for event in views.decode_events(b"".join(lines))] == [
        summary_of(event) for one in lines for event in views.decode_events(one)
    ]


def test_object_that_cannot_be_decoded_has_its_uid() -> None:
    (event,) = ViewDecoder(PodView).decode_events(line("MODIFIED", odd("a")))
    assert summary_of(event) == ("MODIFIED", None, "uid-a", "v-a")
    assert isinstance(event.object, Undecoded)


@pytest.mark.parametrize("kind", [PodView, JobView], ids=lambda kind: kind.__name__)
def test_bookmark_has_a_version(kind: Any) -> None:
    (event,) = ViewDecoder(kind).decode_events(line("BOOKMARK", bookmark("9")))
    assert (event.type, event.object.metadata.resource_version) == ("BOOKMARK", "9")


def test_events_before_an_invalid_line_are_returned() -> None:
    events = iter(
        ViewDecoder(PodView).decode_events(line("ADDED", named("a")) + b"<html>\n" + line("ADDED", named("b")))
    )
    assert summary_of(next(events)) == ("ADDED", view(PodView, named("a")), "uid-a", "v-a")
    with pytest.raises(UnexpectedReply):
        next(events)


def test_event_of_type_error_raises_the_error_of_the_server() -> None:
    error = error_of_watch(line("ADDED", named("a")) + line("ERROR", STATUS), request="watch pods")
    assert (error.status, error.reason) == (410, "Expired")


# -- pages -----------------------------------------------------------------------------------------------------


def page(*items: Any) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "7", "continue": "more"}, "items": items}).encode()


def read_views(body: bytes) -> list[PodView | Undecoded]:
    return [ViewDecoder(PodView).decode(item) for item in decode_page(body).items or ()]


ITEMS = st.lists(st.sampled_from([named("a"), named("b"), odd("c"), {}, None]), max_size=5)


@given(ITEMS)
def test_object_of_a_page_does_not_depend_on_other_objects(items: list[Any]) -> None:
    read = decode_page(page(*items))
    assert (read.metadata.resource_version, read.metadata.continue_) == ("7", "more")
    assert read_views(page(*items)) == [view for item in items for view in read_views(page(item))]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"metadata":{},"items":[]}'], ids=repr)
def test_response_that_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(UnexpectedReply):
        decode_page(body)


def test_list_without_items_is_empty() -> None:
    assert read_views(b'{"metadata":{"resourceVersion":"7"},"items":null}') == []

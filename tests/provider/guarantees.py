"""Named guarantees of the harvest, checked over the history of the server and not over our own state."""

from __future__ import annotations

import msgspec

from airflow_provider_gangjobs.gang.labels import LABEL_ROLE, Role
from airflow_provider_gangjobs.gang.outcomes import Outcome
from tests.provider.plane import Plane, is_held


def recorded_before_released(plane: Plane) -> None:
    """No pod lost our finalizer before its outcome was stored."""
    recorded: set[str] = set()
    for event in plane.history:
        if (
            event.resource.plural == "configmaps"
            and event.obj["metadata"].get("labels", {}).get(LABEL_ROLE) == Role.LEDGER
        ):
            recorded |= set(event.obj.get("data") or {})
        was_held = event.old is not None and is_held(event.old)
        if event.resource.plural == "pods" and was_held and not is_held(event.obj):
            assert event.obj["metadata"]["uid"] in recorded, "released before it was recorded"


def counted_once(plane: Plane, uids: set[str], name: str = "train") -> None:
    """Each of these pods has one outcome, and nothing else has one."""
    entries = plane.ledger(name)
    assert set(entries) == uids
    outcomes = [msgspec.json.decode(text, type=Outcome) for text in entries.values()]
    assert {outcome.uid for outcome in outcomes} == uids


def entries_never_change(plane: Plane) -> None:
    """What is recorded once stays as it is."""
    seen: dict[str, str] = {}
    for event in plane.history:
        if event.resource.plural == "configmaps":
            for uid, text in (event.obj.get("data") or {}).items():
                assert seen.setdefault(uid, text) == text


def no_finalizer_left(plane: Plane, name: str = "train") -> None:
    assert plane.held(name) == []


def check_harvest(plane: Plane, uids: set[str], name: str = "train") -> None:
    recorded_before_released(plane)
    counted_once(plane, uids, name)
    entries_never_change(plane)
    no_finalizer_left(plane, name)

"""Named guarantees of the harvest, checked over the history of the server and not over our own state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from airflow_provider_gangjobs.gang.labels import LABEL_ROLE, Role
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
from tests.provider.virtual_control_plane import is_held

if TYPE_CHECKING:
    from collections.abc import Sequence

Obj = dict[str, Any]


class Kind(Protocol):
    """A kind of object."""

    @property
    def plural(self) -> str: ...


class Change(Protocol):
    """One change that a server made to an object."""

    @property
    def resource(self) -> Kind: ...
    @property
    def obj(self) -> Obj: ...
    @property
    def old(self) -> Obj | None: ...


class Seen(Protocol):
    """What a server has stored, change by change: a sandbox's plane, or what a real server's watch has told."""

    @property
    def history(self) -> Sequence[Change]: ...

    def ledger(self, name: str) -> dict[str, str]: ...

    def held(self, name: str) -> list[Obj]: ...


def recorded_before_released(plane: Seen) -> None:
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


def counted_once(plane: Seen, uids: set[str], name: str = "train") -> None:
    """Each of these pods has one outcome, and nothing else has one."""
    entries = plane.ledger(name)
    assert set(entries) == uids
    outcomes = [msgspec.json.decode(text, type=Outcome) for text in entries.values()]
    assert {outcome.uid for outcome in outcomes} == uids


def entries_never_change(plane: Seen) -> None:
    """What is recorded once stays as it is."""
    seen: dict[str, str] = {}
    for event in plane.history:
        if event.resource.plural == "configmaps":
            for uid, text in (event.obj.get("data") or {}).items():
                assert seen.setdefault(uid, text) == text


def no_finalizer_left(plane: Seen, name: str = "train") -> None:
    assert plane.held(name) == []


def check_harvest(plane: Seen, uids: set[str], name: str = "train") -> None:
    recorded_before_released(plane)
    counted_once(plane, uids, name)
    entries_never_change(plane)
    no_finalizer_left(plane, name)

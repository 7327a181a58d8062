"""Guarantees of the harvest, over a history: each outcome is recorded once, before the pod is released."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
from tests.guarantees.history import CONFIGMAPS, PODS, is_held

if TYPE_CHECKING:
    from tests.guarantees.history import History


def recorded_before_released(history: History) -> None:
    """Check that no pod lost the provider's finalizer before its outcome was stored."""
    recorded: set[str] = set()
    for change in history.changes:
        if change.is_ledger:
            recorded |= set(change.obj.get("data") or {})
        was_held = change.old is not None and is_held(change.old)
        if change.plural == PODS and was_held and not is_held(change.obj):
            assert change.uid in recorded, "a pod was released before its outcome was recorded"


def counted_once(history: History, uids: set[str], gang: str = "train") -> None:
    """Check that each of these pods has one outcome, and that nothing else has an outcome."""
    entries = history.ledger(gang)
    assert set(entries) == uids
    outcomes = [msgspec.json.decode(text, type=Outcome) for text in entries.values()]
    assert {outcome.uid for outcome in outcomes} == uids


def entries_never_change(history: History) -> None:
    """Check that a recorded outcome never changes."""
    seen: dict[str, str] = {}
    for change in history.of(CONFIGMAPS):
        for uid, text in (change.obj.get("data") or {}).items():
            assert seen.setdefault(uid, text) == text


def no_finalizer_left(history: History, gang: str = "train") -> None:
    assert history.held(gang) == []


def check_harvest(history: History, uids: set[str], gang: str = "train") -> None:
    recorded_before_released(history)
    counted_once(history, uids, gang)
    entries_never_change(history)
    no_finalizer_left(history, gang)

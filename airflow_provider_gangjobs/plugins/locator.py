"""Lead: where the gang of a task instance is to be looked for, by what Airflow has on record of it. Pure.

The connection comes from what Airflow itself has written down (the trigger's arguments, the rendered fields), and
never from an XCom, which more people may write. A gang is looked for by the digest of the task that the user was
allowed to see, so what the XCom says can only make that gang not be found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, UnreadableEventError
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.kube.names import is_dns_label, is_dns_subdomain
from airflow_provider_gangjobs.triggers.args import Watch

FINISHED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""States of a task in which nothing more comes of it by itself."""
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
_WATCH_FIELDS: Final = frozenset(each.name for each in fields(Watch))


@dataclass(frozen=True)
class Record:
    """What Airflow's database has of a task instance, as far as it matters here."""

    key: TaskKey
    state: str | None = None
    trigger: Mapping[str, Any] | None = None
    """Arguments of the trigger that the task is deferred to, if that is one of ours."""
    rendered: Mapping[str, Any] | None = None
    gang: Any = None
    """The XCom `gang`."""
    end: Any = None
    """The XCom `gang_end`."""


@dataclass(frozen=True)
class Lead:
    """Where to look, and what only Airflow knows."""

    key: TaskKey
    ref: GangRef
    kubernetes_conn_id: str | None = None
    """`None` if Airflow does not know it any more."""
    must_exist: bool = False
    deadlines: Deadlines = field(default_factory=Deadlines)
    deadline: float | None = None
    """Unix time at which the task's `execution_timeout` has passed."""
    end: GangEvent | None = None
    """How the gang ended, if the task was told."""
    is_finished: bool = False
    """Airflow is done with the task."""


def lead_of(record: Record) -> Lead | None:
    """Where to look for the gang; `None` if the task instance has submitted none, as far as is known."""
    watch = _watch(record.trigger)
    ref = watch.ref if watch else ref_of(record.gang)
    if ref is None:
        return None
    end = _end(record.end)
    return Lead(
        key=record.key,
        ref=ref,
        kubernetes_conn_id=watch.kubernetes_conn_id if watch else _text(record.rendered, "kubernetes_conn_id"),
        must_exist=watch.must_exist if watch else False,
        deadlines=watch.deadlines if watch else Deadlines(),
        deadline=watch.deadline if watch else None,
        end=end if end is not None and end.ref == ref else None,
        is_finished=record.state in FINISHED,
    )


def ref_of(value: Any) -> GangRef | None:
    """The gang that an XCom names, `None` if it is not of that form: anybody may have written it."""
    if not isinstance(value, Mapping):
        return None
    namespace, name, uid = (value.get(key) for key in ("namespace", "name", "uid"))
    if not is_dns_label(namespace) or not is_dns_subdomain(name) or not isinstance(uid, str):
        return None
    return GangRef(str(namespace), str(name), uid) if _UID.fullmatch(uid) else None


def _watch(trigger: Mapping[str, Any] | None) -> Watch | None:
    """The trigger's arguments. Those that a later release has added are passed over."""
    if trigger is None:
        return None
    try:
        return Watch(**{name: value for name, value in trigger.items() if name in _WATCH_FIELDS})
    except TypeError:
        return None


def _end(value: Any) -> GangEvent | None:
    try:
        return GangEvent.from_payload(value)
    except UnreadableEventError:
        return None


def _text(values: Mapping[str, Any] | None, name: str) -> str | None:
    found = (values or {}).get(name)
    return found if isinstance(found, str) and found else None

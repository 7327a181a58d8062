"""A script of responses to the requests of a reflector, in virtual time."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.informer.health import Health
from airflow_provider_gangjobs.cluster.informer.reflector import InformerConfig, Reflector, Target
from airflow_provider_gangjobs.cluster.informer.store import Store
from airflow_provider_gangjobs.cluster.resources import JOBS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from airflow_provider_gangjobs.cluster.errors import ClusterError


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    resource_version: str = ""


class View(msgspec.Struct, frozen=True):
    metadata: Meta
    value: str = ""


def obj(uid: str, version: int, value: str = "") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "value": value}


def page(version: int, *items: Any, more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)}


def event(kind: str, of: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": of}


def bookmark(version: int) -> dict[str, Any]:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def expired() -> dict[str, Any]:
    return event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})


@dataclass
class OpenWatch:
    """A watch that is open for this many seconds, and then ends or breaks."""

    seconds: float
    broken_by: ClusterError | None = None


class ScriptEndedError(Exception):
    """The script has no further response."""


@dataclass
class ScriptedAnswers:
    """Responses to the requests of a reflector, and the times of these requests."""

    answers: list[Any]
    now: float = 0.0
    requests: list[tuple[float, str]] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    """The limit of each page."""

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now, sleep=self.sleep, random=random.Random(7))

    def _next(self, request: str) -> Any:
        if not self.answers:
            raise ScriptEndedError
        self.requests.append((round(self.now, 3), request))
        return self.answers.pop(0)

    async def list_page(self, *_: Any, limit: int = 500, continue_token: str | None = None, **__: Any) -> bytes:
        self.limits += [limit] if self.answers else []
        answer = self._next(f"list {continue_token or ''}".strip())
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode() if isinstance(answer, dict) else answer

    async def watch(
        self, *_: Any, resource_version: str, on_open: Callable[[], None], **__: Any
    ) -> AsyncGenerator[bytes, None]:
        answer = self._next(f"watch {resource_version}")
        if isinstance(answer, Exception):
            raise answer
        on_open()
        for step in answer:
            if isinstance(step, OpenWatch):
                self.now += step.seconds
                if step.broken_by:
                    raise step.broken_by
            else:
                yield step if isinstance(step, bytes) else json.dumps(step).encode()

    @property
    def asked(self) -> list[str]:
        return [request for _, request in self.requests]

    @property
    def gaps(self) -> list[float]:
        times = [at for at, _ in self.requests]
        return [round(b - a, 3) for a, b in itertools.pairwise(times)]


def everything(_: View) -> str:
    return "all"


async def play(
    *answers: Any, pace: InformerConfig | None = None
) -> tuple[ScriptedAnswers, Store[View], Reflector[View]]:
    """Run a reflector until the end of the script."""
    script = ScriptedAnswers(list(answers))
    store: Store[View] = Store(everything)
    pace = pace or InformerConfig()
    health = Health("jobs in team", script.clock, healthy_after_s=pace.healthy_after_s)
    target = Target(JOBS, "team")
    reflector = Reflector(script, target, View, store, health=health, clock=script.clock, config=pace)
    with pytest.raises(ScriptEndedError):
        await reflector.run()
    return script, store, reflector


def values(store: Store[View]) -> dict[str, str]:
    return {uid: view.value for uid, view in store.objects("all").items()}

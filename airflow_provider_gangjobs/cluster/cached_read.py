"""Answers of a cluster that are used for a while, so that many callers cost the cluster one request.

One caller reads at a time, and the callers that wait take its answer. A read that raises leaves no answer, and the next
caller reads again. A read that is of use only if the cluster answers soon has an answer for the other case, such as
`None` for unknown. This answer is kept like any other, also if the caller is cancelled, so that a slow cluster is not
asked again by each caller.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.loop_local import loop_local

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from airflow_provider_gangjobs.cluster.client import Client

__all__ = ["EXPIRY_S", "UNKNOWN_EXPIRY_S", "Answer", "CachedReads", "cached_read"]

EXPIRY_S: Final = 600.0
"""How long a capability of a cluster is used. An upgrade of the cluster is noticed after this time. Until then, a
request for a removed version fails."""
UNKNOWN_EXPIRY_S: Final = 30.0
"""How long it counts that a capability is unknown."""

T = TypeVar("T")


class Answer(NamedTuple, Generic[T]):
    """What was read, and for how many seconds it is used."""

    value: T
    lasts_s: float


class _Entry:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.lock = asyncio.Lock()
        self.monotonic = monotonic
        self.value: Any = None
        self.expires_at = float("-inf")
        self.users = 0

    @property
    def has_expired(self) -> bool:
        return self.monotonic() >= self.expires_at

    def keep(self, answer: Answer[Any]) -> None:
        self.value, self.expires_at = answer.value, self.monotonic() + answer.lasts_s


class CachedReads:
    """The answers that one event loop has, by key. An answer that has expired is removed."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def get(
        self,
        key: Hashable,
        read: Callable[[], Awaitable[Answer[T]]],
        monotonic: Callable[[], float],
        *,
        accepts: Callable[[T], bool] = lambda _: True,
        within_s: float | None = None,
        unanswered: Answer[T] | None = None,
    ) -> T:
        """Return what was read by this key, from a read of this caller or of another one.

        :param monotonic: The clock of the caller, in seconds.
        :param accepts: Whether the caller can use a value that was read before. If not, the caller reads.
        :param within_s: How long a read may take, in seconds.
        :param unanswered: The answer if the read takes longer, if it raises `ClusterError` or `ValueError`, or if it is
            cancelled. Without it, these errors are raised, and nothing is kept.
        """
        self._entries = {k: entry for k, entry in self._entries.items() if entry.users or not entry.has_expired}
        entry = self._entries.setdefault(key, _Entry(monotonic))
        entry.users += 1
        try:
            async with entry.lock:
                if entry.has_expired or not accepts(entry.value):
                    await _read(entry, read, within_s, unanswered)
                value: T = entry.value
                return value
        finally:
            entry.users -= 1


async def _read(
    entry: _Entry, read: Callable[[], Awaitable[Answer[T]]], within_s: float | None, unanswered: Answer[T] | None
) -> None:
    answer = unanswered
    try:
        with suppress(*(() if unanswered is None else (TimeoutError, ClusterError, ValueError))):
            async with asyncio.timeout(within_s):
                answer = await read()
    finally:
        if answer is not None:
            entry.keep(answer)


async def cached_read(
    client: Client,
    kind: tuple[Hashable, ...],
    read: Callable[[], Awaitable[Answer[T]]],
    *,
    accepts: Callable[[T], bool] = lambda _: True,
    within_s: float | None = None,
    unanswered: Answer[T] | None = None,
) -> T:
    """Return what was read of a cluster in the running loop. See `CachedReads.get`.

    :param kind: What is read, and its parameters.
    """
    return await loop_local(CachedReads).get(
        (client.config.key, *kind),
        read,
        client.clock.monotonic,
        accepts=accepts,
        within_s=within_s,
        unanswered=unanswered,
    )

"""How fast an informer lists, watches and gives up: every limit with its reason, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Seconds, unless the name says otherwise. The defaults suit a real API server; tests hurry."""

    page_objects: int = 500
    page_objects_max: int = 4000
    """Continue tokens expire after some five minutes: a list that takes longer is read in ever larger pages. Not in one
    piece, as client-go does: a hundred thousand pods are half a gigabyte, and no other task of the loop would survive
    that. These are 25 MB, and more would gain little: who cannot list in time could not watch from there either."""
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 30.0
    proven_s: float = 5.0
    """A watch that lived this long worked."""
    proven_news: int = 10
    """So did one that the server ended after this much that was new, however soon. An API server under load ends all
    watches that it cannot serve at once, in good order, and has room for as few as ten events in each: who waits then
    has the more to be told at once, and is ended again. A bookmark is no news, nor what was known before: a server that
    repeats itself and closes is not asked ever faster."""
    served_s: float = 1.0
    """And one that the server ended in good order after this long: under such load it also ends those that have nothing
    to tell. It is at most one request a second."""
    resume_s: tuple[float, float] = (0.02, 0.1)
    """Before the watch that follows such a one."""
    watch_s: tuple[float, float] = (240.0, 360.0)
    """How long a watch lasts, drawn anew each time, so that not all informers of a cluster reconnect at once."""
    idle_margin_s: float = 30.0
    """A watch that is silent for this much longer than it may last has lost its peer without a word."""
    failures_before_relist: int = 5
    """A version from which no watch succeeds may be one that this server has never had (restored from a backup)."""
    poll_s: tuple[float, float] = (8.0, 12.0)
    """Between two lists where `watch` is refused: one list for all gangs, at the pace at which others poll each job."""
    watch_again_after_s: float = 300.0
    """A refusal to watch is tested again after this long: somebody may have granted it."""

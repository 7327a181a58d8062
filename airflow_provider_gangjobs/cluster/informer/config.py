"""Intervals, timeouts, and limits of an informer, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InformerConfig:
    """Settings of an informer, in seconds unless the name has another unit. The defaults suit a real API server."""

    page_objects: int = 500
    page_objects_max: int = 4000
    """A continue token expires after about five minutes, so the informer reads a list that takes longer in larger and
    larger pages. The informer does not read the whole list in one response, as client-go does: 100,000 pods are half a
    gigabyte, which would block all other tasks of the loop. A page of this size is 25 MB. A larger page would help
    little: a client that cannot list in time cannot watch from that version either."""
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 30.0
    healthy_after_s: float = 5.0
    """A watch that lived this long worked and resets the backoff."""
    healthy_after_changes: int = 10
    """A watch that the server ended after this many changes also worked, however short it was. An overloaded API server
    ends, without an error, all watches that it cannot serve at once, and it buffers as few as ten events for each
    watch. Backing off would only let more events accumulate, and the server would end the next watch too. Bookmarks
    and known versions do not count as changes, so a server that repeats itself and closes does not speed up retries."""
    served_after_s: float = 1.0
    """A watch that the server ended without an error after this time also worked: an overloaded server also ends
    watches that have no events. This allows at most one request a second."""
    resume_delay_s: tuple[float, float] = (0.02, 0.1)
    """Range of the delay before the watch that follows such a short watch."""
    watch_timeout_s: tuple[float, float] = (240.0, 360.0)
    """Range of the duration of a watch. Each watch draws its own, so that the informers of a cluster do not reconnect
    at the same time."""
    idle_margin_s: float = 30.0
    """A watch that is idle for this much longer than its duration has lost its peer."""
    failures_before_relist: int = 5
    """If no watch succeeds from a version, the server may never have had this version (restored from a backup)."""
    poll_interval_s: tuple[float, float] = (8.0, 12.0)
    """Range of the interval between two lists if the server refuses `watch`. One list serves all gangs, at an interval
    at which other operators poll each Job."""
    watch_retry_after_s: float = 300.0
    """If the server refuses `watch`, the informer tries again after this time, in case the permission was granted."""

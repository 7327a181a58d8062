"""How fast an informer lists, watches and gives up: every limit with its reason, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Seconds, unless the name says otherwise. The defaults suit a real API server; tests hurry."""

    page_objects: int = 500
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 30.0
    retry_after_max_s: float = 300.0
    """A server that asks for more patience than this is asked again anyway: gangs wait for the answer."""
    proven_s: float = 5.0
    """A watch that lived this long worked. A shorter one counts as a failure, whatever it delivered."""
    watch_s: tuple[float, float] = (240.0, 360.0)
    """How long a watch lasts, drawn anew each time, so that not all informers of a cluster reconnect at once."""
    silence_margin_s: float = 30.0
    """A watch that is silent for this much longer than it may last has lost its peer without a word."""
    failures_before_relist: int = 5
    """A version from which no watch succeeds may be one that this server has never had (restored from a backup)."""
    expiries_before_whole_list: int = 2
    """A list whose continue tokens expire faster than it can be paged is read in one piece, as client-go does."""
    poll_s: tuple[float, float] = (8.0, 12.0)
    """Between two lists where `watch` is refused: one list for all gangs, at the pace at which others poll each job."""
    watch_again_after_s: float = 300.0
    """A refusal to watch is tested again after this long: somebody may have granted it."""

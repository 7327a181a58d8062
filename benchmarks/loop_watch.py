"""How long callbacks block an event loop: the CPU time of each callback, and the lag of a timer.

The CPU time of a callback does not depend on other processes; the lag of a timer does. Garbage collections are measured
separately, because they visit all objects that Airflow has loaded, whichever callback triggers them.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from dataclasses import dataclass, field
from typing import Any

TICK_S = 0.05
SAMPLE_S = 0.005
"""Callbacks that are shorter than this are timed by the wall clock, because a CPU clock takes long to read. Figures are
exact to this many seconds."""


@dataclass
class LoopWatch:
    """Measures the event loop from `install` on. `take` returns the figures and starts a new measurement."""

    longest_ms: float = 0.0
    longest: str = ""
    """The callback that took longest."""
    longest_gc_ms: float = 0.0
    lags_ms: list[float] = field(default_factory=list)
    _gc_began: float = 0.0
    _gc_ms: float = 0.0
    _sampled_at: float = 0.0
    _sampled_cpu: float = 0.0

    def install(self) -> None:
        """Time every callback of this thread's loop from now on. This costs about a microsecond for each callback."""
        here = threading.get_ident()
        run = asyncio.Handle._run  # noqa: SLF001 - there is no other way to see a callback's time
        watch = self

        def timed(handle: asyncio.Handle) -> Any:
            if threading.get_ident() != here:
                return run(handle)
            watch._gc_ms = 0.0
            began = time.perf_counter()
            if began - watch._sampled_at >= SAMPLE_S:
                watch._sampled_at, watch._sampled_cpu = began, time.thread_time()
            try:
                return run(handle)
            finally:
                took_s = time.perf_counter() - began
                if took_s >= SAMPLE_S:
                    took_s = min(took_s, time.thread_time() - watch._sampled_cpu)
                took_ms = took_s * 1000 - watch._gc_ms
                if took_ms > watch.longest_ms:
                    watch.longest_ms, watch.longest = took_ms, str(handle)[:300]

        asyncio.Handle._run = timed  # type: ignore[method-assign]  # noqa: SLF001
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began = time.thread_time()
            return
        took_ms = (time.thread_time() - self._gc_began) * 1000
        self._gc_ms += took_ms
        self.longest_gc_ms = max(self.longest_gc_ms, took_ms)

    async def tick(self) -> None:
        """Measure by how much a timer is late, until cancelled. Run this method in a task."""
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.lags_ms.append((time.perf_counter() - due) * 1000)

    def take(self) -> dict[str, Any]:
        """Return the figures since the last call, in milliseconds, and reset them."""
        lags, self.lags_ms = sorted(self.lags_ms) or [0.0], []
        figures = {
            "longest_callback_ms": round(self.longest_ms, 1),
            "longest_callback": self.longest,
            "longest_gc_ms": round(self.longest_gc_ms, 1),
            "lag_p99_ms": round(lags[int(len(lags) * 0.99)], 1),
            "lag_max_ms": round(lags[-1], 1),
        }
        self.longest_ms, self.longest, self.longest_gc_ms = 0.0, "", 0.0
        return figures

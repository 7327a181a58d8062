"""How long callbacks block an event loop: the CPU time of each callback, and the lag of a timer.

CPU time of one callback is the loop's own doing; the lag also has what other processes took of the cores.
Collections of garbage are kept apart: they walk everything that Airflow has loaded, whoever triggers them.
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
"""CPU clocks are slow to read, so shorter callbacks are timed by the wall clock; figures are exact to this."""


@dataclass
class LoopWatch:
    """Measures from `install` on; `take` gives the figures and begins anew."""

    longest_ms: float = 0.0
    longest_of: str = ""
    longest_gc_ms: float = 0.0
    lags_ms: list[float] = field(default_factory=list)
    _gc_began: float = 0.0
    _gc_ms: float = 0.0
    _sampled_at: float = 0.0
    _sampled_cpu: float = 0.0

    def install(self) -> None:
        """Time every callback of this thread's loop from now on. Costs about a microsecond for each."""
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
                    watch.longest_ms, watch.longest_of = took_ms, _name(handle)

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
        """To be run as a task: notes by how much a timer is late."""
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.lags_ms.append((time.perf_counter() - due) * 1000)

    def take(self) -> dict[str, Any]:
        """The figures since the last call."""
        lags, self.lags_ms = sorted(self.lags_ms) or [0.0], []
        figures = {
            "longest_callback_ms": round(self.longest_ms, 1),
            "longest_callback": self.longest_of,
            "longest_gc_ms": round(self.longest_gc_ms, 1),
            "lag_p99_ms": round(lags[int(len(lags) * 0.99)], 1),
            "lag_max_ms": round(lags[-1], 1),
        }
        self.longest_ms, self.longest_of, self.longest_gc_ms = 0.0, "", 0.0
        return figures


def _name(handle: asyncio.Handle) -> str:
    task = getattr(getattr(handle, "_callback", None), "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"{task.get_name()}: {getattr(task.get_coro(), '__qualname__', '')}"
    return getattr(getattr(handle, "_callback", None), "__qualname__", "")

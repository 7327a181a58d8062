"""The output of the demo: a live display on a terminal, else one line for each change."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gangjobs_sandbox.cli.summary import COLORS, Snapshot, job_phase, pod_phase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

LINE_S = 1.0
"""Without a terminal, the view prints the last line of rank 0 at most once in this time."""
FINAL_PHASES = {"succeeded", "failed"}
STATE_COLORS = {"success": "green", "running": "green", "deferred": "cyan", "failed": "red"}


class View:
    """A context manager that shows the live display while the context is active."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._started = time.monotonic()
        self._states: dict[str, str] = {}
        self._phases: list[tuple[str, float]] = []
        self._last_line = "-"
        self._last_line_printed_at = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show a step of the preparation, and print how long the step took."""
        started = time.monotonic()
        if self._live:
            self._live.update(Text(f"{what} ...", style="yellow"))
        yield
        self._print(f"{what}: {time.monotonic() - started:.1f} s")

    def show(self, tasks: list[dict[str, Any]], cluster: Snapshot, last_line: str | None) -> None:
        """Show the current state of the DAG run and its gang."""
        for task in tasks:
            self._print_change(f"task {task['task_id']}", task["state"] or "waiting")
        for job in cluster.jobs[-1:]:
            phase = job_phase(job)
            if not self._phases or self._phases[-1][0] != phase:
                self._phases.append((phase, time.monotonic()))
            self._print_change(f"gang {job['metadata']['name']}", phase)
        pods = Counter(pod_phase(pod) for pod in cluster.pods)
        if pods:
            self._print_change("pods", ", ".join(f"{count} {phase}" for phase, count in sorted(pods.items())))
        self._last_line = last_line or self._last_line
        if self._live:
            self._live.update(self._render(tasks, pods))
        elif last_line and time.monotonic() - self._last_line_printed_at >= LINE_S:
            self._last_line_printed_at = time.monotonic()
            self._print_change("rank 0", last_line)

    def _print_change(self, name: str, state: str) -> None:
        """Print a changed state. On a terminal the live display shows the state instead."""
        if self._states.get(name) != state:
            self._states[name] = state
            if not self._live:
                self._print(f"{name}: {state}")

    def _print(self, text: str) -> None:
        self._console.print(f"[bright_black]{time.monotonic() - self._started:5.1f} s[/]  {text}")

    def _render(self, tasks: list[dict[str, Any]], pods: Counter[str]) -> Group:
        table = Table.grid(padding=(0, 2))
        for task in tasks:
            state = task["state"] or "waiting"
            table.add_row(f"task {task['task_id']}", Text(state, style=STATE_COLORS.get(state, "yellow")))
        if self._phases:
            table.add_row("gang", self._timeline())
        if pods:
            phases = (f"[{COLORS.get(phase, 'yellow')}]{count} {phase}[/]" for phase, count in sorted(pods.items()))
            table.add_row("pods", ", ".join(phases))
        table.add_row("rank 0", Text(self._last_line, overflow="ellipsis", no_wrap=True))
        return Group(Text(f"{time.monotonic() - self._started:5.1f} s"), table)

    def _timeline(self) -> str:
        """Return the gang's phases with their durations. A final phase has no duration."""
        ends = [start for _, start in self._phases[1:]] + [time.monotonic()]
        spans = []
        for (phase, start), end in zip(self._phases, ends, strict=True):
            duration = "" if phase in FINAL_PHASES else f" {end - start:.1f} s"
            spans.append(f"[{COLORS.get(phase, 'yellow')}]{phase}[/]{duration}")
        return " > ".join(spans)

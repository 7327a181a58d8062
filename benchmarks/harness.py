"""The parts that all benchmarks share: the description of the machine, tables, JSON, medians, and progress.

CPU seconds and ratios are reliable. Wall time is reliable only on an idle machine: `yardstick_ms` shows how busy the
machine is, and compared runs are interleaved.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import subprocess
import sys
import time
import timeit
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
MANY = 1000
"""Progress is printed for at least this many objects."""

_BEGAN = time.monotonic()


def log_progress(text: str) -> None:
    """Print progress on standard error, with the seconds since the benchmark began."""
    print(f"{time.monotonic() - _BEGAN:5.0f} s  {text}", file=sys.stderr, flush=True)


def with_progress(count: int, what: str) -> Iterator[int]:
    """Yield the numbers from 0. If there are many, print the progress after each tenth."""
    for number in range(count):
        if count >= MANY and number % (count // 10) == 0:
            log_progress(f"{what}: {number:,} of {count:,}")
        yield number


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def arguments(
    doc: str | None,
    *,
    choices: Mapping[str, Sequence[str]] = {},
    switches: Mapping[str, str] = {},
    **numbers: tuple[int, int],
) -> argparse.Namespace:
    """Parse the command line: --quick, --out, and one option for each number, list of names, and switch.

    :param numbers: For each option the number in a normal run, and in a quick run.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller run, of a minute or less")
    parser.add_argument("--out", type=Path, help="write the JSON here instead of to standard output")
    for name, (normal, quick) in numbers.items():
        parser.add_argument(f"--{name}", type=int, help=f"normally {normal}, with --quick {quick}")
    for name, allowed in choices.items():
        parser.add_argument(f"--{name}", nargs="+", choices=allowed, default=list(allowed))
    for name, meaning in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    options = parser.parse_args()
    for name, defaults in numbers.items():
        if getattr(options, name) is None:
            setattr(options, name, defaults[options.quick])
    return options


@dataclass
class Rounds:
    """The runs of contenders, which are measured in turns, so that they share what else the machine does."""

    runs: list[dict[str, dict[str, float]]] = field(default_factory=list)
    """For each round, the figures of a run by its contender."""

    def measure(self, rounds: int, contenders: Sequence[str], run: Callable[[str], dict[str, float]]) -> None:
        """Run each contender once in each round. Each round begins with another one."""
        for number in range(rounds):
            self.runs.append({})
            first = number % len(contenders)
            for who in (*contenders[first:], *contenders[:first]):
                log_progress(f"round {number + 1} of {rounds}: {who}")
                figures = self.runs[-1][who] = run(who)
                print(json.dumps({name: round(value, 3) for name, value in figures.items()}), file=sys.stderr)

    def of(self, who: str) -> list[dict[str, float]]:
        """Return the figures of the runs of a contender."""
        return [runs[who] for runs in self.runs if who in runs]

    def medians(self, who: str) -> dict[str, float]:
        """Return the medians of the figures of a contender. Not every run has all figures."""
        found = self.of(who)
        names = dict.fromkeys(name for run in found for name in run)
        return {name: round(median(run[name] for run in found if name in run), 3) for name in names}

    def ratio(self, who: str, figure: str, other: str) -> float | None:
        """Return the median of the ratios of two runs within a round; `None` if no round has both."""
        pairs = (runs for runs in self.runs if who in runs and other in runs)
        ratios = [runs[who][figure] / runs[other][figure] for runs in pairs]
        return round(median(ratios), 3) if ratios else None

    def goal(self, who: str, figure: str, other: str, at_most: float) -> list[str]:
        """Return a note that says whether a figure is at most so many times that of another contender, if known."""
        ratio = self.ratio(who, figure, other)
        if ratio is None:
            return []
        verdict = "met" if ratio <= at_most else "missed"
        return [f"Goal: {figure} of {who} <= {at_most:.2f} times {other}: {verdict}, {ratio:.2f}"]


def machine() -> dict[str, Any]:
    """Describe the machine on which the benchmark runs."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu_model(),
        "load_1m": round(os.getloadavg()[0], 1),
        "yardstick_ms": round(yardstick_ms(), 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def yardstick_ms() -> float:
    """Return the CPU time of a fixed computation, the best of five runs. A long time means that the cores are busy."""
    fixed = "sum(number * number for number in range(300_000))"
    return 1000 * min(timeit.repeat(fixed, timer=time.process_time, repeat=5, number=1))


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


@dataclass
class Report:
    """Rows of figures, printed as a table and as JSON."""

    benchmark: str
    limit: str
    """What bounds the figures from below, and how the bound was measured."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        """Add a row. `who` is its name, and the other arguments are its figures."""
        self.rows.append(row)

    def publish(self, out: Path | None) -> None:
        """Print the table on standard error, and write the JSON to `out` or to standard output."""
        console = Console(stderr=True)
        table = Table("", *(str(row.get("who", "")) for row in self.rows), title=self.benchmark)
        for name in dict.fromkeys(name for row in self.rows for name in row if name != "who"):
            table.add_row(name.replace("_", " "), *(_shown(row.get(name)) for row in self.rows))
        console.print(table)
        for note in [f"Limit: {self.limit}", *self.notes]:
            console.print(note)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps({"at": at, "machine": machine(), **asdict(self)}, indent=2)
        if out is None:
            print(text)
        else:
            out.write_text(text + "\n")


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
    return str(value)


def rss_mb(*, collect: bool = False) -> float:
    """Return the resident memory of this process, in MiB. With `collect`, collect garbage first."""
    if collect:
        gc.collect()
    return float(psutil.Process().memory_info().rss / 2**20)


def print_json(**line: Any) -> None:
    """Print a line of JSON, which `line_of` reads."""
    print(json.dumps(line), flush=True)


@dataclass(frozen=True)
class Done:
    """A process that has ended."""

    output: str
    wall_s: float
    cpu_s: float

    def json(self) -> dict[str, Any]:
        """Return the last line of JSON that the process has printed."""
        read: dict[str, Any] = json.loads(next(x for x in reversed(self.output.splitlines()) if x.startswith("{")))
        return read


def run_python(*arguments: object, environment: Mapping[str, str] = {}, fails: bool = False) -> Done:
    """Run Python with these arguments in a process of its own, until the process ends.

    :param fails: The process may end with an error.

    Raises:
        CalledProcessError: the process ended with an error.
    """
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    own = with_bytecode(os.environ | environment)
    command = [sys.executable, *map(str, arguments)]
    ran = subprocess.run(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True, check=not fails)
    wall_s, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Done(ran.stdout, wall_s, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime)


@contextmanager
def process(module: str, *arguments: object, environment: Mapping[str, str] = {}) -> Iterator[subprocess.Popen[str]]:
    """Run a module in a process of its own during the block, which begins after the first line of JSON.

    Raises:
        RuntimeError: the process ended before that.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    own = with_bytecode(os.environ | environment)
    with subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True) as started:
        try:
            line_of(started)
            yield started
        finally:
            started.kill()


def line_of(started: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next line of JSON that a process prints. Other lines, such as logs, are passed on.

    Raises:
        RuntimeError: The process has ended.
    """
    for line in started.stdout or ():
        if line.startswith("{"):
            read: dict[str, Any] = json.loads(line)
            return read
        print("  process under test:", line.rstrip(), file=sys.stderr)
    raise RuntimeError("the process under test has ended without a result, or ran into its time limit")


def with_bytecode(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which modules are compiled once, into a folder outside the sources."""
    folder = Path.home() / ".cache" / "gangjobs" / "bytecode"
    kept = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder)}

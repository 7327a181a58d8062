"""The tiers of the tests, beyond the one that `make test` runs, and a table of their results.

    python -m tests.tiers all          every test of the repository
    python -m tests.tiers ci           what continuous integration adds to `make test`
    python -m tests.tiers postgres ui  the tiers of these names
    python -m tests.tiers lane-3.1-3.11    the lane of this Airflow and this Python (tests/lanes.py)

Each tier is a process of pytest. Most tests wait, so as many tiers run at a time as two cores can take (`Tier.load`).
The output of a tier goes to a file in a temporary folder, and the end of that file is printed if the tier fails. The
exit status is 0 if all tiers pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from tests.lanes import LANES, OLDEST, Lane

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

REPOSITORY = Path(__file__).resolve().parent.parent
LOAD_LIMIT = 200
"""The sum of the loads of the tiers that run at the same time: two cores."""
SHOWN_LINES = 200
"""Lines of a failed tier's output that are printed."""

CONTROL_PLANES = "tests.cluster.controlplane.build"
OLDER_CONTROL_PLANES = f"{CONTROL_PLANES} 1.33 1.34 1.35"
KUEUE = "tests.queues.kueue.build"
SCHEDULERS = "tests.queues.schedulers.build"
JOB_SETS = "tests.queues.jobset.build"
POSTGRES = "tests.airflow.postgres.programs"
BROWSER = "tests.airflow.ui.browser"
KUBELETS = "tests.kubelet.build"
LAUNCHERS = "tests.launchers.programs"
PROMTOOL = "tests.promtool"


GO_PROGRAMS = {"GOGC": "400", "GOMEMLIMIT": "512MiB"}
"""Control planes and schedulers collect garbage less often, as long as they need little memory."""
REPEATABLE = "--hypothesis-profile=repeatable"
"""Properties try the same examples in each run."""


def _spread(workers: int, distribution: str) -> tuple[str, ...]:
    """Options of pytest-xdist."""
    return ("-n", str(workers), "--dist", distribution)


@dataclass(frozen=True)
class Tier:
    """Tests that run together.

    Attributes:
        name: what the command line and the table call the tier.
        arguments: the arguments of pytest.
        environment: variables that are set in addition.
        requires: programs that build or install what the tests need: a module and its arguments.
        python: the interpreter that runs the tests.
        load: how busy the tier keeps the cores, in per cent of one core: its CPU minutes by its minutes.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    python: Path = Path(sys.executable)
    load: int = 100


def _kubelet(name: str, target: str) -> Tier:
    """Return the tier of one kubelet. Each worker of pytest-xdist has a control plane and a node."""
    arguments = ("tests/kubelet", REPEATABLE, *_spread(2, "load"))
    return Tier(name, arguments, {"GANGJOBS_KUBELET": target}, requires=(CONTROL_PLANES, KUBELETS, LAUNCHERS), load=60)


def _on_sandbox(name: str, marks: str) -> Tier:
    """Return the tier of the tests with these marks that need no control plane and no Airflow."""
    others = (f"--ignore=tests/{folder}" for folder in ("cluster", "launchers", "queues"))
    return Tier(name, ("tests", *others, "-m", marks, REPEATABLE, *_spread(4, "worksteal")), requires=(PROMTOOL,))


def _lane(lane: Lane, *tests: str) -> Tier:
    """Return the tier of a lane, which runs these tests, and the demo.

    Tests that compare the provider with the libraries of requirements.lock are left out.
    """
    of_newest = (
        "test_docs.py",
        "test_kubeconfig.py::test_provider_and_official_client_agree",
        "test_kubeconfig.py::test_result_that_no_official_client_has",
        "test_kubeconfig.py::test_any_combination_of_fields_means_the_same",
        "test_provider_info.py::test_info_has_only_keys_that_airflow_reads",
        "test_refused_fields.py::test_known_fields_are_those_of_the_official_client",
    )
    demo = "tests/airflow/test_demo.py::test_model_is_trained_by_a_gang"
    return Tier(
        lane.name,
        (
            *tests,
            demo,
            *(f"--deselect=tests/unit/{name}" for name in of_newest),
            "-m",
            "not slow",
            "--hypothesis-profile=quick",
            *_spread(4, "worksteal"),
        ),
        requires=(f"tests.lanes {lane.airflow} {lane.python}",),
        python=lane.interpreter,
    )


def _whole_lane(lane: Lane) -> Tier:
    return _lane(lane, "tests/unit", "tests/provider", "tests/plugins")


# The tier that works longest begins first, beside tiers that wait, because its tests are those that need the processors
# most. The loads are those of a run on two cores.
ALL = (
    Tier(
        "queues",
        ("tests/queues", REPEATABLE, *_spread(4, "loadgroup")),
        requires=(CONTROL_PLANES, OLDER_CONTROL_PLANES, KUEUE, SCHEDULERS, JOB_SETS),
        load=120,
    ),
    Tier("postgres", ("tests/airflow/postgres",), requires=(POSTGRES,), load=45),
    _kubelet("kubelet", "real-1.37"),
    _on_sandbox("sandbox", "not airflow"),
    Tier(
        "cluster",
        ("tests/cluster", REPEATABLE, *_spread(4, "loadgroup")),
        requires=(CONTROL_PLANES, OLDER_CONTROL_PLANES),
        load=100,
    ),
    Tier(
        "airflow",
        (
            "tests/airflow",
            *(f"--ignore=tests/airflow/{other}" for other in ("postgres", "soak", "ui")),
            *_spread(2, "loadfile"),
        ),
        requires=(POSTGRES,),
        load=60,
    ),
    Tier("soak", ("tests/airflow/soak",), requires=(CONTROL_PLANES, POSTGRES), load=45),
    Tier("ui", ("tests/airflow/ui", *_spread(2, "loadfile")), requires=(BROWSER,), load=55),
    Tier(
        "conformance",
        ("tests/conformance", REPEATABLE, *_spread(3, "loadgroup")),
        {"GANGJOBS_CONFORMANCE": "real"},
        requires=(CONTROL_PLANES,),
        load=100,
    ),
    Tier("launchers", ("tests/launchers", *_spread(2, "loadfile")), requires=(LAUNCHERS,), load=60),
    *map(_whole_lane, LANES),
)

CI = (
    _on_sandbox("slow-variants", "slow and not airflow"),
    Tier(
        "conformance-1.37",
        ("tests/conformance", REPEATABLE, *_spread(2, "worksteal")),
        {"GANGJOBS_CONFORMANCE": "real-1.37"},
        requires=(CONTROL_PLANES,),
    ),
    Tier("postgres-kill", ("tests/airflow/postgres", "-m", "representative"), requires=(POSTGRES,)),
    Tier("ui-tab", ("tests/airflow/ui", "-m", "representative"), requires=(BROWSER,)),
    Tier("dialects", ("tests/cluster", "-m", "representative"), requires=(CONTROL_PLANES,)),
    _whole_lane(OLDEST),
)

KUBELET_TIERS = (_kubelet("kubelet", "real-1.37"), _kubelet("kubelet-1.36", "real-1.36"))

GROUPS = {"all": ALL, "ci": CI, "kubelets": KUBELET_TIERS, "lanes": tuple(map(_whole_lane, LANES))}


@dataclass(frozen=True)
class Result:
    """How a tier ended.

    Attributes:
        passed, failed, skipped: numbers of tests; an error in a fixture is a failure.
        wall_s: seconds from its start to its end.
        cpu_s: seconds of CPU time of all its processes.
        status: the exit status of pytest.
    """

    tier: Tier
    passed: int
    failed: int
    skipped: int
    wall_s: float
    cpu_s: float
    status: int


def run(tier: Tier, folder: Path) -> Result:
    """Run one tier; its output and its report are in `folder` afterwards."""
    report, output = folder / f"{tier.name}.xml", folder / f"{tier.name}.log"
    command = (
        *(str(tier.python), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *(f"--junitxml={report}", *tier.arguments),
    )
    storage = {"HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}
    environment = {**os.environ, **storage, **GO_PROGRAMS, **tier.environment}
    begun = time.monotonic()
    with output.open("wb") as stream:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=stream, stderr=stream)
        _, encoded, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(encoded)
    result = Result(
        tier, *_counts(report), time.monotonic() - begun, usage.ru_utime + usage.ru_stime, process.returncode
    )
    _announce(result, output)
    return result


def _counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit report; none if pytest wrote no report."""
    if not report.exists():
        return 0, 0, 0
    suites = ElementTree.parse(report).getroot().findall("testsuite")
    total, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return total - failed - skipped, failed, skipped


def run_all(tiers: Sequence[Tier], folder: Path) -> list[Result]:
    """Run the tiers, several at a time, and return their results in the order of the tiers."""
    waiting = list(tiers)
    running: dict[Future[Result], Tier] = {}
    results: list[Result] = []
    with ThreadPoolExecutor(len(tiers)) as pool:
        while waiting or running:
            for tier in startable(waiting, running.values()):
                waiting.remove(tier)
                running[pool.submit(run, tier, folder)] = tier
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                del running[ended]
                results.append(ended.result())
    return sorted(results, key=lambda result: tiers.index(result.tier))


def startable(waiting: Iterable[Tier], running: Collection[Tier]) -> list[Tier]:
    """Return the tiers that start beside those that run: each tier for which enough is left of `LOAD_LIMIT`.

    A tier starts in any case if no other tier runs.
    """
    started: list[Tier] = []
    for tier in waiting:
        load = sum(other.load for other in (*running, *started))
        if load == 0 or load + tier.load <= LOAD_LIMIT:
            started.append(tier)
    return started


def _announce(result: Result, output: Path) -> None:
    """Print that a tier has ended, and the end of its output if it failed."""
    if result.status != 0:
        with output.open(errors="replace") as lines:
            end = "".join(deque(lines, SHOWN_LINES))
        print(f"--- {result.tier.name} failed (exit status {result.status}); all of its output: {output}\n{end}")
    ending = "passed" if result.status == 0 else "FAILED"
    print(f"{result.tier.name}: {ending} after {result.wall_s / 60:.1f} min", flush=True)


def table(results: Sequence[Result], wall_s: float) -> str:
    """The results as a table of Markdown."""
    rows = [("tier", "passed", "failed", "skipped", "minutes", "CPU minutes")]
    rows += [_row(one.tier.name, [one], one.wall_s) for one in results]
    rows.append(_row("all of these", results, wall_s))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows)


def _row(name: str, results: Sequence[Result], wall_s: float) -> tuple[str, ...]:
    passed, failed, skipped = (sum(getattr(one, it) for one in results) for it in ("passed", "failed", "skipped"))
    cpu_s = sum(one.cpu_s for one in results)
    return (name, str(passed), str(failed), str(skipped), f"{wall_s / 60:.1f}", f"{cpu_s / 60:.1f}")


def selected(names: Sequence[str]) -> list[Tier]:
    """The tiers of groups and of single names.

    Raises:
        SystemExit: there is no such tier.
    """
    by_name = {tier.name: (tier,) for group in reversed(GROUPS.values()) for tier in group} | GROUPS
    by_name |= {name: (_whole_lane(Lane.named(name)),) for name in names if name.startswith("lane-")}
    for name in names:
        if name not in by_name:
            raise SystemExit(f"there is no tier {name}; known: {', '.join(by_name)}")
    return [tier for name in names for tier in by_name[name]]


def prepare(tiers: Sequence[Tier]) -> None:
    """Build or install what the tiers need.

    Raises:
        SystemExit: something cannot be built or installed.
    """
    for requirement in dict.fromkeys(module for tier in tiers for module in tier.requires):
        status = subprocess.run([sys.executable, "-m", *requirement.split()], cwd=REPOSITORY, check=False).returncode
        if status:
            raise SystemExit(status)


def main(names: Sequence[str]) -> int:
    tiers = selected(names or ["all"])
    prepare(tiers)
    folder = Path(tempfile.mkdtemp(prefix="gangjobs-tests-"))
    begun = time.monotonic()
    results = run_all(tiers, folder)
    print(table(results, time.monotonic() - begun))
    return int(any(result.status for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

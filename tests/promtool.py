"""Prometheus' own reader of queries and alert rules. `python -m tests.promtool` checks that it is installed.

As root on Debian or Ubuntu, the command installs a missing one. The module uses only the standard library, so that any
Python can run it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from tests.airflow.debian import install

PROGRAM = "promtool"
MISSING = "no promtool on PATH (Debian, Ubuntu: apt-get install prometheus)"


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


def run(*arguments: str) -> str:
    """Run it, and return what it printed. A failure is an assertion that fails with its messages."""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main() -> int:
    if not is_installed():
        install("promtool", "prometheus")
    print(f"{PROGRAM}: {shutil.which(PROGRAM)}" if is_installed() else f"{MISSING}: the tests of alerts are skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())

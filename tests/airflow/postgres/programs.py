"""Find PostgreSQL's server programs. `python -m tests.airflow.postgres.programs` installs them if they are missing.

Any release that Airflow supports is used: from the folder `GANGJOBS_POSTGRES`, from PATH, or from where Debian, Fedora
and Homebrew install PostgreSQL. The command can install it as root on Debian or Ubuntu. The module uses only the
standard library, so that any Python can run it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.airflow.debian import install

RELEASES = range(14, 19)
"""The releases that the documentation of Airflow 3.3 names."""
PATTERNS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
)
ADVICE = """Airflow's tests with PostgreSQL need its server programs, {releases}, and found none. Install them:
  Debian, Ubuntu:  sudo apt-get install postgresql   (the service need not run)
  macOS:           brew install postgresql@17
or name the folder of initdb and postgres: GANGJOBS_POSTGRES=/path/to/bin make test-airflow"""


def find() -> Path | None:
    """Return the folder of `initdb` and `postgres` of the newest supported release, or None."""
    found = {folder: release_in(folder) for folder in candidates()}
    usable = {folder: release for folder, release in found.items() if release in RELEASES}
    return max(usable, key=lambda folder: usable[folder] or 0, default=None)


def candidates() -> list[Path]:
    if named := os.environ.get("GANGJOBS_POSTGRES"):
        return [Path(named)]
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    return folders + [folder for pattern in PATTERNS for folder in Path("/").glob(pattern)]


def release_in(folder: Path) -> int | None:
    """Return the major release of the server in a folder, or None if the folder has no server that runs."""
    if not (folder / "initdb").exists():
        return None
    try:
        output = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    number = re.search(r"\d+", output)
    return int(number.group()) if number else None


def main() -> int:
    if find() is None:
        install("PostgreSQL", "postgresql")
    if found := find():
        print(f"PostgreSQL {release_in(found)} in {found}")
        return 0
    print(ADVICE.format(releases=f"{RELEASES[0]} to {RELEASES[-1]}"), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

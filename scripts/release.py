"""Check and build a release of both distributions, and try what was built. Nothing is uploaded.

    make release VERSION=0.1.0

1. The version and the top entry of CHANGELOG.md are the same, and so is the tag, if there is one, of this commit. The
   version has golden files, so that each later release is tested with gangs that this release has left in flight.
2. The sdists and the wheels of both distributions are built into dist/. Each wheel is built from its unpacked sdist.
3. The wheels are installed into new environments: the provider beside Airflow, and the sandbox alone.
4. The first commands of the README run in a new environment, which gets both distributions from dist/.
5. The quick tests run from the unpacked sdist of the provider.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
DIST = PROJECT / "dist"
PACKAGES = {"airflow_provider_gangjobs": PROJECT, "gangjobs_sandbox": PROJECT / "gangjobs_sandbox"}
"""Where each distribution is built, by the name of its package, which is also how its files are named."""
VERSION_LINE = re.compile(r'^__version__ = "([^"]+)"$', flags=re.MULTILINE)
ENTRY = re.compile(r"^## \[([^\]]+)\]", flags=re.MULTILINE)
GOLDEN_FILES = "tests/provider/upgrade"
QUICK_TESTS = ("tests/unit", "tests/provider/test_operator_run.py")


class ReleaseError(Exception):
    """The release cannot be made. The message says what to do."""


def main(version: str) -> None:
    try:
        check(PROJECT, version)
        with tempfile.TemporaryDirectory(prefix="release-") as folder:
            sources = build(Path(folder))
            try_provider(Path(folder))
            try_sandbox(Path(folder))
            try_first_commands(Path(folder))
            run_tests(Path(folder), sources)
    except ReleaseError as error:
        sys.exit(f"release: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"release: failed with exit code {error.returncode}: {' '.join(map(str, error.cmd))}")
    files = "\n".join(f"  {path.relative_to(PROJECT)}" for path in sorted(DIST.iterdir()))
    print(f"{version} can be uploaded:\n{files}")
    if not git(PROJECT, "tag", "--list", f"v{version}"):
        print(f"Before that: git tag v{version}")


# -- the version -----------------------------------------------------------------------------------------------------


def check(project: Path, version: str) -> None:
    """Check that all places name this version, and that nothing has changed since the commit, which has any tag of it.

    Raises:
        ReleaseError: one of them does not.
    """
    for package in PACKAGES:
        (found,) = VERSION_LINE.findall((project / package / "__init__.py").read_text())
        if found != version:
            raise ReleaseError(f"{package}/__init__.py has the version {found}, not {version}")
    entry = ENTRY.search((project / "CHANGELOG.md").read_text())
    if entry is None or entry[1] != version:
        raise ReleaseError(f"the top entry of CHANGELOG.md is [{entry and entry[1]}], not [{version}]")
    if not any((project / GOLDEN_FILES / version).glob("*.json")):
        raise ReleaseError(f"{GOLDEN_FILES}/{version} is missing: python -m tests.provider.upgrade.write {version}")
    if changed := git(project, "status", "--porcelain"):
        raise ReleaseError(f"there are changes that are not committed:\n{changed}")
    tag = f"v{version}"
    if tag in git(project, "tag").split() and tag not in git(project, "tag", "--points-at", "HEAD").split():
        raise ReleaseError(f"the tag {tag} is on another commit: git checkout {tag}")


def git(project: Path, *arguments: str) -> str:
    """Return what a command of git prints."""
    return subprocess.run(["git", *arguments], cwd=project, check=True, capture_output=True, text=True).stdout.strip()


# -- the files -------------------------------------------------------------------------------------------------------


def build(folder: Path) -> dict[str, Path]:
    """Build all distributions into `DIST`, and return where their sdists are unpacked, by package.

    The same commit gives the same files: all times in them are the time of the commit.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    os.environ["SOURCE_DATE_EPOCH"] = git(PROJECT, "log", "-1", "--format=%ct")
    sources = {}
    for package, project in PACKAGES.items():
        say(f"build {package}")
        run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", DIST, cwd=project)
        (sdist,) = DIST.glob(f"{package}-*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "sdists", filter="data")
        sources[package] = folder / "sdists" / sdist.name.removesuffix(".tar.gz")
        run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", DIST, cwd=sources[package])
    return sources


def wheel(package: str) -> Path:
    (found,) = DIST.glob(f"{package}-*.whl")
    return found


# -- what was built --------------------------------------------------------------------------------------------------


def try_provider(folder: Path) -> None:
    """Install the provider from its wheel, beside the Airflow of requirements.lock, and let Airflow list it."""
    say("install the provider")
    python = environment(folder / "provider")
    install(python, "--constraint", constraints(folder), wheel("airflow_provider_gangjobs"))
    run(python.with_name("gangjobs"), "--help", quiet=True)
    variables = os.environ | {"AIRFLOW_HOME": str(folder / "airflow")}
    listed = subprocess.run(
        [python.with_name("airflow"), "providers", "list"], env=variables, check=True, capture_output=True, text=True
    ).stdout
    if "airflow-provider-gangjobs" not in listed:
        raise ReleaseError("Airflow does not list the provider")


def try_sandbox(folder: Path) -> None:
    """Install the sandbox from its wheel alone, and start a cluster with its command."""
    say("install the sandbox")
    python = environment(folder / "sandbox")
    install(python, "--constraint", constraints(folder), "--find-links", DIST, wheel("gangjobs_sandbox"))
    own = python.with_name("gangjobs-sandbox")
    command = [own] if own.exists() else [python.with_name("gangjobs"), "sandbox"]
    run(*command, "run", "--", "true", quiet=True)


def first_commands(readme: str) -> tuple[str, str, str]:
    """Return what the README begins with: the path of a file, its text, and the commands that run it."""
    section = readme.split("## Get started")[1].split("\n## ")[0]
    (name,) = re.findall(r"Save this as `([\w/]+\.py)`", section)
    (text,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    return name, text, commands


def try_first_commands(folder: Path) -> None:
    """Run the first commands of the README as they stand, in a folder with a new virtual environment."""
    say("run the first commands of the README")
    name, text, commands = first_commands((PROJECT / "README.md").read_text())
    place = folder / "first"
    (place / name).parent.mkdir(parents=True)
    (place / name).write_text(text)
    run(sys.executable, "-m", "venv", place / "env")
    variables = os.environ | {
        "PATH": os.pathsep.join((str(place / "env" / "bin"), os.environ["PATH"])),
        "HOME": str(place),
        "AIRFLOW_HOME": str(place / "airflow"),
        "PIP_FIND_LINKS": str(DIST),
        "PIP_CONSTRAINT": str(constraints(folder)),
        "PIP_QUIET": "1",
    }
    done = subprocess.run(
        ["bash", "-euc", commands],
        cwd=place,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode or "succeeded: 4 ranks succeeded" not in done.stdout:
        raise ReleaseError(f"the first commands of the README have failed:\n{done.stdout}")


def run_tests(folder: Path, sources: dict[str, Path]) -> None:
    """Run the quick tests in the unpacked sdist of the provider, which has the sandbox too."""
    say("run the quick tests from the sdist")
    project = sources["airflow_provider_gangjobs"]
    python = environment(folder / "tests")
    run(uv(), "pip", "sync", "--quiet", "--python", python, "--require-hashes", project / "requirements.lock")
    install(python, "--no-deps", "--editable", project, "--editable", project / "gangjobs_sandbox")
    options = ("-q", "-n", "2", "--dist", "worksteal", "-m", "not slow and not airflow", "--hypothesis-profile=quick")
    os.environ["PATH"] = os.pathsep.join((str(Path(uv()).parent), os.environ["PATH"]))  # some tests install with uv
    run(python, "-m", "pytest", *options, *QUICK_TESTS, cwd=project)


def environment(folder: Path) -> Path:
    """Create an empty environment, and return its interpreter."""
    run(uv(), "venv", "--quiet", "--python", sys.executable, folder)
    return folder / "bin" / "python"


def install(python: Path, *arguments: object) -> None:
    run(uv(), "pip", "install", "--quiet", "--python", python, *arguments)


def constraints(folder: Path) -> Path:
    """Return a file with the versions of requirements.lock, without hashes, which would be asked of the wheels too."""
    path = folder / "constraints.txt"
    lines = (PROJECT / "requirements.lock").read_text().splitlines()
    path.write_text("\n".join(line.removesuffix(" \\") for line in lines if "==" in line and not line.startswith(" ")))
    return path


def uv() -> str:
    return shutil.which("uv") or str(PROJECT / ".tools" / "bin" / "uv")


def run(*command: object, cwd: Path | None = None, quiet: bool = False) -> None:
    subprocess.run(list(map(str, command)), cwd=cwd, check=True, stdout=subprocess.DEVNULL if quiet else None)


def say(what: str) -> None:
    print(f"release: {what}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""Wheels of the two distributions, and environments with one of them and nothing of the source tree."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REPOSITORY = Path(__file__).parents[1]
PROVIDER = REPOSITORY
SANDBOX = REPOSITORY / "gangjobs_sandbox"
OWN = {"airflow-provider-gangjobs", "gangjobs-sandbox"}


def built_wheel(project: Path, folder: Path) -> Path:
    """Build the wheel of a project into a folder."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=project, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def requirements_of(wheel: Path) -> dict[str, Requirement]:
    """The requirements in the metadata of a wheel, by name."""
    with ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = HeaderParser().parsestr(archive.read(path).decode()).get_all("Requires-Dist")
    return {requirement.name: requirement for requirement in map(Requirement, lines or ())}


def environment_with(wheel: Path, folder: Path) -> Path:
    """Create an environment with a wheel and what it requires, and return the folder of its programs.

    The tests load no packages from an index, so the required distributions, and no other ones, are those of the
    environment of the tests.
    """
    venv.create(folder)
    programs = folder / "bin"
    uv = shutil.which("uv") or str(REPOSITORY / ".tools" / "bin" / "uv")
    install = [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(programs / "python")]
    subprocess.run([*install, str(wheel)], check=True)
    link_requirements([wheel], folder)
    return programs


def link_requirements(wheels: Iterable[Path], folder: Path) -> None:
    """Link what the wheels require, but these distributions themselves, from the environment of the tests.

    The programs of Python distributions, such as `airflow`, are made anew.

    :param folder: A virtual environment.
    """
    (packages,) = (folder / "lib").glob("python*/site-packages")
    requirements = [each for wheel in wheels for each in requirements_of(wheel).values() if each.name not in OWN]
    for distribution in _required(requirements):
        _link_files(distribution, packages)
        for entry in distribution.entry_points.select(group="console_scripts"):
            program = folder / "bin" / entry.name
            if not program.exists():
                text = f"#!{folder / 'bin' / 'python'}\nimport sys\nfrom {entry.module} import {entry.attr}\n"
                program.write_text(f"{text}sys.exit({entry.attr}())\n")
                program.chmod(0o755)


def _required(requirements: Iterable[Requirement]) -> Iterator[metadata.Distribution]:
    """Yield the distributions that meet the requirements, and those that they require themselves."""
    waiting = [(requirement, "") for requirement in requirements]
    asked: set[tuple[str, str]] = set()
    found: set[str] = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        distribution = metadata.distribution(requirement.name)
        assert requirement.specifier.contains(distribution.version, prereleases=True), requirement
        name = canonicalize_name(requirement.name)
        if name not in found:
            found.add(name)
            yield distribution
        for wanted in {"", *requirement.extras}:
            if (name, wanted) not in asked:
                asked.add((name, wanted))
                waiting += [(Requirement(line), wanted) for line in distribution.requires or ()]


def _link_files(distribution: metadata.Distribution, packages: Path) -> None:
    """Link each file, and what Python has compiled of it, so that nothing is compiled anew."""
    for file in distribution.files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        source, link = str(distribution.locate_file(file)), str(packages / file)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(source, link)
        if link.endswith(".py") and os.path.exists(compiled := importlib.util.cache_from_source(source)):
            compiled_link = importlib.util.cache_from_source(link)
            os.makedirs(os.path.dirname(compiled_link), exist_ok=True)
            os.symlink(compiled, compiled_link)

"""`make release` refuses a version that one of its places does not name."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from scripts.release import GOLDEN_FILES, PACKAGES, ReleaseError, check

if TYPE_CHECKING:
    from pathlib import Path


def git(project: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose only commit can be released as 1.2.3."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2026-11-30\n\n## [1.2.2] - 2026-10-01\n")
    (tmp_path / GOLDEN_FILES / "1.2.3").mkdir(parents=True)
    (tmp_path / GOLDEN_FILES / "1.2.3" / "train.json").write_text("{}")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(project: Path) -> None:
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "A commit")
    git(project, "tag", "--force", "v1.2.3")


def test_version_that_all_places_name_is_accepted(project: Path) -> None:
    check(project, "1.2.3")


@pytest.mark.parametrize("package", PACKAGES)
def test_other_version_of_a_package_is_refused(project: Path, package: str) -> None:
    (project / package / "__init__.py").write_text('__version__ = "1.2.2"\n')
    commit(project)
    with pytest.raises(ReleaseError, match=rf"{package}/__init__.py has the version 1\.2\.2, not 1\.2\.3"):
        check(project, "1.2.3")


@pytest.mark.parametrize("heading", ["## [Unreleased]", "## [1.2.2] - 2026-10-01", ""])
def test_other_top_entry_of_the_changelog_is_refused(project: Path, heading: str) -> None:
    (project / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
    commit(project)
    with pytest.raises(ReleaseError, match=r"the top entry of CHANGELOG\.md is"):
        check(project, "1.2.3")


def test_version_without_golden_files_is_refused(project: Path) -> None:
    (project / GOLDEN_FILES / "1.2.3" / "train.json").unlink()
    commit(project)
    with pytest.raises(ReleaseError, match=r"python -m tests\.provider\.upgrade\.write 1\.2\.3"):
        check(project, "1.2.3")


def test_other_commit_than_the_tagged_one_is_refused(project: Path) -> None:
    git(project, "commit", "--quiet", "--allow-empty", "--message", "One more")
    with pytest.raises(ReleaseError, match=r"the tag v1\.2\.3 is on another commit"):
        check(project, "1.2.3")


def test_release_can_be_tried_before_its_tag(project: Path) -> None:
    git(project, "tag", "--delete", "v1.2.3")
    check(project, "1.2.3")


def test_changes_that_are_not_committed_are_refused(project: Path) -> None:
    (project / "new").write_text("")
    with pytest.raises(ReleaseError, match="not committed"):
        check(project, "1.2.3")

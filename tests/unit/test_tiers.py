"""The table at the end of `make test-all`, by runs of pytest on small files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.tiers import GROUPS, Result, Tier, run, selected, table

if TYPE_CHECKING:
    from pathlib import Path

MIXED = """
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("no reason")
def test_errs(missing_fixture): pass
"""


def tier_of(folder: Path, text: str) -> Tier:
    (folder / "test_it.py").write_text(text)
    return Tier("it", (str(folder / "test_it.py"), f"--rootdir={folder}"))


def test_failed_tier_is_counted_and_its_output_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tier_of(tmp_path, MIXED), tmp_path)

    assert (result.passed, result.failed, result.skipped, result.status) == (1, 2, 1, 1)
    assert "assert 1 == 2" in capsys.readouterr().out


def test_selection_that_is_empty_is_a_failure(tmp_path: Path) -> None:
    result = run(tier_of(tmp_path, ""), tmp_path)

    assert (result.passed, result.failed, result.status) == (0, 0, pytest.ExitCode.NO_TESTS_COLLECTED)


def test_table_adds_the_counts_up() -> None:
    results = [Result(Tier("a", ()), 10, 0, 1, 60.0, 30.0, 0), Result(Tier("longer", ()), 5, 2, 0, 90.0, 6.0, 1)]

    assert table(results, wall_s=120.0) == (
        "| tier         | passed | failed | skipped | minutes | CPU minutes |\n"
        "| ------------ | ------ | ------ | ------- | ------- | ----------- |\n"
        "| a            | 10     | 0      | 1       | 1.0     | 0.5         |\n"
        "| longer       | 5      | 2      | 0       | 1.5     | 0.1         |\n"
        "| all of these | 15     | 2      | 1       | 2.0     | 0.6         |"
    )


def test_group_and_names_select_tiers() -> None:
    assert selected(["all"]) == list(GROUPS["all"])
    assert [tier.name for tier in selected(["ui", "dialects"])] == ["ui", "dialects"]


def test_unknown_tier_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match="no tier nonsense; known: sandbox, "):
        selected(["nonsense"])

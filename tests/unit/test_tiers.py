"""The table at the end of `make test-all`, by runs of pytest on small files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.tiers import GROUPS, Result, Tier, run, run_all, selected, startable, table

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


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [
        pytest.param((100, 100, 100), (), [100, 100], id="two of one core"),
        pytest.param((120, 90, 60), (70,), [120], id="until the limit"),
        pytest.param((120, 60, 50), (80, 70), [50], id="the first that the limit allows"),
        pytest.param((100,), (110,), [], id="none"),
        pytest.param((300, 10), (), [300], id="alone"),
    ],
)
def test_tiers_start_while_the_cores_can_take_them(
    waiting: tuple[int, ...], running: tuple[int, ...], expected: list[int]
) -> None:
    tiers = [Tier("waits", (), load=load) for load in waiting]
    others = [Tier("runs", (), load=load) for load in running]

    assert [tier.load for tier in startable(tiers, others)] == expected


def test_all_tiers_run_and_their_results_are_in_order(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass")
    names = ("first", "second")
    tiers = [Tier(name, (str(tmp_path / "test_it.py"), f"--rootdir={tmp_path}")) for name in names]

    assert [(result.tier.name, result.passed) for result in run_all(tiers, tmp_path)] == [(name, 1) for name in names]


def test_group_and_names_select_tiers() -> None:
    assert selected(["all"]) == list(GROUPS["all"])
    assert [tier.name for tier in selected(["ui", "dialects"])] == ["ui", "dialects"]


def test_unknown_tier_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match=r"no tier nonsense; known: .*sandbox, "):
        selected(["nonsense"])

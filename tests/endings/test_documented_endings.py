"""docs/clusters.md has a table of all scenarios. With `GANGJOBS_WRITE_DOCS=1` the test writes the table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.endings.scenarios import SCENARIOS, Scenario

if TYPE_CHECKING:
    from tests.endings.scenarios import Endings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"
HEAD = "| what happens | outcomes of rank 0 | outcomes of rank 1 | the gang |\n|---|---|---|---|\n"


def documented() -> str:
    return HEAD + "".join(_row(name, scenario) for name, scenario in SCENARIOS.items())


def _row(name: str, scenario: Scenario) -> str:
    ranks = f"{_words(scenario.rank_0)} | {_words(scenario.rank_1)}"
    return f"| {name} | {ranks} | {scenario.status.value}: `{scenario.code}` |\n"


def _words(endings: Endings) -> str:
    return ", then ".join(ending.value for ending in endings)


def test_endings_are_documented() -> None:
    before, _, rest = PAGE.read_text().partition(HEAD)
    assert rest, f"{PAGE} has no table of endings"
    if os.environ.get("GANGJOBS_WRITE_DOCS"):
        _, end, after = rest.partition("\n\n")
        PAGE.write_text(before + documented() + "\n" + after if end else before + documented())
    assert documented() in PAGE.read_text()

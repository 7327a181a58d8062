"""docs/samples/endings.csv has all scenarios. With `GANGJOBS_WRITE_DOCS=1` the test writes the file."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.endings.scenarios import SCENARIOS, Scenario

if TYPE_CHECKING:
    from tests.endings.scenarios import Endings

FILE = Path(__file__).resolve().parents[2] / "docs" / "samples" / "endings.csv"
HEAD = ("what happens", "outcomes of rank 0", "outcomes of rank 1", "the gang")


def documented() -> str:
    text = io.StringIO()
    rows = (_row(name, scenario) for name, scenario in SCENARIOS.items())
    csv.writer(text, lineterminator="\n").writerows([HEAD, *rows])
    return text.getvalue()


def _row(name: str, scenario: Scenario) -> tuple[str, ...]:
    return name, _words(scenario.rank_0), _words(scenario.rank_1), f"{scenario.status.value}: `{scenario.code}`"


def _words(endings: Endings) -> str:
    return ", then ".join(ending.value for ending in endings)


def test_endings_are_documented() -> None:
    if os.environ.get("GANGJOBS_WRITE_DOCS"):
        FILE.write_text(documented())
    assert FILE.read_text() == documented()

"""The commands of the tutorial print what the tutorial says."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from tests.airflow.airflow_home import AirflowHome

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
COMMANDS = re.findall(r"^gangjobs sandbox run -- (airflow .*)$", PAGE, flags=re.MULTILINE)
PRINTED = [
    ["4 workers, gang scheduling by Workload API", "succeeded: 4 ranks succeeded", "Returned value was: 3.1407"],
    ["AppFailed: Gang", "Rank 2 exited with code 1 on node-", "ValueError: the darts of this rank are gone"],
    [
        "Unschedulable: Gang",
        "none placed. Can never fit on the present nodes: each rank requests 64 CPU, and the largest of 2 nodes has 4",
    ],
]

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.mark.parametrize(("command", "printed"), list(zip(COMMANDS, PRINTED, strict=True)))
def test_command_prints_what_the_tutorial_says(connected: AirflowHome, command: str, printed: list[str]) -> None:
    examples = {"AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags_examples")}
    home = replace(connected, environment=connected.environment | examples)
    output = home.run_forked(*shlex.split(command), exit_codes=(0, 1))
    assert [words for words in printed if words not in output] == []
    page = " ".join(PAGE.split())
    assert [words for words in printed if words not in page] == []

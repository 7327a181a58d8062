"""The first example of the README runs as it stands."""

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

README = (Path(__file__).parents[2] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
FILE, COMMAND = re.findall(r"Save this as `(\w+\.py)`.*?`gangjobs sandbox run -- (.*?)`", README, flags=re.DOTALL)[0]

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


def test_first_example_runs(connected: AirflowHome, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(EXAMPLES[0])
    home = replace(connected, environment=connected.environment | {"AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path)})
    output = home.run_forked(*shlex.split(COMMAND))
    assert "succeeded: 4 ranks succeeded" in output
    assert "Returned value was: 3.1407" in output

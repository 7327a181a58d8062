"""The first commands of the README, word by word, in a new environment with nothing of ours but the built wheels.

The tests load no packages from an index. So the environment has what the wheels require, linked from the environment of
the tests, and pip finds the two wheels in a folder.
"""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.release import first_commands
from tests.timeouts import AIRFLOW_TIMEOUT_S
from tests.wheels import PROVIDER, SANDBOX, built_wheel, link_requirements

if TYPE_CHECKING:
    from collections.abc import Callable

FILE, EXAMPLE, COMMANDS = first_commands((Path(__file__).parents[2] / "README.md").read_text())

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Run commands in a folder with nothing but a new virtual environment, which is active."""
    folder, wheels = tmp_path_factory.mktemp("new"), tmp_path_factory.mktemp("wheels")
    built = [built_wheel(project, wheels / project.name) for project in (PROVIDER, SANDBOX)]
    venv.create(folder / "env", with_pip=True)
    link_requirements(built, folder / "env")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "PIP"))}
    environment = inherited | {
        "PATH": os.pathsep.join([str(folder / "env" / "bin"), os.environ["PATH"]]),
        "VIRTUAL_ENV": str(folder / "env"),
        "HOME": str(folder),
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": str(AIRFLOW_TIMEOUT_S),  # a busy machine is slow
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": " ".join(str(wheel.parent) for wheel in built),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

    def run(commands: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * AIRFLOW_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


def test_first_commands_run_in_a_new_environment(shell: Callable[[str], str]) -> None:
    assert len(COMMANDS.splitlines()) <= 4
    shell(f"mkdir -p {Path(FILE).parent}; cat > {FILE} << 'END'\n{EXAMPLE}END")
    output = shell(COMMANDS)

    assert "Successfully installed airflow-provider-gangjobs" in output
    assert "succeeded: 4 ranks succeeded" in output
    assert "Returned value was: 3.1407" in output

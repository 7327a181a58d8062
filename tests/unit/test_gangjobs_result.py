"""The helper that writes large results, run as on a rank: in a process whose Python does not have this provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_gangjobs.container_programs import gangjobs_result
from airflow_provider_gangjobs.hooks.results import is_stored, read_result
from tests.timeouts import TIMEOUT_S

LARGE = "x" * 5000
HELPER = Path(gangjobs_result.__file__)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "GANG_RESULT_PATH": str(tmp_path / "result"),
        "GANG_RESULT_STORAGE": f"file://{tmp_path}/results",
        "GANG_ATTEMPT": "2",
        "JOB_COMPLETION_INDEX": "7",
    }


def pipe(content: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Pipe a result into the program with the standard library only."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(HELPER)],
        input=content,
        env=environ,
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
        check=False,
    )


def written(environ: dict[str, str]) -> Any:
    return json.loads(Path(environ["GANG_RESULT_PATH"]).read_text())


def read(environ: dict[str, str]) -> Any:
    return read_result(written(environ), storage=environ["GANG_RESULT_STORAGE"])


def test_small_result_is_written_as_it_is(environ: dict[str, str]) -> None:
    gangjobs_result.write_result({"rows": 3}, environ)
    assert written(environ) == {"rows": 3}


@pytest.mark.parametrize("size", [4095, 4096], ids=["largest small one", "smallest large one"])
def test_result_above_the_limit_of_the_kubelet_is_stored(environ: dict[str, str], size: int) -> None:
    value = "x" * (size - 2)
    gangjobs_result.write_result(value, environ)
    assert is_stored(written(environ)) == (size > 4095)
    assert read(environ) == value


def test_object_is_named_by_attempt_and_rank(environ: dict[str, str], tmp_path: Path) -> None:
    gangjobs_result.write_result(LARGE, environ)
    path = tmp_path / "results" / "attempt-2" / "rank-00007.json"
    assert written(environ) == {"gang_result": f"file://{path}", "bytes": 5002}
    assert list(path.parent.iterdir()) == [path]


def test_each_installation_of_airflow_has_objects_of_its_own(environ: dict[str, str], tmp_path: Path) -> None:
    for installation in ("prod", "staging"):
        gangjobs_result.write_result(LARGE, {**environ, "GANG_INSTALLATION": installation})
    found = [str(path.relative_to(tmp_path / "results")) for path in (tmp_path / "results").rglob("*.json")]
    assert sorted(found) == [
        "installation-prod/attempt-2/rank-00007.json",
        "installation-staging/attempt-2/rank-00007.json",
    ]


def test_program_writes_what_is_piped_into_it(environ: dict[str, str]) -> None:
    assert pipe(json.dumps([LARGE]), environ).returncode == 0
    assert read(environ) == [LARGE]


@pytest.mark.parametrize("text", [LARGE, LARGE + "\r\nend\r\n"], ids=["one line", "line ends of Windows"])
def test_text_that_is_not_json_stays_text(environ: dict[str, str], text: str) -> None:
    assert pipe(text, environ).returncode == 0
    assert read(environ) == text


def test_object_that_is_not_the_one_that_the_rank_wrote_is_no_result(environ: dict[str, str]) -> None:
    gangjobs_result.write_result(LARGE, environ)
    path = written(environ)["gang_result"].removeprefix("file://")
    os.truncate(path, 4000)
    with pytest.raises(ValueError, match=r"rank-00007.json has 4000 bytes, and its rank wrote 5002"):
        read(environ)


REFUSED = {
    "no storage": ("", "set result_storage of the task"),
    "protocol that needs a library": ("s3://aws_default@bucket/results", "Install fsspec and its library"),
    "file in the place of the folder": ("file:///dev/null/results", "Not a directory"),
}


@pytest.mark.parametrize(("folder", "reason"), REFUSED.values(), ids=REFUSED)
def test_storage_that_cannot_be_written_is_an_error_that_says_why(
    environ: dict[str, str], folder: str, reason: str
) -> None:
    done = pipe(LARGE, {**environ, "GANG_RESULT_STORAGE": folder})
    assert (done.returncode, reason in done.stderr) == (1, True), done.stderr


def test_other_protocols_are_written_by_fsspec_without_the_id_of_the_connection(environ: dict[str, str]) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    environ["GANG_RESULT_STORAGE"] = "memory://an_id@results/d/run"
    gangjobs_result.write_result([LARGE], environ)
    assert written(environ)["gang_result"] == "memory://an_id@results/d/run/attempt-2/rank-00007.json"
    assert json.loads(MemoryFileSystem().cat("/results/d/run/attempt-2/rank-00007.json")) == [LARGE]


@pytest.mark.parametrize("folder", ["file:///dev/null/results", "nosuch://bucket"])
def test_check_finds_a_storage_that_cannot_be_written(environ: dict[str, str], folder: str) -> None:
    with pytest.raises((OSError, gangjobs_result.StorageError)):
        gangjobs_result.check_storage({**environ, "GANG_RESULT_STORAGE": folder})
    gangjobs_result.check_storage(environ)

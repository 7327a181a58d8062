"""`make up` runs Airflow with a cluster in the background and can be repeated, and `make down` removes both."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.airflow.test_demo import mentioning, wait_until
from tests.timeouts import AIRFLOW_TIMEOUT_S, TIMEOUT_S

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(2 * AIRFLOW_TIMEOUT_S)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("up") / "airflow"
    yield home
    up("stop", home)


def up(action, home):
    argv = [sys.executable, "-m", "scripts.up", action, "--home", str(home)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=AIRFLOW_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def url_in(output):
    return next(word for word in output.split() if word.startswith("http://127.0.0.1:"))


def test_ui_answers_without_a_password_and_knows_the_examples(home):
    url = url_in(up("start", home))
    with urllib.request.urlopen(f"{url}/auth/token", timeout=TIMEOUT_S) as answer:
        token = json.load(answer)["access_token"]
    request = urllib.request.Request(f"{url}/api/v2/dags", headers={"Authorization": f"Bearer {token}"})
    deadline = time.monotonic() + AIRFLOW_TIMEOUT_S
    dags = set()
    while "train_digits_gang" not in dags:
        assert time.monotonic() < deadline
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            dags = {dag["dag_id"] for dag in json.load(answer)["dags"]}
        time.sleep(0.2)


def test_second_make_up_finds_the_first(home):
    first = json.loads((home / "up.json").read_text())
    assert up("start", home).startswith(f"already up: {first['url']}")


def test_make_down_leaves_nothing_and_can_be_repeated(home):
    assert up("stop", home) == "stopped\n"
    wait_until(lambda: not mentioning(home), "the end of all processes")
    assert up("stop", home) == "not running\n"


def test_make_up_starts_again_after_it_was_killed(home):
    up("start", home)
    os.kill(json.loads((home / "up.json").read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: not mentioning(home), "the end of all processes")
    assert up("stop", home) == "not running\n"

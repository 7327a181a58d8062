"""`make up` runs Airflow with a cluster in the background and can be repeated, and `make down` removes both."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.thread import running
from scripts.kubernetes_reader import Cluster
from scripts.up import describe_live_gangs
from tests.airflow.test_demo import mentioning
from tests.timeouts import AIRFLOW_TIMEOUT_S, TIMEOUT_S, poll

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


def create_job(kubeconfig, name, *, gang=None, suspend=False, command=("sleep", "600")):
    """Create the Job of a gang. Each role of a gang has a Job."""
    template = {
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i", "command": list(command)}]}
    }
    metadata = {"name": name, "labels": {"gangjobs.airflow/gang": gang or name}}
    job = {"metadata": metadata, "spec": {"suspend": suspend, "template": template}}
    with closing(Cluster(kubeconfig)) as cluster:
        cluster._client.post("/apis/batch/v1/namespaces/default/jobs", json=job).raise_for_status()


def test_gangs_that_have_not_ended_are_counted_once_each(tmp_path):
    with running(SandboxConfig(nodes=1, data_dir=tmp_path / "sandbox")) as sandbox:
        assert describe_live_gangs(tmp_path) == "no gang was running"
        create_job(sandbox.kubeconfig_path, "done", command=["true"])
        create_job(sandbox.kubeconfig_path, "roles-0")
        create_job(sandbox.kubeconfig_path, "roles-0-worker", gang="roles-0")
        create_job(sandbox.kubeconfig_path, "waits-0", suspend=True)
        with closing(Cluster(sandbox.kubeconfig_path)) as cluster:
            poll(lambda: len(cluster.live_gangs()) == 2, "the end of the first gang", AIRFLOW_TIMEOUT_S)
        expected = "2 running gangs ended with the cluster: default/roles-0, default/waits-0"
        assert describe_live_gangs(tmp_path) == expected
    assert describe_live_gangs(tmp_path).startswith("it is not known whether gangs ended with the cluster")


def test_ui_answers_without_a_password_and_knows_the_examples(home):
    output = up("start", home)
    url = url_in(output)
    assert f"own DAGs: put the files into {ROOT / 'dags_examples'};" in output
    assert f"plugins:  put the files into {home / 'plugins'};" in output
    assert (home / "plugins").is_dir()
    assert f"next:     open {url}/dags/tutorial_gang" in output
    with urllib.request.urlopen(f"{url}/auth/token", timeout=TIMEOUT_S) as answer:
        token = json.load(answer)["access_token"]
    request = urllib.request.Request(f"{url}/api/v2/dags", headers={"Authorization": f"Bearer {token}"})
    deadline = time.monotonic() + AIRFLOW_TIMEOUT_S
    dags = {}
    while not {"train_digits_gang", "tutorial_gang", "backfill_days_gang"} <= dags.keys():
        assert time.monotonic() < deadline
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            dags = {dag["dag_id"]: dag for dag in json.load(answer)["dags"]}
        time.sleep(0.2)
    assert [name for name, dag in dags.items() if dag["is_paused"]] == ["backfill_days_gang"]


def test_second_make_up_finds_the_first(home):
    first = json.loads((home / "up.json").read_text())
    assert up("start", home).startswith(f"already up: {first['url']}")


def test_make_down_names_the_running_gangs_and_leaves_nothing_and_can_be_repeated(home):
    create_job(home / "sandbox" / "kubeconfig", "train-0")
    assert up("stop", home) == "stopped; 1 running gang ended with the cluster: default/train-0\n"
    poll(lambda: not mentioning(home), "the end of all processes", AIRFLOW_TIMEOUT_S)
    assert up("stop", home) == "not running\n"


def test_make_up_starts_again_after_it_was_killed(home):
    log = (home / "up.log").read_bytes()
    assert "up.previous.log" in up("start", home)
    assert (home / "up.previous.log").read_bytes() == log
    os.kill(json.loads((home / "up.json").read_text())["pid"], signal.SIGKILL)
    poll(lambda: not mentioning(home), "the end of all processes", AIRFLOW_TIMEOUT_S)
    assert up("stop", home) == "not running\n"

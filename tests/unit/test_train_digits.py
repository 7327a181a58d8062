"""The example's training program: four processes train the model that one process trains, or none does."""

import base64
import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from scripts.ports import free_port
from tests.timeouts import TIMEOUT_S

PROGRAM = Path(__file__).parents[2] / "dags_examples" / "include" / "train_digits.py"
RANKS = 4


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Write ten noisy patterns, which are as easy as the real digits and need no scikit-learn."""
    rng = np.random.default_rng(7)
    patterns = rng.integers(0, 17, (10, 64))
    labels = rng.integers(0, 10, 501)
    pixels = np.clip(patterns[labels] + rng.integers(-4, 5, (501, 64)), 0, 16).astype(np.uint8)
    arrays = io.BytesIO()
    np.savez_compressed(
        arrays, train_pixels=pixels[:400], train_labels=labels[:400], test_pixels=pixels[400:], test_labels=labels[400:]
    )
    path = tmp_path_factory.mktemp("digits") / "digits.npz.b64"
    path.write_text(base64.b64encode(arrays.getvalue()).decode())
    return path


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def start(tmp_path, digits, port):
    """Start one rank; every process is ended with the test."""
    running = []

    def start(rank: int, world_size: int = RANKS, **options: object) -> subprocess.Popen[str]:
        env = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GANG_RESULT_PATH": str(tmp_path / f"{rank}-of-{world_size}.json"),
        }
        argv = [sys.executable, str(PROGRAM), "--data", str(digits)]
        argv += [f"--{name}={value}" for name, value in options.items()]
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def outcome(process, tmp_path, rank, world_size=RANKS):
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return json.loads((tmp_path / f"{rank}-of-{world_size}.json").read_text()), out


def test_gang_trains_the_model_of_one_process(start, tmp_path):
    alone, _ = outcome(start(0, world_size=1, epochs=5), tmp_path, 0, world_size=1)
    ranks = [start(rank, epochs=5) for rank in range(RANKS)]
    results = [outcome(process, tmp_path, rank)[0] for rank, process in enumerate(ranks)]
    assert alone["accuracy"] > 0.9
    assert {result["accuracy"] for result in results} == {alone["accuracy"]}
    assert results[0]["loss"] == pytest.approx(alone["loss"], abs=2e-4)
    assert [result["shard_samples"] for result in results] == [100, 100, 100, 100]


def test_result_of_a_long_run_fits_its_limit(start, tmp_path):
    result, out = outcome(start(0, world_size=1, epochs=999, batch=400), tmp_path, 0, world_size=1)
    assert len(json.dumps(result)) < 4096
    assert out.splitlines()[-1].startswith("epoch 999/999  loss ")


def test_lost_rank_ends_every_rank_and_is_named(start):
    ranks = [start(rank, epochs=10**6) for rank in range(RANKS)]
    assert ranks[0].stdout.readline().startswith("epoch 1/")
    ranks[2].kill()
    errors = [process.communicate(timeout=TIMEOUT_S)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [1, 1, -9, 1]
    assert all("rank 2 is lost: " in errors[rank] for rank in (0, 1, 3))


def test_connection_of_another_program_is_ignored(start, port, tmp_path):
    first = start(0, world_size=2, epochs=2)
    assert_hung_up_on(port)
    second = start(1, world_size=2, epochs=2)
    results = [outcome(process, tmp_path, rank, world_size=2)[0] for rank, process in enumerate([first, second])]
    assert results[0]["accuracy"] == results[1]["accuracy"]


def assert_hung_up_on(port):
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert stranger.recv(1) == b""
                return
        except ConnectionRefusedError:
            time.sleep(0.01)
        except ConnectionResetError:
            return

"""Two programs that choose their ports at the same time choose different ports."""

import subprocess
import sys

from scripts.ports import free_port

CHOOSE = "from scripts.ports import free_port; print(free_port({}))"


def chosen_elsewhere(preferred: int) -> int:
    argv = [sys.executable, "-c", CHOOSE.format(preferred)]
    return int(subprocess.run(argv, capture_output=True, check=True, text=True, timeout=60).stdout)


def test_preferred_port_is_chosen_while_it_is_free() -> None:
    preferred = chosen_elsewhere(0)
    assert free_port(preferred) == preferred


def test_port_is_chosen_once() -> None:
    port = free_port()
    assert free_port(port) != port


def test_port_that_a_living_process_has_chosen_is_not_chosen_by_another() -> None:
    port = free_port()
    assert chosen_elsewhere(port) != port

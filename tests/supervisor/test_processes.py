"""Real supervisors with real programs, each the first process of a PID namespace."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

import pytest

from airflow_provider_gangjobs.container_programs.gangjobs_supervisor import proof
from tests.guarantees.checkers import check, one_incarnation
from tests.supervisor.gangs import CONTAINER, SUPERVISOR, Proxy, free_port, gang
from tests.timeouts import TIMEOUT_S, poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not shutil.which(CONTAINER[0]) or subprocess.run([*CONTAINER, "true"], capture_output=True).returncode != 0,
    reason="there is no unshare, or this user may not make PID namespaces",
)
SCHEDULES = int(os.environ.get("GANG_SUPERVISOR_SCHEDULES") or 4)
"""1,000 for the thorough run."""

FAIL_ONCE = "if rank == 1 and restart == 0:\n    time.sleep(0.3)\n    sys.exit(3)\n"
WAIT = "while True:\n    time.sleep(0.1)\n"
"""A signal that arrives just before a program sleeps is handled after that sleep, so each sleep is short."""


def test_failed_program_starts_all_again(tmp_path: Path) -> None:
    program = FAIL_ONCE + "if not restart:\n    time.sleep(600)\nprint('done', rank, restart)"
    with gang(tmp_path, program) as found:
        assert found.codes() == [0, 0, 0]
        assert [rank.out for rank in found.ranks] == [f"done {rank} 1\n".encode() for rank in range(3)]
        (restart,) = found.events("restart")
        assert (restart["rank"], restart["code"], restart["number"], restart["of"]) == (1, 3, 1, 2)
        assert [event["event"] for event in found.events()] == ["restart", "restarted", "summary"]
        check(found.history())


def test_summary_tells_the_signal_and_the_step_of_a_restart(tmp_path: Path) -> None:
    program = """if rank == 1 and restart == 0:
    path = os.environ["GANG_PROGRESS_PATH"]
    with open(path + ".part", "w") as file:
        json.dump({"step": 5}, file)
    os.rename(path + ".part", path)
    os.kill(os.getpid(), 9)
"""
    with gang(tmp_path, program, size=2) as found:
        assert found.codes() == [0, 0]
        (restart,), (summary,) = found.events("restart"), found.events("summary")
        assert (restart["signal"], restart["step"]) == (9, 5)
        assert [(one["number"], one["signal"], one["step"]) for one in summary["restarts"]] == [(1, 9, 5)]


def test_failed_rank_exits_with_its_code_when_restarts_are_used_up(tmp_path: Path) -> None:
    program = "open(os.environ['GANG_RESULT_PATH'], 'w').write('{\"error\": \"no disk\"}')\n" * 1
    program += "if rank == 1:\n    sys.exit(9)\n" + WAIT
    with gang(tmp_path, program, size=2, restarts=1) as found:
        assert found.ranks[1].wait() == 9
        (last,) = poll(lambda: found.events("no_restart"))
        assert (last["reason"], last["rank"], last["error"]) == ("used_up", 1, "no disk")
        assert "all 1 restarts are used up" in last["message"] or "used up" in last["message"]
        assert json.loads(found.ranks[1].result)["error"] == "no disk"
        found.ranks[0].signal(signal.SIGTERM)
        assert found.ranks[0].wait() == 143


def test_exit_code_in_the_list_and_signal_are_those_of_the_program(tmp_path: Path) -> None:
    with gang(tmp_path, "sys.exit(17)", size=1, GANG_NO_RESTART_ON_EXIT_CODES="3,17") as found:
        assert found.codes() == [17]
        assert found.events("no_restart")[0]["reason"] == "exit_code"
    (tmp_path / "b").mkdir()
    with gang(tmp_path / "b", "os.kill(os.getpid(), 9)", size=1, restarts=0) as found:
        assert found.codes() == [137]
        assert "SIGKILL" in found.events("no_restart")[0]["message"]


def test_program_that_ignores_sigterm_and_its_daemons_are_gone_before_the_restart(tmp_path: Path) -> None:
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    program += "for _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        os.fork() or time.sleep(600)\n"
    program += "        time.sleep(600)\n" + FAIL_ONCE + "time.sleep(0 if restart else 600)"
    with gang(tmp_path, program) as found:
        assert found.codes() == [0, 0, 0]
        assert all(found.restart_of(rank, 1) for rank in range(3))
        check(found.history())


def test_output_is_passed_byte_for_byte(tmp_path: Path) -> None:
    program = "os.write(1, bytes(range(256)) * 4)\nos.close(1)\nos.write(2, b'end')\nos.close(2)\n"
    program += "for _ in range(50):\n    os.fork() or os._exit(0)\n"
    with gang(tmp_path, program, size=2) as found:
        assert found.codes() == [0, 0]
        assert [rank.out for rank in found.ranks] == [bytes(range(256)) * 4] * 2
        assert found.ranks[1].err == b"end"


def test_result_of_the_last_restart_is_kept(tmp_path: Path) -> None:
    program = "if not restart:\n    open(os.environ['GANG_RESULT_PATH'], 'w').write('old, and longer')\n"
    program += FAIL_ONCE + "if restart and rank == 0:\n    open(os.environ['GANG_RESULT_PATH'], 'w').write('5')\n"
    with gang(tmp_path, program) as found:
        assert found.codes() == [0, 0, 0]
        assert [rank.result for rank in found.ranks] == ["5", "", ""]


def test_sigterm_reaches_the_program_whose_exit_counts(tmp_path: Path) -> None:
    program = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(21))\nopen(f'{folder}/{rank}/ready', 'w')\n" + WAIT
    with gang(tmp_path, program, size=2) as found:
        for rank in found.ranks:
            poll((rank.folder / "ready").exists)
        for rank in reversed(found.ranks):
            rank.signal(signal.SIGTERM)
        assert found.codes() == [21, 21]
        assert not found.events("restart")


def test_program_that_succeeds_after_sigterm_counts_for_the_gang(tmp_path: Path) -> None:
    program = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nopen(f'{folder}/{rank}/ready', 'w')\n"
    program += "while rank or not os.path.exists(folder + '/end'):\n    time.sleep(0.02)"
    with gang(tmp_path, program, size=2) as found:
        for rank in found.ranks:
            poll((rank.folder / "ready").exists)
        time.sleep(0.5)
        found.ranks[1].signal(signal.SIGTERM)
        assert found.ranks[1].wait() == 0
        (tmp_path / "end").touch()
        assert found.ranks[0].wait() == 0
        assert [event["event"] for event in found.events()] == ["summary"], "no rank was lost"


def test_success_that_waits_for_others_is_a_success_after_sigterm(tmp_path: Path) -> None:
    program = (
        "if rank == 1:\n    sys.exit(0)\nwhile not os.path.exists(folder + '/fail'):\n    time.sleep(0.05)\nsys.exit(4)"
    )
    with gang(tmp_path, program, size=2) as found:
        poll(lambda: found.restart_of(1, 0))
        with pytest.raises(subprocess.TimeoutExpired):
            found.ranks[1].process.wait(1.0)
        found.ranks[1].signal(signal.SIGTERM)
        assert found.ranks[1].wait() == 0
        (tmp_path / "fail").touch()
        assert found.ranks[0].wait() == 4
        assert found.events("no_restart")[0]["reason"] == "terminating"


def test_hung_rank_is_restarted_and_then_fails_with_its_stacks(tmp_path: Path) -> None:
    program = """import faulthandler
path = os.environ["GANG_PROGRESS_PATH"]
faulthandler.register(signal.SIGUSR2, open(os.path.dirname(path) + "/stacks", "w"))
def stuck():
    time.sleep(600)
if rank == 1:
    with open(path + ".part", "w") as file:
        json.dump({"step": 12, "pid": os.getpid(), "stacks": True}, file)
    os.rename(path + ".part", path)
stuck()
"""
    with gang(tmp_path, program, size=2, restarts=1, GANG_PROGRESS_TIMEOUT_S="1") as found:
        assert found.ranks[1].wait() == 124
        error = json.loads(found.ranks[1].result)["error"]
        assert error == "Rank 1 has reported no progress for 1 s, since step 12"
        assert found.ranks[1].err.count(b"in stuck") == 2
        (restart,) = found.events("restart")
        assert (restart["kind"], restart["rank"], restart["step"]) == ("hung", 1, 12)


def test_rank_with_a_wrong_key_is_no_part_of_the_gang(tmp_path: Path) -> None:
    with gang(tmp_path, "sys.exit(5)", size=2, keys={1: "f" * 64}, GANG_FIRST_CONTACT_S="2") as found:
        assert found.codes() == [5, 5]
        assert found.events("no_restart")[0]["missing"] == [1]
        assert not found.restart_of(0, 1)


def test_rank_that_loses_rank_0_stops_its_program(tmp_path: Path) -> None:
    with gang(tmp_path, WAIT, size=2, GANG_LOST_CONTACT_S="3") as found:
        poll(lambda: found.restart_of(0, 0) and found.restart_of(1, 0))
        time.sleep(2)
        found.ranks[0].signal(signal.SIGKILL)
        assert found.ranks[1].wait() == 1
        assert "has not heard of rank 0" in json.loads(found.ranks[1].result)["error"]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed > 1 else ()) for seed in range(SCHEDULES)]
)
def test_one_incarnation_in_drawn_schedules(tmp_path: Path, seed: int) -> None:
    """Programs fail, leave daemons, and end slowly; supervisors and connections stop, or die, at drawn moments."""
    draw = random.Random(seed)
    program = f"""import random
draw = random.Random({seed} * 1000 + rank * 100 + restart)
if draw.random() < 0.5:
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(draw.random()), look(), os._exit(0)))
for _ in range(draw.randrange(3)):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
end = time.monotonic() + draw.random() * 2
while time.monotonic() < end:
    look()
    time.sleep(0.02)
sys.exit(1 if draw.random() < 0.4 else 0)
"""
    port = free_port()
    proxies = {rank: Proxy(port) for rank in range(1, 4)}
    ports = {0: port, **{rank: proxy.port for rank, proxy in proxies.items()}}
    limits = {"GANG_LOST_CONTACT_S": "4", "GANG_STOP_GRACE_S": "0.5", "GANG_FIRST_CONTACT_S": "20"}
    with gang(tmp_path, program, size=4, restarts=6, ports=ports, **limits) as found:
        for _ in range(draw.randrange(5)):
            time.sleep(draw.random() * 1.5)
            rank, action = draw.randrange(4), draw.choice(["stop", "stop", "cut", "cut", "kill", "term"])
            victim = found.ranks[rank]
            if victim.process.poll() is not None:
                continue
            if action == "stop":
                victim.signal(signal.SIGSTOP)
                time.sleep(draw.random() * 2)
                victim.signal(signal.SIGCONT)
            elif action == "cut":
                with proxies[rank].cut() if rank else nullcontext():
                    time.sleep(draw.choice([0.0, draw.random(), 6 * draw.random()]))
            else:
                victim.signal(signal.SIGKILL if action == "kill" else signal.SIGTERM)
        poll(lambda: is_over([rank.process.poll() for rank in found.ranks]), within_s=2 * TIMEOUT_S)
        check(found.history())
    for proxy in proxies.values():
        proxy.close()


def is_over(codes: list[int | None]) -> bool:
    """All ranks have succeeded, or one has failed, and the Job controller would delete the others."""
    return None not in codes or any(codes)


def changed_supervisor(folder: Path, line: str, changed: str) -> Path:
    """Return a copy of the supervisor with one change."""
    source = SUPERVISOR.read_text()
    assert source.count(line) == 1
    path = folder / "supervisor.py"
    path.write_text(source.replace(line, changed))
    return path


def test_rank_that_does_not_confirm_ends_the_attempt(tmp_path: Path) -> None:
    hurried = changed_supervisor(tmp_path, "CONFIRM_EXTRA_S = 30.0", "CONFIRM_EXTRA_S = 0.0")
    program = "while rank or not os.path.exists(folder + '/fail'):\n    time.sleep(0.05)\nsys.exit(5)"
    with gang(tmp_path, program, size=2, supervisor=hurried, GANG_LOST_CONTACT_S="2") as found:
        poll(lambda: found.restart_of(0, 0) and found.restart_of(1, 0))
        time.sleep(1.0)
        found.ranks[1].signal(signal.SIGSTOP)
        (tmp_path / "fail").touch()
        assert found.ranks[0].wait() == 5
        (last,) = found.events("no_restart")
        assert (last["reason"], last["missing"]) == ("not_confirmed", [1])
        assert "rank 1 has not confirmed" in json.loads(found.ranks[0].result)["error"]
        found.ranks[1].signal(signal.SIGCONT)
        assert found.ranks[1].wait() == 1
        assert not found.restart_of(0, 1)
        check(found.history())


def test_failed_rank_that_does_not_confirm_ends_the_attempt_by_rank_0(tmp_path: Path) -> None:
    hurried = changed_supervisor(tmp_path, "CONFIRM_EXTRA_S = 30.0", "CONFIRM_EXTRA_S = 0.0")
    program = """signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == 1:
    open(os.environ["GANG_PROGRESS_PATH"], "w").close()
time.sleep(600)
"""
    limits = {"GANG_LOST_CONTACT_S": "2", "GANG_STOP_GRACE_S": "3", "GANG_PROGRESS_TIMEOUT_S": "1"}
    with gang(tmp_path, program, size=2, supervisor=hurried, **limits) as found:
        poll(lambda: found.events("restart"))
        found.ranks[1].signal(signal.SIGSTOP)
        assert found.ranks[0].wait() == 1
        (last,) = found.events("no_restart")
        assert (last["rank"], last["kind"], last["missing"]) == (1, "hung", [1])
        assert "rank 1 has not confirmed" in json.loads(found.ranks[0].result)["error"]


def test_rank_that_is_connected_again_is_restarted(tmp_path: Path) -> None:
    port = free_port()
    proxy = Proxy(port)
    program = "while not os.path.exists(f'{folder}/end-{restart}'):\n    time.sleep(0.05)\n"
    program += "sys.exit(1 if rank == 0 and not restart else 0)"
    with gang(tmp_path, program, size=2, ports={0: port, 1: proxy.port}) as found:
        poll(lambda: found.restart_of(0, 0) and found.restart_of(1, 0))
        with proxy.cut():
            (tmp_path / "end-0").touch()
            poll(lambda: found.events("restart"))
            time.sleep(0.5)
            assert not found.restart_of(0, 1)
        (tmp_path / "end-1").touch()
        assert found.codes() == [0, 0]
        check(found.history())
    proxy.close()


def test_gang_ends_although_a_rank_succeeded_behind_a_lost_connection(tmp_path: Path) -> None:
    hurried = changed_supervisor(tmp_path, "CONFIRM_EXTRA_S = 30.0", "CONFIRM_EXTRA_S = 0.0")
    port = free_port()
    proxy = Proxy(port)
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    program = "while rank == 1 and not os.path.exists(folder + '/end'):\n    time.sleep(0.05)\n"
    variables = {"GANG_LOST_CONTACT_S": "2", "GANG_KEEP_CHECKPOINTS": "0", "GANG_CHECKPOINT_DIR": str(checkpoints)}
    ports = {0: port, 1: proxy.port}
    with gang(tmp_path, program, size=2, ports=ports, supervisor=hurried, **variables) as found:
        poll(lambda: found.restart_of(1, 0))
        time.sleep(1.0)
        with proxy.cut():
            (tmp_path / "end").touch()
            assert found.codes() == [0, 0]
        (last,) = found.events("no_restart")
        assert (last["reason"], last["missing"]) == ("lost_contact", [1])
        assert "Rank 1 has ended, or was not heard of" in last["message"]
    assert checkpoints.exists(), "the success of rank 1 is not known"
    proxy.close()


def test_lost_connection_leaves_no_words_in_the_log_of_rank_0(tmp_path: Path) -> None:
    port = free_port()
    proxy = Proxy(port)
    with gang(tmp_path, WAIT, size=2, ports={0: port, 1: proxy.port}, GANG_LOST_CONTACT_S="2") as found:
        poll(lambda: found.restart_of(0, 0) and found.restart_of(1, 0))
        time.sleep(1.0)
        with proxy.cut():
            assert found.ranks[1].wait() == 1
            time.sleep(2.0)
        found.ranks[0].signal(signal.SIGTERM)
        found.ranks[0].wait()
        assert [line for line in found.ranks[0].err.splitlines() if b"gangjobs-supervisor" not in line] == []
    proxy.close()


@contextmanager
def greeted(port: int, key: bytes, instance: str) -> Iterator[TextIO]:
    """Say to rank 0 that this is the supervisor of rank 1, and give what it answers."""
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rw") as lines:
        challenge = json.loads(lines.readline())["challenge"]
        signed = proof(key, "rank", 1, instance, "own", challenge)
        lines.write(json.dumps({"rank": 1, "instance": instance, "challenge": "own", "proof": signed}) + "\n")
        lines.flush()
        yield lines


def test_second_supervisor_of_a_rank_is_refused(tmp_path: Path) -> None:
    port = free_port()
    program = FAIL_ONCE + "while not os.path.exists(folder + '/end'):\n    time.sleep(0.05)"
    with gang(tmp_path, program, size=2, ports={0: port, 1: port}) as found:
        poll(lambda: found.restart_of(1, 1))
        with greeted(port, (tmp_path / "0" / "key").read_text().encode(), "another") as lines:
            assert json.loads(lines.readline())["refused"] is True
            assert lines.read() == ""
        (tmp_path / "end").touch()
        assert found.codes() == [0, 0]
        assert len(found.events("restart")) == 1


def test_rank_that_is_being_ended_leaves_its_place_to_the_next_pod(tmp_path: Path) -> None:
    """A queue suspends the gang and resumes it, and a pod still ends slowly when others have been replaced."""
    eager = changed_supervisor(tmp_path, "CONNECT_PAUSE_MAX_S = 3.0", "CONNECT_PAUSE_MAX_S = 0.2")
    port, keys = free_port(), dict.fromkeys(range(2), "k" * 32)
    proxy = Proxy(port)
    slow = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(f'{folder}/{rank}/ready', 'w')\n" + WAIT
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    ports = {0: port, 1: port}
    with gang(before, slow, size=2, ports=ports, keys=keys, supervisor=eager) as old, ExitStack() as cut:
        poll(lambda: (before / "1" / "ready").exists())
        time.sleep(1.0)
        old.ranks[1].signal(signal.SIGTERM)
        old.ranks[0].signal(signal.SIGKILL)
        old.ranks[0].wait()
        cut.enter_context(proxy.cut())
        with gang(after, "time.sleep(2)", size=2, ports={0: port, 1: proxy.port}, keys=keys) as new:
            poll(lambda: new.restart_of(0, 0))
            time.sleep(1.0)
            cut.close()
            assert new.ranks[1].wait() == 0
            assert new.ranks[0].wait() == 0
    proxy.close()


def test_rank_0_that_is_being_ended_takes_no_rank_of_the_next_pods(tmp_path: Path) -> None:
    program = (
        "signal.signal(signal.SIGTERM, lambda *_: open(folder + '/term', 'w'))\nopen(f'{folder}/{rank}/ready', 'w')\n"
    )
    port = free_port()
    with gang(tmp_path, program + WAIT, size=2, ports={0: port, 1: free_port()}) as found:
        poll(lambda: (tmp_path / "0" / "ready").exists())
        found.ranks[0].signal(signal.SIGTERM)
        poll(lambda: (tmp_path / "term").exists())
        with greeted(port, (tmp_path / "0" / "key").read_text().encode(), "next") as answers:
            assert answers.readline() == ""


@pytest.mark.parametrize(("code", "keep", "is_left"), [(0, "0", False), (0, "", True), (3, "0", True)])
def test_checkpoints_are_removed_after_a_success(tmp_path: Path, code: int, keep: str, is_left: bool) -> None:
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "step-1").mkdir(parents=True)
    variables = {"GANG_KEEP_CHECKPOINTS": keep, "GANG_CHECKPOINT_DIR": str(checkpoints)}
    program = f"sys.exit({code} if rank == 0 else 0)"
    with gang(tmp_path, program, size=2, restarts=0, GANG_FILES=str(SUPERVISOR.parent), **variables) as found:
        assert found.ranks[0].wait() == code
        assert checkpoints.exists() == is_left


def test_checkpoints_in_a_store_are_removed_by_the_library_of_the_program(tmp_path: Path) -> None:
    library = tmp_path / "library" / "fsspec" / "core.py"
    library.parent.mkdir(parents=True)
    (library.parent / "__init__.py").touch()
    library.write_text(f"""import os
class Files:
    def rm(self, path, recursive):
        os.rename(r"{tmp_path}/store", r"{tmp_path}/removed")
def url_to_fs(url):
    return Files(), url
""")
    (tmp_path / "store").touch()
    variables = {"GANG_KEEP_CHECKPOINTS": "0", "GANG_CHECKPOINT_URL": "store://bucket/folder"}
    environ = {**variables, "GANG_FILES": str(SUPERVISOR.parent), "PYTHONPATH": str(library.parent.parent)}
    with gang(tmp_path, "", size=1, **environ) as found:
        assert found.codes() == [0]
        assert (tmp_path / "removed").exists()


def test_progress_of_the_slowest_rank_is_a_line(tmp_path: Path) -> None:
    program = """path = os.environ["GANG_PROGRESS_PATH"]
with open(path + ".part", "w") as file:
    json.dump({"step": 10 + rank, "total": 40, "metrics": {"loss": 0.5 + rank}}, file)
os.rename(path + ".part", path)
while not os.path.exists(folder + "/end"):
    time.sleep(0.05)
"""
    with gang(tmp_path, program, size=2) as found:
        first = poll(lambda: found.events("progress"))[0]
        assert first["restart"] == 0
        assert first["total"] == 40
        assert "of 40" in first["message"]
        (tmp_path / "end").touch()
        assert found.codes() == [0, 0]
        (summary,) = found.events("summary")
        assert (summary["step"], summary["total"], summary["metrics"]) == (10, 40, {"loss": 0.5})


def test_large_output_is_passed_byte_for_byte(tmp_path: Path) -> None:
    program = "import random\nsys.stdout.buffer.write(random.Random(rank).randbytes(5_000_000))\n"
    with gang(tmp_path, program, size=2) as found:
        assert found.codes() == [0, 0]
        assert [rank.out for rank in found.ranks] == [random.Random(rank).randbytes(5_000_000) for rank in range(2)]


BROKEN = {
    "a rank confirms before its program is gone": (
        "self.program.stop(self._settings.grace_s)\n",
        "self._change(self._stopped('', 0)), self.program.stop(self._settings.grace_s)\n",
        "30",
    ),
    "a rank confirms before the descendants of its program are gone": ("while not self.reap():", "if False:", "0.2"),
    "the coordinator does not wait for confirmations": (
        "if not missing and not is_terminating:",
        "if not is_terminating:",
        "30",
    ),
}


@pytest.mark.parametrize(("line", "broken", "grace_s"), BROKEN.values(), ids=BROKEN)
def test_broken_supervisor_is_found(tmp_path: Path, line: str, broken: str, grace_s: str) -> None:
    path = changed_supervisor(tmp_path, line, broken)
    program = """if rank == 0 and restart == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    open(folder + "/0/ready", "w")
while rank == 1 and not os.path.exists(folder + "/0/ready"):
    time.sleep(0.02)
if rank == 0 or restart:
    time.sleep(600)
sys.exit(1)
"""
    with gang(tmp_path, program, size=2, supervisor=path, GANG_STOP_GRACE_S=grace_s) as found:
        poll(lambda: any(look.rank == 1 and look.restart == 1 for look in found.history().looks))
        assert one_incarnation(found.history())

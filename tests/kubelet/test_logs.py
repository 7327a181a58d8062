"""The logs of containers are what the programs have written."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.kubelet.pods import Follower, container

if TYPE_CHECKING:
    from tests.kubelet.nodes import NodeUnderTest
    from tests.kubelet.pods import Pods

THEN_END = "; sleep 1"
"""containerd 1.6 loses output that it has not read when a program ends, which happens if the machine is busy."""
WRITTEN: dict[str, tuple[str, bytes]] = {
    "lines": ("echo one; echo two", b"one\ntwo\n"),
    "nothing": ("true", b""),
    "empty lines": (r"printf '\n\na\n\n'", b"\n\na\n\n"),
    "no line end": ("printf end", b"end"),
    "both streams": ("echo one; sleep 0.5; echo two >&2; sleep 0.5; echo three", b"one\ntwo\nthree\n"),
    "any bytes": (r"printf 'a\000b\377\rc\n\200\n'", b"a\0b\xff\rc\n\x80\n"),
    "line ends of Windows, of which one byte is kept": (r"printf 'one\r\n\r\ntwo\r\r\n'", b"one\n\ntwo\r\n"),
    "a long line": ("head -c 1000000 /dev/zero | tr '\\0' x; echo", b"x" * 1_000_000 + b"\n"),
    "long lines after each other": (
        "for letter in a b c; do head -c 50000 /dev/zero | tr '\\0' $letter; echo; done",
        b"".join(letter * 50_000 + b"\n" for letter in (b"a", b"b", b"c")),
    ),
    "20,000 lines": ("seq 20000", b"".join(b"%d\n" % number for number in range(1, 20_001))),
}


@pytest.mark.parametrize(("script", "expected"), WRITTEN.values(), ids=WRITTEN)
def test_log_is_what_the_program_wrote(pods: Pods, script: str, expected: bytes) -> None:
    pods.run(f"{script}{THEN_END}")
    pods.wait_ended()
    assert pods.log() == expected


WRITE_100_MB = """awk 'BEGIN { line = sprintf("%0999d", 0); for (i = 0; i < 100000; i++) print line }'"""


def test_log_of_100_megabytes_is_complete(pods: Pods) -> None:
    pods.run(f"{WRITE_100_MB}{THEN_END}")
    pods.wait_ended()
    digest, size = hashlib.sha256(), 0
    for piece in pods.stream_log():
        digest.update(piece)
        size += len(piece)
    assert size == 100_000_000
    assert digest.digest() == hashlib.sha256((b"0" * 999 + b"\n") * 100_000).digest()


SELECTED: dict[str, tuple[dict[str, Any], bytes]] = {
    "the last lines": ({"tailLines": 2}, b"three\nfour\n"),
    "no line": ({"tailLines": 0}, b""),
    "the first bytes": ({"limitBytes": 6}, b"one\ntw"),
    "the first bytes of the last lines": ({"tailLines": 2, "limitBytes": 7}, b"three\nf"),
    "lines since an old time": ({"sinceTime": "2020-01-01T00:00:00Z"}, b"one\ntwo\nthree\nfour\n"),
    "lines since a future time": ({"sinceTime": "2999-01-01T00:00:00Z"}, b""),
}


@pytest.mark.parametrize(("parameters", "expected"), SELECTED.values(), ids=SELECTED)
def test_parameters_select_a_part_of_the_log(pods: Pods, parameters: dict[str, Any], expected: bytes) -> None:
    pods.run("echo one; echo two; echo three; echo four")
    pods.wait_ended()
    assert pods.log(**parameters) == expected


def test_parts_of_a_long_line_count_as_lines(pods: Pods) -> None:
    pods.run("head -c 40000 /dev/zero | tr '\\0' x; echo; echo end")
    pods.wait_ended()
    assert pods.log(tailLines=2) == b"x" * (40_000 - 2 * 16_384) + b"\nend\n"


def test_long_line_has_one_timestamp(pods: Pods) -> None:
    pods.run("head -c 40000 /dev/zero | tr '\\0' x; echo; echo end")
    pods.wait_ended()
    first, second = pods.log(timestamps="true").splitlines()
    assert first.partition(b"Z ")[2] == b"x" * 40_000
    assert second.partition(b"Z ")[2] == b"end"
    assert first[:4].isdigit()


def test_log_is_followed_while_it_grows(pods: Pods) -> None:
    pods.run("for number in 1 2 3 4 5; do echo $number; sleep 0.3; done")
    pods.wait_phase("Running")
    follower = Follower(pods)
    pods.namespace.wait_until(lambda: b"2\n" in follower.received, lambda: "the second line")
    assert b"5\n" not in follower.received
    assert follower.wait_end() == b"1\n2\n3\n4\n5\n"


def test_restarted_container_has_a_log_of_each_of_its_last_two_runs(pods: Pods) -> None:
    count = "echo run >> /v/all; echo run $(wc -l < /v/all); test $(wc -l < /v/all) = 2 && sleep 300"
    mounted = container(count, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    pods.run(mounted, restartPolicy="OnFailure", volumes=[{"name": "v", "emptyDir": {}}])
    pods.namespace.wait_until(lambda: pods.container().get("restartCount") == 1, lambda: "a restart")
    pods.wait_output(b"run 2\n")
    assert pods.log(previous="true") == b"run 1\n"
    assert pods.log() == b"run 2\n"


def test_container_that_has_not_run_before_has_no_earlier_log(pods: Pods) -> None:
    pods.run("echo one")
    pods.wait_ended()
    response = pods.read_log(previous="true")
    assert response.status_code == 400
    assert response.json()["message"] == 'previous terminated container "main" in pod "p" not found'


def test_log_of_a_deleted_pod_is_gone(pods: Pods) -> None:
    pods.run("echo one")
    pods.wait_ended()
    assert pods.log() == b"one\n"
    pods.delete()
    pods.namespace.wait_until(pods.is_gone, lambda: "the deletion")
    assert pods.read_log().status_code == 404


@pytest.fixture
def rotating(node: NodeUnderTest) -> Any:
    """Logs are rotated at 1 MiB during the test."""
    node.stop()
    node.start(log_bytes_max=2**20)
    yield
    node.stop()
    node.start()


SLOW_MEGABYTES = r"""
for part in $(seq 30); do
  awk -v part=$part 'BEGIN { for (line = 1; line <= 1000; line++) printf "%d %090d\n", part, line }'; sleep 0.3
done
echo end
"""
"""3 MB in 9 seconds: a kubelet looks at the size of a log every few seconds."""


def test_rotated_log_has_its_last_lines(pods: Pods, rotating: None) -> None:
    pods.run(SLOW_MEGABYTES + THEN_END.removeprefix(";"))
    pods.wait_ended()
    lines = pods.log().splitlines()
    whole = [*(b"%d %090d" % (part, line) for part in range(1, 31) for line in range(1, 1001)), b"end"]
    # If the kubelet rotates the file after the last line, the log is empty.
    assert len(lines) < len(whole)
    assert lines == whole[len(whole) - len(lines) :]


def test_log_is_followed_across_rotations(pods: Pods, rotating: None) -> None:
    pods.run(SLOW_MEGABYTES + THEN_END.removeprefix(";"))
    pods.wait_phase("Running")
    follower = Follower(pods)
    lines = follower.wait_end().splitlines()
    assert len(lines) == 30_001
    assert lines == [*(b"%d %090d" % (part, line) for part in range(1, 31) for line in range(1, 1001)), b"end"]


def test_log_is_complete_after_the_program_of_the_node_was_restarted(pods: Pods, node: NodeUnderTest) -> None:
    pods.run("for number in $(seq 60); do echo $number; sleep 0.1; done")
    pods.wait_output(b"3\n")
    follower = Follower(pods)
    pods.namespace.wait_until(lambda: b"3\n" in follower.received, lambda: "the third line")
    node.stop()
    node.start()
    follower.wait_end()
    pods.wait_ended()
    assert pods.log() == b"".join(b"%d\n" % number for number in range(1, 61))

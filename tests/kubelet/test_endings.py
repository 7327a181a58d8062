"""How containers end: exit codes, termination messages, memory limits, and programs that cannot start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.kubelet.pods import container

if TYPE_CHECKING:
    from tests.conformance.targets import Target
    from tests.kubelet.pods import Pods

CODES: dict[str, tuple[str, int, str, str]] = {
    "success": ("true", 0, "Completed", "Succeeded"),
    "failure": ("exit 3", 3, "Error", "Failed"),
    "a signal": ("sh -c 'kill -9 $$$$'; exit $?", 137, "Error", "Failed"),
    "a command that is not found": ("/no/such/program", 127, "Error", "Failed"),
}


@pytest.mark.parametrize(("script", "code", "reason", "phase"), CODES.values(), ids=CODES)
def test_end_of_a_container_is_reported(pods: Pods, script: str, code: int, reason: str, phase: str) -> None:
    pods.run(script)
    status = pods.wait_ended()
    terminated = pods.container()["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"], status["phase"]) == (code, reason, phase)
    assert terminated["startedAt"] <= terminated["finishedAt"]


MESSAGES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "what the program wrote": ("printf '{\"loss\": 0.5}' > /dev/termination-log", {}, '{"loss": 0.5}'),
    "a path of its own": ("printf one > /tmp/result", {"terminationMessagePath": "/tmp/result"}, "one"),
    "the end of a long message": (
        "(head -c 5000 /dev/zero | tr '\\0' x; printf end) > /dev/termination-log",
        {},
        "x" * 4093 + "end",
    ),
    "a failure without a message": ("echo reason; exit 1", {}, None),
    "the log, if it is asked for": (
        "echo reason; exit 1",
        {"terminationMessagePolicy": "FallbackToLogsOnError"},
        "reason\n",
    ),
    "the last 80 lines of the log": (
        "seq 100; exit 1",
        {"terminationMessagePolicy": "FallbackToLogsOnError"},
        "".join(f"{number}\n" for number in range(21, 101)),
    ),
    "the last 2,048 bytes of the log": (
        "awk 'BEGIN { for (i = 1; i <= 40; i++) printf \"%0199d\\n\", i }'; exit 1",
        {"terminationMessagePolicy": "FallbackToLogsOnError"},
        "".join(f"{number:0199}\n" for number in range(1, 41))[-2048:],
    ),
    "what the program wrote, and not the log": (
        "echo in log; printf told > /dev/termination-log; exit 3",
        {"terminationMessagePolicy": "FallbackToLogsOnError"},
        "told",
    ),
    "no log after a success": ("echo fine", {"terminationMessagePolicy": "FallbackToLogsOnError"}, None),
}


@pytest.mark.parametrize(("script", "fields", "message"), MESSAGES.values(), ids=MESSAGES)
def test_termination_message(pods: Pods, script: str, fields: dict[str, Any], message: str | None) -> None:
    pods.run(container(script, **fields))
    pods.wait_ended()
    assert pods.container()["state"]["terminated"].get("message") == message


def test_container_above_its_memory_limit_is_oom_killed(pods: Pods) -> None:
    fill = "x=$(head -c 100000000 /dev/zero | tr '\\0' x); sleep 60"
    pods.run(container(fill, resources={"limits": {"memory": "48Mi"}}))
    status = pods.wait_ended()
    terminated = pods.container()["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"], status["phase"]) == (137, "OOMKilled", "Failed")


def test_program_that_does_not_exist_is_a_start_error(pods: Pods) -> None:
    pods.run(container("", command=["/no/such/program"]))
    status = pods.wait_ended()
    terminated = pods.container()["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"], status["phase"]) == (128, "StartError", "Failed")
    assert "/no/such/program" in terminated["message"]
    assert "no such file or directory" in terminated["message"]


IMAGES: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "an image that may not be pulled": (
        {"image": "localhost:1/missing:1", "imagePullPolicy": "Never"},
        ("ErrImageNeverPull",),
        'Container image "localhost:1/missing:1" is not present with pull policy of Never',
    ),
    "an image that cannot be pulled": (
        {"image": "localhost:1/missing:1", "imagePullPolicy": "IfNotPresent"},
        ("ErrImagePull", "ImagePullBackOff"),
        "localhost:1/missing:1",
    ),
    "a name that is no image": ({"image": "No Image"}, ("InvalidImageName",), "couldn't parse image"),
}


@pytest.mark.parametrize(("image", "reasons", "message"), IMAGES.values(), ids=IMAGES)
def test_missing_image_is_reported(
    pods: Pods, target: Target, image: dict[str, str], reasons: tuple[str, ...], message: str
) -> None:
    if not target.is_real:
        pytest.skip("the sandbox has no images (docs/clusters.md)")
    pods.run(container("true", **image))
    assert message in pods.wait_waiting(*reasons)["message"]

"""Gangs whose programs a supervisor restarts in their pods: their Jobs, and what the lines of the supervisors tell."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.outcome.restarts import (
    LINE_BYTES_MAX,
    LINE_START,
    RESTARTS_KEPT,
    Progress,
    Progressed,
    ReadableChunks,
    Restart,
    StreamedTo,
    SupervisorReport,
    describe_restarts,
    parse_line,
    readable,
    without_lines,
)
from airflow_provider_gangjobs.gang.preview import SUPERVISOR_KEY, preview
from airflow_provider_gangjobs.gang.record import read_mark, to_text
from airflow_provider_gangjobs.gang.render.files import FILES_BYTES_MAX, KEY_FILE, SCRIPT, supervisor_programs
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.kube.well_known import FILES_PATH
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

if TYPE_CHECKING:
    from pathlib import Path


# -- The Job of a gang whose programs a supervisor restarts in their pods, and what is refused -----------------------

KEY = TaskKey("dag", "run", "task")
PROGRAM = ["python", "train.py"]
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "template": {"spec": {"containers": [{"name": "trainer", "image": "a", "command": ["a"], "args": ["b"]}]}},
    },
}


def spec_of(**given: Any) -> GangSpec:
    return GangSpec(**{"image": "trainer:1", "workers": 3, "command": PROGRAM, "restarts": 2, **given})


def objects_of(spec: GangSpec, kind: str) -> list[dict[str, Any]]:
    return [one for one in preview(spec, KEY) if one["kind"] == kind]


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def env_of(container: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container["env"] if "value" in item}


def test_supervisor_runs_the_command_with_its_arguments() -> None:
    (job,) = objects_of(spec_of(args=["--rank", "$(RANK)"]), "Job")
    main = pod_of(job)["containers"][0]

    assert main["command"] == ["/bin/sh", "-c", SCRIPT, "gangjobs", *PROGRAM, "--rank", "$(RANK)"]
    assert "args" not in main
    assert {"name": "gang-run", "mountPath": "/gang/run"} in main["volumeMounts"]


def test_supervisor_has_its_variables() -> None:
    (job,) = objects_of(
        spec_of(no_restart_on_exit_codes=[3, 17], progress_timeout_s=90.5, termination_grace_s=5), "Job"
    )
    env, name = env_of(pod_of(job)["containers"][0]), job["metadata"]["name"]

    assert env["GANG_RESTARTS_MAX"] == "2"
    assert env["GANG_NO_RESTART_ON_EXIT_CODES"] == "3,17"
    assert env["GANG_PROGRESS_TIMEOUT_S"] == "90.5"
    assert env["GANG_STOP_GRACE_S"] == "5"
    assert env["GANG_SUPERVISOR_ADDRESS"] == f"{name}-0.{name}"
    assert (read_job(job).record.restarts, read_job(job).record.restarts_alone) == (2, False)


def test_files_of_the_supervisor_are_mounted_with_a_key() -> None:
    (files,) = objects_of(spec_of(files={"train.py": "pass\n"}), "ConfigMap")

    assert set(files["data"]) == {"train.py", KEY_FILE, *supervisor_programs()}
    assert files["data"][KEY_FILE] == SUPERVISOR_KEY


def test_service_has_the_port_of_the_supervisor() -> None:
    (service,) = objects_of(spec_of(), "Service")

    assert [port["port"] for port in service["spec"]["ports"]] == [29500, 29501]


def test_one_rank_restarts_as_a_whole_gang() -> None:
    (job,) = objects_of(spec_of(workers=1), "Job")

    assert (read_job(job).record.restarts, read_job(job).record.restarts_alone) == (2, False)


def test_ranks_without_a_rendezvous_restart_alone() -> None:
    spec = spec_of(rendezvous=False)
    (job,) = objects_of(spec, "Job")

    assert env_of(pod_of(job)["containers"][0])["GANG_SUPERVISOR_ADDRESS"] == ""
    assert (read_job(job).record.restarts, read_job(job).record.restarts_alone) == (2, True)
    assert objects_of(spec, "Service") == []


def test_ranks_of_all_roles_have_supervisors_of_one_gang() -> None:
    roles = {"head": {"image": "a", "command": ["a"]}, "worker": {"image": "b", "command": ["b"], "workers": 2}}
    jobs = objects_of(GangSpec(roles=roles, restarts=1), "Job")
    mains = [pod_of(job)["containers"][0] for job in jobs]

    assert [main["command"][-1] for main in mains] == ["a", "b"]
    assert len({env_of(main)["GANG_SUPERVISOR_ADDRESS"] for main in mains}) == 1
    assert [env_of(main)["GANG_RANK_OFFSET"] for main in mains] == ["0", "1"]


def test_roles_in_a_queue_have_supervisors() -> None:
    roles = {"head": {"image": "a", "command": ["a"]}, "worker": {"image": "b", "command": ["b"]}}
    (job_set,) = objects_of(GangSpec(roles=roles, restarts=1, queue_name="q"), "JobSet")

    name = job_set["metadata"]["name"]
    for role in job_set["spec"]["replicatedJobs"]:
        main = pod_of(role["template"])["containers"][0]
        assert env_of(main)["GANG_SUPERVISOR_ADDRESS"] == f"{name}-head-0-0.{name}"


def test_sidecars_and_init_containers_stay_as_they_are() -> None:
    more = [{"name": "side", "image": "s", "command": ["serve"]}]
    spec = spec_of(pod_overrides={"spec": {"containers": more, "initContainers": [{"name": "init", "image": "i"}]}})
    (job,) = objects_of(spec, "Job")
    _, side = pod_of(job)["containers"]

    assert side["command"] == ["serve"]
    assert "GANG_RESTARTS_MAX" not in env_of(side)
    assert "command" not in pod_of(job)["initContainers"][0]


def test_command_of_a_manifest_is_supervised() -> None:
    (job,) = objects_of(GangSpec(manifest=JOB, restarts=1), "Job")

    assert pod_of(job)["containers"][0]["command"][4:] == ["a", "b"]


@pytest.mark.parametrize("launch", ["plain", "torchrun", "shards", "mpi"])
def test_each_launcher_is_supervised(launch: str) -> None:
    secret = {"ssh_secret": "keys"} if launch == "mpi" else {}
    with DAG("d", schedule=None):
        task = GangJobOperator(
            task_id="t",
            image="i",
            command=PROGRAM,
            workers=2,
            restarts=1,
            launch=launch,
            **secret,  # type: ignore[arg-type]
        )
    (job,) = objects_of(task.gang_spec(), "Job")

    words = pod_of(job)["containers"][0]["command"]
    assert words[2] == SCRIPT
    assert words[-1] == "train.py"


def test_gang_without_restarts_has_no_supervisor() -> None:
    text = json.dumps(preview(spec_of(restarts=0, files={"a": "b"}), KEY))

    assert "supervisor" not in text
    assert "gang-run" not in text
    assert "GANG_RESTART" not in text


def test_restarts_belong_to_the_hash() -> None:
    assert len({spec_of().hash, spec_of(restarts=3).hash, spec_of(progress_timeout_s=5).hash}) == 3
    assert spec_of(restarts=0).hash == GangSpec(image="trainer:1", workers=3, command=PROGRAM).hash


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no command": (
        {"command": None},
        "command: is missing with restarts, and the provider does not know the entrypoint",
    ),
    "text": ({"restarts": "2"}, "restarts: is '2', not a whole number"),
    "negative": ({"restarts": -1}, "restarts: is -1. Give 0 or more"),
    "too many": ({"restarts": 1001}, "restarts: is 1001. Give at most 1000"),
    "codes without restarts": (
        {"restarts": 0, "no_restart_on_exit_codes": [3]},
        "no_restart_on_exit_codes: is given without restarts",
    ),
    "a code of success": ({"no_restart_on_exit_codes": [0]}, "no_restart_on_exit_codes: is [0], which are not all"),
    "fewer ranks": ({"min_workers": 2}, "min_workers: is 2 with restarts, and all 3 ranks restart together"),
    "the kubelet restarts": (
        {"pod_overrides": {"spec": {"restartPolicy": "OnFailure"}}, "workers": 1},
        "spec.template.spec.restartPolicy: is OnFailure with restarts",
    ),
    "the port": ({"rendezvous": Rendezvous(29501)}, "rendezvous.port: is 29501, where the supervisors listen"),
    "a file": ({"files": {KEY_FILE: "a"}}, f"files.{KEY_FILE}: is a file of the provider"),
    "a module for results": (
        {"files": {"gangjobs_result.py": "a"}},
        "files.gangjobs_result.py: is a file of the provider",
    ),
    "a variable": ({"env": {"GANG_RESTART": "1"}}, "env.GANG_RESTART: GANG_RESTART is set by the provider"),
    "a volume": ({"volumes": [{"name": "gang-run", "emptyDir": {}}]}, "spec.template.spec.volumes: has 'gang-run'"),
    "files that leave no room": ({"files": {"a": "x" * (FILES_BYTES_MAX - 10)}}, "files: have "),
    "no timeout": ({"progress_timeout_s": 0}, "progress_timeout_s: is 0 s"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_restarted_is_refused_with_a_cure(given: dict[str, Any], message: str) -> None:
    problems = [str(problem) for problem in validate(spec_of(**given))]

    assert any(problem.startswith(message) for problem in problems), problems


def test_manifest_without_a_command_is_refused_at_its_place() -> None:
    container = {"name": "trainer", "image": "a"}
    manifest = {**JOB, "spec": {**JOB["spec"], "template": {"spec": {"containers": [container]}}}}  # type: ignore[dict-item]
    (problem,) = validate(GangSpec(manifest=manifest, restarts=1))

    assert problem.path == "manifest.spec.template.spec.containers[0].command"


def test_dag_file_hears_that_ranks_would_restart_alone() -> None:
    with DAG("d", schedule=None), pytest.raises(InvalidGangSpec, match='give launch="shards"'):
        GangJobOperator(task_id="t", image="i", command=PROGRAM, workers=2, restarts=1, rendezvous=False)


def test_image_without_python_fails_with_a_sentence(tmp_path: Path) -> None:
    result = tmp_path / "result"
    environment = {"PATH": str(tmp_path), "GANG_RESULT_PATH": str(result), "GANG_FILES": FILES_PATH}

    ended = subprocess.run(["/bin/sh", "-c", SCRIPT, "gangjobs", "true"], env=environment, check=False, timeout=30)

    assert ended.returncode == 127
    assert json.loads(result.read_text())["error"].startswith("The image has no Python 3.8 or later")


# -- What the lines of the supervisors tell --------------------------------------------------------------------------


def line(event: str, **fields: Any) -> bytes:
    return b"gangjobs-supervisor " + json.dumps({"event": event, "message": "It happened.", **fields}).encode()


def report_of(*lines: bytes, known: SupervisorReport | None = None) -> SupervisorReport:
    report = known or SupervisorReport()
    for each in lines:
        told = parse_line(each)
        assert told is not None
        report = report.with_line(told[1])
    return report


def test_restart_is_complete_when_all_ranks_run_again() -> None:
    report = report_of(
        line("restart", number=1, rank=1, kind="exit", code=3, at=100.5, lost_s=7.0),
        line("restarted", number=1, took_s=1.5),
    )

    assert report.restarts == (Restart(number=1, rank=1, kind="exit", code=3, at=100.5, lost_s=7.0, took_s=1.5),)
    assert report.total == 1


def test_line_that_is_read_twice_is_one_restart() -> None:
    once = line("restart", number=1, rank=1, kind="signal", signal=9)

    assert report_of(once, once).total == 1


def test_nothing_is_known_without_lines() -> None:
    assert SupervisorReport().total is None
    assert SupervisorReport().lost_s is None


def test_summary_tells_all_restarts() -> None:
    restarts = [{"number": number, "rank": 0, "kind": "exit", "code": 1} for number in range(1, 31)]
    report = report_of(line("summary", restarts=restarts, restarts_total=31, stopped_s=4, lost_s=9.5, step=7))

    assert len(report.restarts) == RESTARTS_KEPT
    assert (report.total, report.stopped_s, report.lost_s, report.is_final) == (31, 4, 9.5, True)


def test_restarts_that_do_not_fit_into_the_summary_stay_known() -> None:
    """A line of 2 KiB has room for some 13 restarts."""
    restarts = [{"number": number, "rank": 0, "kind": "exit", "code": 1} for number in range(1, 21)]
    known = report_of(*(line("restart", **restart) for restart in restarts))
    report = report_of(line("summary", restarts=restarts[7:], restarts_total=20), known=known)

    assert (report.restarts, report.total) == (known.restarts, 20)


def test_report_survives_the_annotation() -> None:
    report = report_of(line("restart", number=2, rank=0), line("progress", step=3, total=12, metrics={"loss": 0.5}))

    mark = Progressed(report=report, streamed=StreamedTo(log="try", process="p"))
    assert read_mark(Progressed, to_text(mark)) == mark
    assert read_mark(Progressed, "no JSON") == Progressed()


def test_progress_is_a_line_for_people() -> None:
    report = report_of(line("progress", step=300, total=1200, rate=2.5, metrics={"loss": 0.25}))

    assert str(report.progress) == "step 300 of 1200 (25 %), 2.5 steps/s, loss 0.25"
    assert Progress(step=5).percent is None


@pytest.mark.parametrize(
    "text",
    [
        b"gangjobs-supervisor",
        b"gangjobs-supervisor {}",
        b'gangjobs-supervisor {"event": "restart"}',
        b'gangjobs-supervisor {"event": 1, "message": "a"}',
        b'gangjobs-supervisor {"event": "restart", "message": "a", "number": "1"}',
        b'gangjobs-supervisor {"event": "progress", "message": "a", "step": NaN}',
        b'gangjobs-supervisor {"event": "progress", "message": "a", "step": %d}' % 10**400,
        b'gangjobs-supervisor {"event": "progress", "message": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"gangjobs-supervisor " + json.dumps({"event": "a", "message": "a" * 5000}).encode(),
    ],
)
def test_other_line_is_no_line_of_a_supervisor(text: bytes) -> None:
    assert parse_line(text) is None


def test_message_is_one_line() -> None:
    told = parse_line(line("restart", message="a\n[rank 0] b\r"))

    assert told is not None
    assert told[1].message == "a [rank 0] b"


def test_number_without_bounds_is_not_known() -> None:
    report = report_of(line("progress", step=1, metrics={str(number): number for number in range(20)}, rate=1e308))

    assert report.progress is not None
    assert len(report.progress.metrics) == 8


def test_text_shows_messages_in_place_of_lines() -> None:
    assert readable(b"a\n" + line("restart") + b"\nb") == b"a\nIt happened.\nb"
    assert readable(b"a\nb") == b"a\nb"


@pytest.mark.parametrize(
    "unfinished", [b"gangjobs-supervisor {", b'gangjobs-supervisor {"event": "', b"gangjobs-supervisor {" * 300]
)
def test_unfinished_line_with_the_mark_hides_no_event(unfinished: bytes) -> None:
    told = parse_line(unfinished + line("restart", number=1))

    assert told is not None
    assert (told[0], told[1].number) == (unfinished, 1)
    chunks = ReadableChunks()
    shown = [chunks.feed(unfinished), chunks.feed(line("restart") + b"\n"), chunks.end()]
    assert b"".join(shown).replace(b" ", b"") == unfinished.replace(b" ", b"") + b"Ithappened.\n"


def test_line_may_follow_an_unfinished_line_of_the_program() -> None:
    assert readable(b"42 % " + line("restart") + b"\nb") == b"42 % It happened.\nb"


def test_output_of_the_program_is_what_it_has_written_itself() -> None:
    text = f"a\n42 % {line('restart').decode()}\n{line('summary').decode()}\nValueError: b"

    assert without_lines(text) == "a\n42 %\nValueError: b"


LOG = b"a\n42 % " + line("restart") + b"\ngangjobs-\n" + line("summary") + b"\nb\n"


@pytest.mark.parametrize("size", [1, 2, 7, 19, 20, 21, 22, len(LOG)])
def test_log_in_chunks_shows_messages_in_place_of_lines(size: int) -> None:
    for end in range(len(LOG) - 60, len(LOG) + 1):
        log, chunks = LOG[:end], ReadableChunks()
        shown = [chunks.feed(log[at : at + size]) for at in range(0, end, size)]
        assert b"".join([*shown, chunks.end()]) == readable(log)


def test_unfinished_line_of_a_program_is_not_held() -> None:
    assert ReadableChunks().feed(b"a\n42 % gangjob") == b"a\n42 % gangjob"[:-7]
    assert ReadableChunks().feed(LINE_START + b"x" * LINE_BYTES_MAX) != b""


def test_error_tells_the_restarts_before_it() -> None:
    report = report_of(line("restart", number=1, rank=2, kind="signal", signal=11))

    assert describe_restarts(report, 3) == (
        "The programs were restarted in their pods 1 time of 3, the last time because rank 2 was ended by signal 11."
    )
    assert describe_restarts(SupervisorReport(), 3) == ""

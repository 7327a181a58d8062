"""The commands about gangs, on the embedded cluster: what they print, and their exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml

from airflow_provider_gangjobs.cli import gangs as cli_gangs
from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.ending import submissions
from airflow_provider_gangjobs.ending.release import count_running
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.jobs import requests
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from airflow_provider_gangjobs.kube.text import to_printable_line
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST
from airflow_provider_gangjobs.submission.capabilities import discover_for
from airflow_provider_gangjobs.submission.submit import submit
from airflow_provider_gangjobs.tracking import follow
from airflow_provider_gangjobs.tracking.gang_listing import list_gangs
from gangjobs_sandbox.cluster import SandboxConfig
from gangjobs_sandbox.thread import running
from tests.crashes import Crash, CrashingClient, ProcessDied
from tests.documented_links import documented_links
from tests.manifests import SUSPENDED_MANIFEST
from tests.provider.cli_gangs import CliGangs
from tests.sandbox_faults import arm
from tests.submission_requests import task_request
from tests.timeouts import TIMEOUT_S
from tests.unit.test_gang_lists import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_provider_gangjobs.service import GangService
    from gangjobs_sandbox.thread import SandboxThread


RED_ERROR = r"""printf %s '{"error": "\u001b[31mno\u001b[0m\nluck\u001b]0;title\u0007"}' > $GANG_RESULT_PATH"""
"""What a program writes that shows its errors in colours, and would set the title of the terminal."""


@pytest.fixture(scope="module")
def tonight(embedded: SandboxThread) -> Iterator[CliGangs]:
    """A namespace with a gang that runs, one that waits, one that failed, and one that has succeeded."""
    gangs = CliGangs(embedded)
    gangs.create_namespace()
    gangs.submit("train", "echo hello $RANK; sleep 600")
    gangs.submit("big", "true", workers=4, resources={"cpu": "3"})
    gangs.submit("fail", f"test $RANK = 1 && exec sleep 600; echo oops $RANK; {RED_ERROR}; exit 3", dag_id="report")
    gangs.submit("load", r"printf 'done\033]0;title\007\n'", dag_id="report")
    wanted = {"train": Phase.RUNNING, "big": Phase.ASSEMBLING, "fail": Phase.FAILED, "load": Phase.SUCCEEDED}
    for name, phase in wanted.items():
        gangs.wait_for(gangs.refs[name], phase)
    yield gangs
    gangs.delete_all()


def test_list_shows_the_phase_of_each_gang(tonight: CliGangs) -> None:
    shown = {line.split()[2]: line.split()[3:5] for line in tonight.output("list").splitlines()[1:]}
    assert shown == {
        "train": ["running", "2/2"],
        "big": ["assembling", "0/4"],
        "fail": ["failed", "0/2"],
        "load": ["succeeded", "2/2"],
    }


def test_list_shows_the_job_of_a_development_version_as_a_foreign_one(embedded: SandboxThread) -> None:
    """The digest of its task has no installation. A try of an Airflow with an id neither adopts nor deletes it."""
    gangs = CliGangs(embedded)
    gangs.create_namespace()
    old = gangs.submit("train", "sleep 600")
    new = gangs.submit("train", "sleep 600", installation="prod")

    rows = gangs.read("list")["items"]
    assert {row["uid"]: row.get("installation", "") for row in rows} == {old.uid: "", new.uid: "prod"}
    gangs.delete_all()


FILTERS = {
    "waiting": (["--waiting"], {"big"}),
    "running": (["--running"], {"train"}),
    "failed": (["--failed"], {"fail"}),
    "waiting or running": (["--waiting", "--running"], {"big", "train"}),
    "of a DAG": (["--dag", "report"], {"fail", "load"}),
    "live a moment ago": (["--since", "1h"], {"train", "big", "fail", "load"}),
    "live now": (["--since", "0s"], {"train", "big"}),
}


@pytest.mark.parametrize(("arguments", "expected"), FILTERS.values(), ids=FILTERS)
def test_list_shows_only_gangs_that_are_asked_for(tonight: CliGangs, arguments: list[str], expected: set[str]) -> None:
    assert set(tonight.output("list", "-o", "name", *arguments).split()) == {
        str(tonight.refs[name]) for name in expected
    }


def test_list_of_the_cluster_has_the_namespaces(
    tonight: CliGangs, embedded: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "-A", "--kubeconfig", str(embedded.kubeconfig_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("NAMESPACE")
    assert shown.count(tonight.namespace) == 4


def test_items_of_the_json_fit_the_documented_schema(tonight: CliGangs) -> None:
    found = tonight.read("list")
    assert (found["apiVersion"], found["kind"], len(found["items"])) == ("gangjobs.airflow/v1", "GangList", 4)
    schema = json.loads(SCHEMA.read_text())
    for item in found["items"]:
        jsonschema.validate(item, schema)
    assert yaml.safe_load(tonight.output("list", "-o", "yaml")) == found


def test_list_is_asked_in_pages(tonight: CliGangs) -> None:
    async def read(gangs: GangService) -> tuple[int, int]:
        found = await list_gangs(gangs.client, tonight.namespace, limit=1)
        return len(found), gangs.client.statistics().requests["list"]

    assert tonight.run(read) == (4, 4)


CATEGORIES = {"big": "NeverFits", "train": "Running", "fail": "ApplicationFailed", "load": "Succeeded"}


@pytest.mark.parametrize(("name", "category"), CATEGORIES.items(), ids=CATEGORIES)
def test_why_says_the_reason_and_what_to_do(tonight: CliGangs, name: str, category: str) -> None:
    dag = "etl" if name in {"big", "train"} else "report"
    found = tonight.read("why", dag, name)
    assert (found["kind"], found["category"]) == ("Gang", category)
    shown = tonight.output("why", dag, name)
    assert shown.startswith(f"{tonight.refs[name]} {found['phase']}")
    assert all(to_printable_line(text) in shown for text in (found["summary"], found.get("remedy", "")))


def test_show_has_the_ranks(tonight: CliGangs) -> None:
    shown = tonight.output("show", "report", "fail", "run1")
    assert "report.fail, run run1" in shown
    assert [line.split()[:3] for line in shown.splitlines()[-2:]] == [["0", "failed", "3"], ["1", "deleted", "143"]]
    found = tonight.read("show", "report", "fail")
    assert [pod["exit_code"] for pod in found["pods"]] == [3, 143]
    assert found["task_id"] == "fail"


def test_why_of_several_gangs_names_each_cause_with_its_latest_gang(tonight: CliGangs) -> None:
    first, *rest = tonight.output("why", "report").splitlines()
    assert first == f"1 gang failed (ApplicationFailed), the latest {tonight.refs['fail']}:"
    assert rest[-2] == f"1 gang succeeded (Succeeded), the latest {tonight.refs['load']}:"
    found = tonight.read("why", "report")
    assert (found["kind"], {gang["task_id"] for gang in found["items"]}) == ("GangList", {"fail", "load"})


def test_ambiguous_name_lists_the_candidates(tonight: CliGangs) -> None:
    shown = tonight.error("show", "report", code=4)
    assert shown.startswith("gangjobs: report names 2 gangs. Add RUN")
    assert f"  {tonight.refs['fail']}  report  fail  run1  failed\n" in shown


def test_top_adds_what_the_gangs_of_a_dag_hold_and_want(tonight: CliGangs) -> None:
    assert [line.split() for line in tonight.output("top").splitlines()[1:]] == [["etl", "1", "1", "0.2", "12"]]


def test_leaks_are_named_with_exit_code_1(tonight: CliGangs) -> None:
    assert tonight.call("leaks") == 0
    found = json.loads(tonight.output("leaks", "--older-than", "0s", "-o", "json", code=1))
    kinds = {leak["name"]: leak["kind"] for leak in found["items"]}
    assert kinds == {tonight.refs[name].name: "held pods" for name in ("fail", "load")}
    _, *rows = tonight.output("leaks", "--older-than", "0s", code=1).splitlines()
    remedy = f"gangjobs tidy -n {tonight.namespace} --older-than 15m"
    assert [row.endswith(remedy) for row in rows] == [True, True]


LOGS = {
    "the rank that failed": (["report", "fail"], ["oops 0"]),
    "rank 0 of a gang that runs": (["etl", "train"], ["hello 0"]),
    "one rank": (["etl", "train", "--rank", "1"], ["hello 1"]),
    "all ranks": (["etl", "train", "--all"], ["[rank 0] hello 0", "[rank 1] hello 1"]),
    "a gang that has ended, followed": (["report", "load", "-f"], ["done\x1b]0;title\x07"]),
}


@pytest.mark.parametrize(("arguments", "lines"), LOGS.values(), ids=LOGS)
def test_logs_are_those_of_the_chosen_ranks(tonight: CliGangs, arguments: list[str], lines: list[str]) -> None:
    assert tonight.output("logs", *arguments).splitlines() == lines


def test_terminal_does_not_obey_a_log(
    tonight: CliGangs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert tonight.call("logs", "report", "load") == 0
    assert capsys.readouterr().out == "done\\x1b]0;title\\x07\n"


def test_terminal_does_not_obey_the_ids_of_gangs(tonight: CliGangs) -> None:
    runs = [tonight.submit("named", "true", dag_id="ids", run_id=f"{number}\x1b]0;title\x07") for number in (1, 2)]
    assert "run 1\\x1b]0;title\\x07\n" in tonight.output("show", runs[0].name)
    assert "  2\\x1b]0;title\\x07  " in tonight.error("show", "ids", "named", code=4)
    for ref in runs:
        tonight.run(lambda gangs, ref=ref: gangs.delete(ref))


class ClosedPipe(StringIO):
    """What standard output is after its reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_followed_logs_end_with_their_reader(tonight: CliGangs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", ClosedPipe())
    monkeypatch.setattr(sys, "stderr", StringIO())
    assert tonight.call("logs", "etl", "train", "-f") == 0


def program(tonight: CliGangs, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "airflow_provider_gangjobs.cli.main", *arguments, *tonight.options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


INTERRUPTED: dict[str, tuple[list[str], str]] = {
    "logs": (["logs", "etl", "train", "-f"], "hello 0\n"),
    "list": (["list", "-w", "--running"], "NAME"),
}


@pytest.mark.parametrize(("arguments", "first"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_interrupted_command_says_that_gangs_were_left_alone(
    tonight: CliGangs, arguments: list[str], first: str
) -> None:
    with program(tonight, *arguments) as command:
        assert command.stdout is not None
        assert first.strip() in command.stdout.readline()
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=TIMEOUT_S)
    assert command.returncode == 130
    assert errors.strip() == "gangjobs: interrupted. All gangs were left as they are"
    tonight.wait_for(tonight.refs["train"], Phase.RUNNING)


def test_watch_prints_a_gang_that_comes(tonight: CliGangs) -> None:
    with program(tonight, "list", "-w", "--dag", "late") as command:
        assert command.stdout is not None
        assert command.stdout.readline().startswith("NAME")
        late = tonight.submit("late", "sleep 600", dag_id="late")
        assert late.name in command.stdout.readline()
        command.send_signal(signal.SIGINT)
    tonight.run(lambda gangs: gangs.delete(late))


@pytest.mark.parametrize("command", ["list", "show report fail", "why report fail", "leaks --older-than 0s"])
def test_text_has_no_colours_without_a_terminal(tonight: CliGangs, command: str) -> None:
    assert "\x1b" not in tonight.output(*command.split(), code=int(command.startswith("leaks")))


BAD: dict[str, tuple[list[str], int, str]] = {
    "an unknown gang": (["why", "nosuch"], 4, "has no such gang. `gangjobs list -A` shows the gangs of all"),
    "a gang of another namespace": (["why", "other/a"], 4, "namespace other has no such Job, and namespace cli-"),
    "too many words": (["why", "a", "b", "c", "1", "e"], 4, "name one gang"),
    "a gang that has ended": (["cancel", "report", "fail"], 1, "has ended already. `gangjobs why "),
    "no log": (["logs", "etl", "big"], 1, "no pod has a log: no rank has started, or the pods are gone"),
    "no such rank": (["logs", "etl", "train", "--rank", "9"], 1, "no pod has a log of rank 9"),
    "no such file": (["submit", "/nosuch.yaml", "--id", "a"], 1, "/nosuch.yaml cannot be read: No such file"),
}


@pytest.mark.parametrize(("arguments", "code", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_with_the_remedy(
    tonight: CliGangs, arguments: list[str], code: int, message: str
) -> None:
    shown = tonight.error(*arguments, code=code)
    assert message in shown
    assert shown.startswith("gangjobs: ")
    assert shown.count("\n") == 1


FILES: dict[str, tuple[str, str]] = {
    "half-written YAML": ("image: a\ncommand: [sh, -c", ": is not YAML: line 2: expected ',' or ']'"),
    "a list": ("- a\n- b\n", "gang.yaml: is not a mapping."),
    "an unknown parameter": ("image: a\nworker: 2\n", "worker: is no parameter of a GangSpec. Did you mean workers?"),
    "workers that are no number": ("image: a\nworkers: many\n", "The request is invalid"),
}


@pytest.mark.parametrize(("text", "message"), FILES.values(), ids=FILES)
def test_file_that_describes_no_gang_is_refused(tonight: CliGangs, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "gang.yaml").write_text(text)
    shown = tonight.error("submit", str(tmp_path / "gang.yaml"), "--id", "bad", code=1)
    assert message in shown
    assert shown.count("\n") == 1


NO_CLUSTER: dict[str, tuple[list[str], int, str]] = {
    "no kubeconfig": (["--kubeconfig", "/nosuch"], 3, "the file /nosuch does not exist. Correct --kubeconfig"),
    "no such context": (["--context", "nosuch"], 3, "nosuch"),
    "no such namespace": (["-n", "nosuch"], 3, "namespace nosuch does not exist. Choose one with -n, or all with -A"),
    "two clusters": (["--conn-id", "a", "--context", "b"], 1, "--conn-id has its own cluster"),
}


@pytest.mark.parametrize(("arguments", "code", "message"), NO_CLUSTER.values(), ids=NO_CLUSTER)
def test_cluster_that_cannot_be_chosen_is_named(
    embedded: SandboxThread,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(embedded.kubeconfig_path))
    assert main(["list", *arguments]) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("command", ["list -w", "why train", "top", "leaks", "tidy", "release"])
def test_namespace_that_does_not_exist_is_a_failure_of_each_command(
    embedded: SandboxThread, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(embedded.kubeconfig_path))
    assert main([*command.split(), "-n", "nosuch"]) == 3
    assert "namespace nosuch does not exist. Choose one with -n" in capsys.readouterr().err


def test_cluster_that_does_not_answer_ends_the_command_soon(
    embedded: SandboxThread,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = yaml.safe_load(embedded.kubeconfig_path.read_text())
    described["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(described))
    assert main(["list", "--kubeconfig", str(tmp_path / "kubeconfig")]) == 3
    shown = capsys.readouterr().err
    assert "cannot be reached" in shown
    assert "Check --kubeconfig and --context" in shown
    assert shown.count("\n") == 1


def refuse(gangs: CliGangs, method: str, path: str, *, times: int | None = 1) -> None:
    """Let the API server refuse the next request that fits, or the next ones, or all of them (`None`)."""
    arm(gangs.sandbox, method=method, path=path, code=403, times=times)


@pytest.mark.parametrize("arguments", [["list"], ["logs", "etl", "train", "-f"]], ids=["list", "followed logs"])
def test_missing_right_is_one_line_that_names_the_role(tonight: CliGangs, arguments: list[str]) -> None:
    refuse(tonight, "GET", f"/namespaces/{tonight.namespace}/jobs" if arguments == ["list"] else "/jobs/")
    shown = tonight.error(*arguments, code=3)
    assert "Bind the Role of `gangjobs rbac` to this user" in shown
    assert shown.count("\n") == 1


def test_connection_of_airflow_selects_cluster_and_namespace(
    tonight: CliGangs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    extra: dict[str, Any] = {"kube_config_path": str(tonight.sandbox.kubeconfig_path), "namespace": tonight.namespace}
    monkeypatch.setenv("AIRFLOW_CONN_NIGHT", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    monkeypatch.setenv("AIRFLOW__GANGJOBS__LINKS", documented_links())
    assert main(["why", "report", "fail", "--conn-id", "night"]) == 0
    shown = capsys.readouterr().out
    assert "\nRun: https://mlflow.example.com/#/experiments/1?searchFilter=tags.run='" in shown
    assert "'\nMetrics of rank 0: https://grafana.example.com/d/pods?var-pod=" in shown
    assert main(["list", "--conn-id", "night", "-o", "name"]) == 0
    assert len(capsys.readouterr().out.split()) == 4
    assert main(["list", "--conn-id", "nosuch"]) == 1
    # Airflow answers the same if its database cannot be read.
    assert "Airflow has no connection 'nosuch', or cannot read it: `airflow" in capsys.readouterr().err


def test_tidy_says_of_each_gang_without_an_installation_what_it_would_do_and_why(tonight: CliGangs) -> None:
    lines = re.sub(r"\d+ min", "N min", tonight.output("tidy", "--dry-run", "--older-than", "0s")).splitlines()[:-1]
    shown = dict(line.split(": ", 1) for line in lines)
    unknown = "would leave, because it is not known whether its task has ended"
    held = "would release, because the gang is over, its pods are held, and it ended N min ago"
    assert shown == {
        str(tonight.refs["train"]): f"{unknown} (running)",
        str(tonight.refs["big"]): f"{unknown} (assembling)",
        str(tonight.refs["fail"]): f"{held} (failed)",
        str(tonight.refs["load"]): f"{held} (succeeded)",
    }


# -- commands that change something ----------------------------------------------------------------------------------


@pytest.fixture
def gangs(embedded: SandboxThread) -> Iterator[CliGangs]:
    """A namespace for gangs that a test ends."""
    made = CliGangs(embedded)
    made.create_namespace()
    yield made
    made.delete_all()


def test_cancel_ends_the_gang_and_says_who_did_it(gangs: CliGangs) -> None:
    train = gangs.submit("train", "sleep 600")
    gangs.wait_for(train, Phase.RUNNING)
    assert (
        gangs.output("cancel", "etl", "train", "--reason", "wrong data")
        == f"{train} cancelled: its pods end, and its Job stays\n"
    )
    gangs.wait_for(train, Phase.FAILED)
    assert "has cancelled it with gangjobs (wrong data)" in gangs.output("why", "etl", "train")
    assert gangs.call("cancel", "etl", "train") == 1


def test_delete_removes_the_job(gangs: CliGangs) -> None:
    train = gangs.submit("train", "sleep 600")
    assert f"{train} deleted" in gangs.output("delete", train.name)
    gangs.run(lambda service: count_running(service.client, train))
    assert gangs.call("delete", "nosuch") == 4


def test_submit_under_an_id_follows_the_gang_to_its_end(gangs: CliGangs, tmp_path: Path) -> None:
    file = tmp_path / "gang.yaml"
    file.write_text("image: a\nworkers: 2\ncommand: [sh, -c, 'exit $RANK']\n")
    name = gangs.output("submit", str(file), "--id", "nightly", "-o", "name").strip()
    shown = gangs.output("submit", str(file), "--id", "nightly", "--wait", code=1)
    assert shown.startswith(f"Adopted gang {name} ")
    assert f"{name} failed rank 1 exited with code 1" in shown
    assert "rank 1 exited with code 1" in gangs.output("why", "nightly")


def test_gang_that_cannot_be_followed_has_not_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(requests, "REFUSED_FOR_S", 0.0)
    monkeypatch.setattr(follow, "SYNC_WITHIN_S", 1.0)
    file = tmp_path / "gang.yaml"
    file.write_text("image: a\ncommand: [sleep, '600']\n")
    with running(SandboxConfig(nodes=2)) as cluster:
        gangs = CliGangs(cluster, "default")
        assert gangs.call("submit", str(file), "--id", "nightly") == 0
        refuse(gangs, "GET", "/namespaces/default/pods", times=None)
        shown = gangs.error("submit", str(file), "--id", "nightly", "--wait", code=3)
    assert "403" in shown
    assert "Check the connection and the permissions of its service account" in shown


def test_job_in_a_file_is_submitted_as_it_is(gangs: CliGangs, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "a", "command": ["true"]}]}
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": {"spec": pod}}
    monkeypatch.setattr(sys, "stdin", StringIO(yaml.safe_dump({"apiVersion": "batch/v1", "kind": "Job", "spec": spec})))
    assert "succeeded" in gangs.output("submit", "-", "--id", "mine", "--wait").splitlines()[-1]


def test_submission_id_may_have_a_slash(gangs: CliGangs) -> None:
    spec = GangSpec(image="a", command=["true"], manifest=SUSPENDED_MANIFEST)
    ref = gangs.run(lambda service: service.submit(spec, submission_id="team/nightly")).ref
    refuse(gangs, "GET", "/namespaces/team/jobs")  # the rights are those of one namespace
    assert gangs.output("why", "team/nightly").startswith(f"{ref} ")
    assert gangs.call("why", str(ref)) == 0


@pytest.mark.parametrize("age", ["1", "1w", "-1h", ""])
@pytest.mark.parametrize("command", [["list", "--since"], ["tidy", "--older-than"]], ids="".join)
def test_invalid_age_is_refused(command: list[str], age: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb, option = command
    with pytest.raises(SystemExit) as end:
        main([verb, f"{option}={age}"])
    assert end.value.code == 2
    assert "is not an age such as 30m, 2h or 1d" in capsys.readouterr().err
    assert cli_gangs.parse_age("2h").total_seconds() == 7200


def submit_incompletely(gangs: CliGangs) -> GangRef:
    """Submit a gang in a process that dies after creating the Job."""

    async def submit_and_die(service: GangService) -> GangRef:
        key, spec = TaskKey("etl", "run1", "half"), GangSpec(image="a")
        discovered = await discover_for(service.client, spec, namespace=gangs.namespace)
        process = CrashingClient(service.client, Crash(1, applied=True))
        with pytest.raises(ProcessDied):
            await submit(process, spec, task_request(key, "x"), discovered=discovered, namespace=gangs.namespace)
        (job,) = await service.client.list(JOBS, gangs.namespace)
        return read_job(job).ref

    return gangs.run(submit_and_die)


def test_tidy_prints_its_actions(gangs: CliGangs, capsys: pytest.CaptureFixture[str]) -> None:
    half = submit_incompletely(gangs)
    assert f"{half}: would remove" in gangs.output("tidy", "--older-than", "0s", "--dry-run")
    assert main(["tidy", "-A", "--older-than", "0s", "--kubeconfig", str(gangs.sandbox.kubeconfig_path)]) == 0
    assert f"{half}: remove" in capsys.readouterr().out
    assert half.name not in gangs.output("tidy", "--older-than", "0s")


def test_tidy_that_lost_a_race_says_why_it_left_the_gang(gangs: CliGangs, monkeypatch: pytest.MonkeyPatch) -> None:
    half = submit_incompletely(gangs)

    async def has_changed(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr(submissions, "stop", has_changed)
    assert f"{half}: leave, because it has changed or was deleted in the meantime" in gangs.output(
        "tidy", "--older-than", "0s"
    )


def test_tidy_shows_the_decision_and_the_installation_of_each_gang(gangs: CliGangs) -> None:
    gang = gangs.submit("train", "true", manifest=SUSPENDED_MANIFEST, installation="prod")
    assert f"{gang} of installation prod: would leave, because" in gangs.output("tidy", "--dry-run")


def test_release_removes_every_finalizer(gangs: CliGangs) -> None:
    pod = {
        "metadata": {"name": "held", "finalizers": [FINALIZER_HARVEST]},
        "spec": {"containers": [{"name": "main", "image": "a"}], "schedulingGates": [{"name": "a/b"}]},
    }
    gangs.run(lambda service: service.client.create(PODS, pod, gangs.namespace))
    unset = ""  # as with a variable that is not set
    assert " 0 released" in gangs.output("release", "--gang", unset)
    assert " 1 released, 0 failed" in gangs.output("release")
    assert f"namespace {gangs.namespace} has neither a Job typo nor pods of such a Job" in gangs.error(
        "release", "--gang", "typo", code=4
    )
    stored = gangs.run(lambda service: service.client.get(PODS, "held", gangs.namespace))
    assert "finalizers" not in stored["metadata"]


def test_release_of_one_gang_needs_its_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "--gang", "a", "-A"]) == 1
    assert capsys.readouterr().err.startswith("gangjobs: --gang names a Job of one namespace")

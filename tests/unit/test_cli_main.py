"""The command line: fast help, clear errors, the environment variables of a wrapped command, and Roles."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import airflow_provider_gangjobs
from airflow_provider_gangjobs.cli import COMMANDS, output
from airflow_provider_gangjobs.cli import main as cli
from airflow_provider_gangjobs.cli.main import main
from gangjobs_sandbox import releases
from gangjobs_sandbox.cli.commands import RELEASES, variables

HEAVY = {"airflow", "rich", "httpx", "starlette", "uvicorn", "aiohttp", "kubernetes_asyncio", "asyncio", "msgspec"}


HELP = [
    ["--help"],
    ["sandbox", "--help"],
    ["sandbox", "up", "--help"],
    *([name, "--help"] for name in ("list", "show", "logs", "cancel", "submit", "tidy", "release")),
]


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_help_imports_nothing_heavy(arguments):
    program = f"""
import sys
from airflow_provider_gangjobs.cli.main import main
try:
    main({arguments})
except SystemExit as end:
    assert end.code == 0
print({HEAVY} & set(sys.modules))
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "set()"


def test_every_command_has_a_module():
    assert all(callable(command.load()) for command in COMMANDS)


def test_every_command_is_on_the_page():
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert [command.name for command in COMMANDS if f"`{command.name}" not in page] == []


ON_CALL = re.findall(r"`(gangjobs [^`]+)`", (Path(__file__).parents[2] / "docs" / "oncall.md").read_text())


@pytest.mark.parametrize("typed", [text for text in ON_CALL if text != "gangjobs.diagnoses"])
def test_command_of_the_page_on_call_has_valid_arguments(typed):
    words = [*shlex.split(typed)[1:], "--conn-id", "team", "-n", "ml"]
    assert callable(cli._parser(words[:1]).parse_args(words).run)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("gangjobs l", {"list", "logs", "leaks"}),
        ("gangjobs list --w", {"--waiting", "--watch"}),
        ("gangjobs why a -o y", {"yaml"}),
    ],
    ids=["a command", "an option", "a format"],
)
def test_shell_completes(typed, expected, tmp_path):
    """The variables are those of argcomplete's script for bash, which reads the answer from file descriptor 8."""
    answer = tmp_path / "answer"
    program = "from airflow_provider_gangjobs.cli.main import main; main()"
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": typed,
        "COMP_POINT": str(len(typed)),
    }
    subprocess.run([sys.executable, "-c", program], env=os.environ | variables, check=False, capture_output=True)
    assert {found.strip() for found in answer.read_text().split("\n")} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["sandbox", "up", "--kubernetes", "1.20"], "invalid choice: '1.20'"),
        (["sandbox", "up", "--nodes", "-1"], "-1 is less than 0"),
        (["sandbox", "up", "--port", "70000"], "70000 is not a port"),
    ],
    ids=["no command", "unknown command", "unknown release", "negative nodes", "port out of range"],
)
def test_invalid_arguments_exit_with_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sandbox", "run"], "gangjobs: no command is given. For example"),
        (["sandbox", "run", "--token-file", "/no/such", "--", "true"], "gangjobs: --token-file /no/such: No such file"),
        (["sandbox", "run", "--cpu", "many", "--", "true"], "gangjobs: cpu: 'many' is not a quantity"),
        (
            ["sandbox", "run", "--kubernetes", "none", "--workload-with-job", "--", "true"],
            "gangjobs: workload_with_job: 'none' does not have this feature gate",
        ),
    ],
    ids=["nothing to run", "no token file", "cpu is not a number", "gate without groups"],
)
def test_error_of_a_command_is_one_line(arguments, message, capsys):
    assert cli.main(arguments) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(message)
    assert shown.count("\n") == 1


@pytest.mark.parametrize(("no_color", "expected"), [("", True), ("1", False)], ids=["empty", "set"])
def test_terminal_has_colours_unless_no_color_is_set(no_color, expected, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    assert output.has_colours.__wrapped__() is expected


@pytest.mark.parametrize(
    ("redirected", "message"),
    [
        (">/dev/full", "gangjobs: the output cannot be written: No space left on device\n"),
        (">&-", "gangjobs: standard output is closed. Redirect it to /dev/null\n"),
    ],
    ids=["full disk", "closed"],
)
def test_output_that_cannot_be_written_is_one_line(redirected, message):
    program = """
import argparse
from airflow_provider_gangjobs.cli.main import execute
from airflow_provider_gangjobs.cli.output import write_lines
exit(execute(argparse.Namespace(run=lambda _: write_lines(["a"]) or 0)))
"""
    ended = subprocess.run(
        ["sh", "-c", f'"$@" {redirected}', "sh", sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (1, message)


@pytest.mark.parametrize("written", ["print('a')", "write_lines(['a'])"])
def test_reader_that_has_gone_is_no_error(written):
    program = f"""
import argparse
from airflow_provider_gangjobs.cli.main import execute
from airflow_provider_gangjobs.cli.output import write_lines
exit(execute(argparse.Namespace(run=lambda _: {written} or 0)))
"""
    reader, writer = os.pipe()
    os.close(reader)
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, env=environment, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_every_release_of_the_sandbox_can_be_chosen():
    assert tuple(releases.RELEASES) == RELEASES


def test_wrapped_command_has_the_cluster_in_its_environment():
    environment = variables(Path("/somewhere/kubeconfig"))
    assert environment["KUBECONFIG"] == "/somewhere/kubeconfig"
    assert json.loads(environment["AIRFLOW_CONN_KUBERNETES_DEFAULT"]) == {
        "conn_type": "kubernetes",
        "extra": {"kube_config_path": "/somewhere/kubeconfig"},
    }


# -- `gangjobs rbac` prints the Roles of the package, and bindings to the ServiceAccounts that are named -------------

FILES = {path.stem: path for path in (Path(airflow_provider_gangjobs.__file__).parent / "rbac").glob("*.yaml")}
OPTIONS = sorted(f"--{name.removeprefix('rbac-')}" for name in FILES if name != "rbac")


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def test_role_of_workers_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rbac"]) == 0
    assert capsys.readouterr().out == FILES["rbac"].read_text()


def test_every_role_has_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    main(["rbac", *OPTIONS])
    printed = documents(capsys.readouterr().out)
    assert sorted(map(str, printed)) == sorted(
        map(str, (d for path in FILES.values() for d in documents(path.read_text())))
    )


def test_each_role_is_bound_to_each_account(capsys: pytest.CaptureFixture[str]) -> None:
    main(["rbac", "--kueue", "--service-account", "airflow:worker", "--service-account", "airflow:triggerer"])
    printed = documents(capsys.readouterr().out)
    roles = {(d["kind"], d["metadata"]["name"]) for d in printed if not d["kind"].endswith("Binding")}
    bindings = [d for d in printed if d["kind"].endswith("Binding")]
    assert {(b["roleRef"]["kind"], b["roleRef"]["name"]) for b in bindings} == roles
    assert [b["kind"] == f"{b['roleRef']['kind']}Binding" for b in bindings] == [True] * len(roles)
    assert {tuple((s["namespace"], s["name"]) for s in b["subjects"]) for b in bindings} == {
        (("airflow", "worker"), ("airflow", "triggerer"))
    }


@pytest.mark.parametrize("account", ["worker", ":worker", "airflow:"])
def test_account_without_namespace_is_refused(account: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rbac", "--service-account", account])
    assert "is no NAMESPACE:NAME" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "10m"])
def test_doctor_takes_a_number_of_seconds(seconds, capsys):
    with pytest.raises(SystemExit):
        main(["doctor", "--assemble-timeout", seconds])
    assert f"{seconds!r} is not a number of seconds" in capsys.readouterr().err

"""Exec plugins: real programs that print credentials, fail, hang, or print something else."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.auth.credentials import Credentials, load_access
from airflow_provider_gangjobs.cluster.auth.exec_plugin import (
    _KNOWN_WORDS,
    OUTPUT_BYTES_MAX,
    known_words,
    parse_timestamp,
)
from airflow_provider_gangjobs.cluster.errors import CredentialsFailed, InvalidConnection
from tests.sandbox.node_processes import processes_with
from tests.timeouts import poll
from tests.unit.credential_sources import V1, Plugin
from tests.unit.fault_server import SECRET
from tests.unit.virtual_sleep import VirtualSleep

if TYPE_CHECKING:
    from pathlib import Path


OPAQUE = "2YotnFZFEjr1zCsicMWpAA"
"""A token in the form of RFC 6749. The kubeconfig does not contain it."""


def timestamp(in_s: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=in_s)).isoformat()


# -- what a plugin receives ------------------------------------------------------------------------------------


def info(directory: Path, **fields: Any) -> dict[str, Any]:
    """Return the KUBERNETES_EXEC_INFO of a plugin."""
    plugin = Plugin(
        directory,
        f"open({str(directory / 'info')!r}, 'w').write(os.environ['KUBERNETES_EXEC_INFO'])\nanswer(token='t')",
    )
    plugin.load(**fields)
    found: dict[str, Any] = json.loads((directory / "info").read_text())
    return found


def test_plugin_knows_that_there_is_no_terminal(tmp_path: Path) -> None:
    assert info(tmp_path) == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}


def test_plugin_knows_the_cluster_if_the_kubeconfig_sets_provide_cluster_info(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"CA")
    cluster = {
        "certificate-authority": str(tmp_path / "ca.crt"),
        "tls-server-name": "api",
        "proxy-url": "http://proxy:3128",
        "insecure-skip-tls-verify": True,
        "extensions": [
            {"name": "other", "extension": 1},
            {"name": "client.authentication.k8s.io/exec", "extension": {"a": 1}},
        ],
    }
    assert info(tmp_path, cluster=cluster, provideClusterInfo=True)["spec"]["cluster"] == {
        "server": "http://here",
        "certificate-authority-data": "Q0E=",
        "tls-server-name": "api",
        "proxy-url": "http://proxy:3128",
        "insecure-skip-tls-verify": True,
        "config": {"a": 1},
    }


def test_standard_input_of_a_plugin_is_empty(tmp_path: Path) -> None:
    assert Plugin(tmp_path, "answer(token='got' + sys.stdin.read())").load().authorization == "Bearer got"


def test_variables_of_the_kubeconfig_override_the_environment_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_PROCESS", "a")
    monkeypatch.setenv("FROM_BOTH", "b")
    plugin = Plugin(tmp_path, "answer(token=os.environ['FROM_PROCESS'] + os.environ['FROM_BOTH'])")
    assert plugin.load(env=[{"name": "FROM_BOTH", "value": "c"}]).authorization == "Bearer ac"


def test_plugin_is_found_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin(tmp_path, "answer(token='t')")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert plugin.load(command="plugin").authorization == "Bearer t"


def test_plugin_may_print_a_certificate_instead_of_a_token(tmp_path: Path) -> None:
    credentials = Plugin(tmp_path, "answer(clientCertificateData='C', clientKeyData='K')").load()
    assert (credentials.authorization, credentials.tls.certificate, credentials.tls.key) == (None, b"C", b"K")


async def test_plugin_does_not_block_the_event_loop(tmp_path: Path) -> None:
    go = tmp_path / "go"
    plugin = Plugin(tmp_path, f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\nanswer(token='t')")
    loading = asyncio.create_task(Credentials(plugin.config()).current())
    await asyncio.sleep(0.01)
    assert not loading.done()
    go.touch()
    assert (await loading).authorization == "Bearer t"


# -- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit(3)", "failed with exit code 3"),
        ("sys.stderr.write('no login'); sys.exit(1)", "failed with exit code 1: no login"),
        (f"sys.stderr.write('token {SECRET}'); sys.exit(1)", r"exit code 1: token \.\.\."),
        (f"sys.stderr.write('{OPAQUE}'); sys.exit(1)", "failed with exit code 1. Words that could be a secret"),
        (
            f"sys.stderr.write('error: login with {OPAQUE} failed: 401 Unauthorized\\n'); sys.exit(1)",
            r"exit code 1: error: login with \.\.\. failed: 401 Unauthorized\. Words that .* run the plugin on this",
        ),
        (f"print('{SECRET}')", "it is not JSON"),
        ("pass", "it is not JSON"),
        ("sys.stdout.buffer.write(bytes(range(256)))", "it is not JSON"),
        ("print('[' * 100000)", "it is not JSON"),
        (f"print(json.dumps(['{SECRET}']))", "its kind is not ExecCredential"),
        ("print(json.dumps({'kind': 'ExecCredential', 'apiVersion': 'v2'}))", f"its apiVersion is not {V1}"),
        (f"print(json.dumps({{'kind': 'ExecCredential', 'apiVersion': '{V1}'}}))", "it has no status"),
        ("answer()", "status.token and status.clientCertificateData are not set"),
        (f"answer(token=['{SECRET}'])", "a field of its status is not a string"),
        (f"answer(token='a\\n{SECRET}')", "the token contains a character that a header cannot contain"),
        (f"answer(clientKeyData='{SECRET}')", "only one of status.clientCertificateData and status.clientKeyData"),
        ("answer(token='t', expirationTimestamp='tomorrow')", "expirationTimestamp is not an RFC 3339 time"),
    ],
)
def test_answer_that_cannot_be_used_is_explained_without_secrets(tmp_path: Path, body: str, message: str) -> None:
    plugin = Plugin(tmp_path, body)
    with pytest.raises(CredentialsFailed, match=message) as caught:
        plugin.load(env=[{"name": "PASSWORD", "value": SECRET}])
    assert SECRET not in str(caught.value)
    assert OPAQUE not in str(caught.value)


REAL_MESSAGES = {
    "aws": (
        "An error occurred (ExpiredTokenException) when calling the GetCallerToken operation: The token is expired",
        "An error occurred (ExpiredTokenException) when calling the GetCallerToken operation: The token is expired",
    ),
    "aws without credentials": (
        'Unable to locate credentials. You can configure credentials by running "aws login".',
        'Unable to locate credentials. You can configure credentials by running "aws login".',
    ),
    "az": ("ERROR: Please run 'az login' to setup account.", "ERROR: Please run 'az login' to setup account."),
    "gcloud": (
        "ERROR: (gcloud.config.config-helper) You do not currently have an active account selected.",
        "ERROR: ... You do not ... have an ... account ...",
    ),
    "a token in a URL": ("get https://sts/?token=abcdef: 403 Forbidden", "get ... 403 Forbidden"),
    "a token of letters": ("token hunter refused", "token ... refused"),
    "a token in pieces": ("token\nqwertz\nuiop\nrefused", "token ... refused"),
}


@pytest.mark.parametrize(("message", "shown"), REAL_MESSAGES.values(), ids=REAL_MESSAGES)
def test_words_that_explain_a_failure_are_shown(message: str, shown: str) -> None:
    assert known_words(message) == shown


@given(st.text())
def test_word_that_is_not_known_is_never_shown(text: str) -> None:
    shown = known_words(f"error {text} failed").split()
    assert {word.strip("\"'`()[]<>,.:;!?").lower() for word in shown} <= {*_KNOWN_WORDS, ""}


def test_plugin_with_endless_output_is_killed(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, "while True: sys.stdout.write('x' * 65536)")
    with pytest.raises(CredentialsFailed, match=f"printed more than {OUTPUT_BYTES_MAX} bytes"):
        plugin.load()
    poll(lambda: not processes_with(str(tmp_path)))


def test_plugin_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    body = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 600; true', {str(tmp_path)!r}])"
    config = Plugin(tmp_path, body).config()
    with pytest.raises(CredentialsFailed, match="did not answer within 1 s"):
        load_access(config, timeout_s=1)
    poll(lambda: not processes_with(str(tmp_path)))


def test_plugin_that_has_left_its_process_group_is_killed(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    body = f"os.setpgid(0, os.getpgid(os.getppid())); time.sleep(10); open({str(ended)!r}, 'w')"
    config = Plugin(tmp_path, body).config()
    with pytest.raises(CredentialsFailed, match="did not answer within 1 s"):
        load_access(config, timeout_s=1)
    poll(lambda: not processes_with(str(tmp_path)))
    assert not ended.exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"command": "/nowhere/plugin"},
            "command names the program /nowhere/plugin, which cannot be run: No such file",
        ),
        ({"command": "/"}, "command names the program /, which cannot be run: Permission denied"),
        ({"command": "none", "installHint": "Run apt-get."}, "Install the program on workers and triggerers.*apt-get"),
        ({"command": None}, "command is not set"),
        ({"apiVersion": "v1"}, "apiVersion is not supported. Set it to client.authentication.k8s.io/v1"),
        ({"interactiveMode": "Always"}, "interactiveMode is Always, but a task has no terminal"),
        ({"args": ["\0"]}, "args or env contains a character"),
        ({"args": "x"}, "args is not a list"),
        ({"env": [{"name": "A"}]}, r"env\[0\].value is not a string"),
        ({"env": [{"name": "A=B", "value": "x"}]}, "args or env contains a character"),
    ],
    ids=str,
)
def test_plugin_that_cannot_be_started_is_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConnection, match=message):
        Plugin(tmp_path, "").load(**fields)


# -- how often a plugin runs -----------------------------------------------------------------------------------


async def test_many_gangs_share_one_failure(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, "sys.exit('no login')")
    credentials = Credentials(plugin.config())
    results = await asyncio.gather(*(credentials.current() for _ in range(50)), return_exceptions=True)
    assert {type(result) for result in results} == {CredentialsFailed}
    assert plugin.runs == 1


async def test_caller_that_is_cancelled_does_not_start_another_run(tmp_path: Path) -> None:
    go = tmp_path / "go"
    plugin = Plugin(tmp_path, f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\nanswer(token='t')")
    credentials = Credentials(plugin.config())
    first, second = (asyncio.create_task(credentials.current()) for _ in range(2))
    while plugin.runs == 0:  # noqa: ASYNC110 - the plugin is another process
        await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait([first])
    go.touch()
    assert ((await second).authorization, plugin.runs) == ("Bearer t", 1)


async def test_plugin_runs_once_for_each_expiry(tmp_path: Path) -> None:
    now, plugin = VirtualSleep(), Plugin(tmp_path, f"answer(token='t', expirationTimestamp='{timestamp(3600)}')")
    credentials = Credentials(plugin.config(), clock=now.clock)
    runs = []
    for now.now in (0, 3000, 3290, 3301, 6000, 6590, 6601):
        await credentials.current()
        runs.append(plugin.runs)
    assert runs == [1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("expiry", "low_s", "high_s"),
    [("2999-01-01T00:00:00Z", 1e9, 1e11), ("2001-01-01T00:00:00Z", 1.0, 1.0)],
    ids=["far", "past"],
)
def test_token_is_renewed_before_it_expires(tmp_path: Path, expiry: str, low_s: float, high_s: float) -> None:
    renew_in_s = Plugin(tmp_path, f"answer(token='t', expirationTimestamp='{expiry}')").load().renew_in_s
    assert renew_in_s is not None
    assert low_s <= renew_in_s <= high_s


async def test_token_without_expiry_is_kept_until_the_server_refuses_it(tmp_path: Path) -> None:
    now, plugin = VirtualSleep(), Plugin(tmp_path, "answer(token='t')")
    credentials = Credentials(plugin.config(), clock=now.clock)
    for now.now in (0, 10_000_000):
        access = await credentials.current()
    assert plugin.runs == 1
    await credentials.renew(access)
    assert plugin.runs == 2


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02t03:04:05z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
        ("2026-01-02T05:04:05+02:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02 03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ],
)
def test_expiry_is_an_rfc_3339_time(text: str, moment: datetime) -> None:
    assert parse_timestamp(text) == moment

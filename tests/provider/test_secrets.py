"""A secret that Airflow masks in a worker is masked in the triggerer, whose masker never saw it.

A worker and each triggerer are processes of their own, and so are their maskers: the tests empty the masker between.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import pytest
from airflow.sdk._shared.secrets_masker import mask_secret, reset_secrets_masker
from kubernetes.client import models as k8s

from airflow_provider_gangjobs.airflow_api.task_log import find_secrets
from airflow_provider_gangjobs.attempt.triggerer import log_streaming
from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.exceptions import AppFailed
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.jobs.gang_secrets import HIDDEN, SecretMask
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_SECRETS
from airflow_provider_gangjobs.plugins.caches import ListCache, SnapshotCache
from airflow_provider_gangjobs.plugins.clusters import ListSource
from airflow_provider_gangjobs.plugins.locator import TaskRecord, locate
from gangjobs_sandbox.resources import CONFIGMAPS
from tests.provider.rest_client import RestClient
from tests.provider.task_runner import run_serialized_trigger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.task_runner import Task, TaskMaker

SECRET: Final = 'p@ss/w0rd"of\\it'
"""A URI and JSON quote some of its characters."""
PLAIN: Final = "plain-secret-77"
PRINT: Final = (
    'printf "%s\\n" "$TEXT"; sleep 2; printf "late %s\\n" "$TEXT"; printf "ValueError: %s" "$TEXT" >&2; exit $CODE'
)
IN_FILE: Final = (
    "cat $GANG_FILES/settings; sleep 2; echo; cat $GANG_FILES/settings; cat $GANG_FILES/settings >&2; exit $CODE"
)


def variable(text: str) -> dict[str, Any]:
    return {"script": PRINT, "env": {"TEXT": text}}


SHAPES: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "dict": variable,
    "list": lambda text: {"script": PRINT, "env": [{"name": "TEXT", "value": text}]},
    "V1EnvVar": lambda text: {"script": PRINT, "env": [k8s.V1EnvVar(name="TEXT", value=text)]},
    "args": lambda text: {"script": PRINT.replace("$TEXT", "$0"), "args": [text]},
    "part of an argument": lambda text: {"script": PRINT.replace("$TEXT", "$0"), "args": [f"--password={text} --x"]},
    "file": lambda text: {"script": IN_FILE, "files": {"settings": f"password: {text}\n"}},
    "file of bytes": lambda text: {"script": IN_FILE, "files": {"settings": f"é: {text}".encode()}},
}
PARTS: Final = {
    "WHOLE": PLAIN,
    "JSON": str({"token": PLAIN, "user": "x"}),  # of var.json
    "URI": f"postgres://u:{PLAIN}@host/db",
    "SEVERAL": f"{PLAIN}{PLAIN}***other-secret-88",
}
QUOTED: Final = {
    "URL": f"https://u:{quote(SECRET, safe='')}@host",
    "EXTRA": json.dumps({"extra": {"password": SECRET}}),
}
READ_QUOTED: Final = """python3 -c '
import json, os, sys, time, urllib.parse
for secret in (json.loads(os.environ["EXTRA"])["extra"]["password"], urllib.parse.unquote(os.environ["URL"])):
    print(secret, flush=True)
    print(secret, file=sys.stderr)
' && sleep 2 && exit $CODE"""


@pytest.fixture(autouse=True)
def masker() -> Iterator[None]:
    """No secret of another test is known."""
    reset_secrets_masker()
    yield
    reset_secrets_masker()


def worker_knows(*secrets: str) -> None:
    for secret in secrets or (PLAIN, SECRET, "other-secret-88"):
        mask_secret(secret)


class Deferred(NamedTuple):
    """A task that a worker has deferred, with its trigger as Airflow stores it."""

    task: Task
    context: Any
    path: str
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, one: Task, *secrets: str) -> Deferred:
        worker_knows(*secrets)
        context = one.next_try()
        path, kwargs = one.defer(context).trigger.serialize()
        return cls(one, context, path, json.loads(json.dumps(kwargs)))

    def run_trigger(self, capsys: pytest.CaptureFixture[str], **kwargs: Any) -> tuple[dict[str, Any], str]:
        """Run the trigger in a new triggerer, and return its event and its log."""
        reset_secrets_masker()
        capsys.readouterr()
        event = run_serialized_trigger(self.path, {**self.kwargs, **kwargs})
        return event, capsys.readouterr().out

    def end(self, event: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
        """Resume the task in a worker, and return the text of its error, and its log."""
        worker_knows()
        with pytest.raises(AppFailed) as failed:
            self.task.operator().execute_complete(self.context, event)
        return str(failed.value), capsys.readouterr().out


def deferred(task: TaskMaker, script: str, *, code: int = 0, **given: Any) -> Deferred:
    """Defer a task in a worker."""
    script = script.replace("$CODE", str(code))
    return Deferred.of(task(script, **{"deferrable": True, "logs": "all", "workers": 1, **given}))


async def readers_see(one: Task) -> list[Any]:
    """Return what people see of the latest gang of a task: by REST, in the tab, and on the page of all gangs."""
    job = max(one.jobs, key=lambda job: job["metadata"]["creationTimestamp"])
    ref = {name: job["metadata"][name] for name in ("namespace", "name", "uid")}
    key = TaskKey("d", one.run_id, "train")
    record = TaskRecord(key, "deferred", rendered={"kubernetes_conn_id": one.connection}, gang=ref)
    rest, snapshots, lists = RestClient(one.connection, record=record), SnapshotCache(), ListCache()
    locator = locate(record)
    assert locator is not None
    result = await snapshots.get(locator)
    listed = await lists.get(ListSource(one.connection, ref["namespace"]), "")
    await snapshots.clients.aclose()
    await lists.clients.aclose()
    assert result.snapshot is not None
    tab = result.view(locator, datetime.now(UTC))
    return [(await rest.get_gang(logs="all")).json(), (await rest.get_gang(rank=0)).json(), repr(tab), listed]


def terminal_shows(one: Task, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what the command line prints about the latest gang of a task, by command."""
    assert one.cluster is not None
    name = max(one.jobs, key=lambda job: job["metadata"]["creationTimestamp"])["metadata"]["name"]
    capsys.readouterr()
    shown = {}
    for command in ("why", "show", "show -o json", "logs --all", "logs --all -f", "logs --rank 0", "list -o wide"):
        verb, *options = command.split()
        gang = [] if verb == "list" else [name]
        code = main([verb, *gang, *options, "-n", "default", "--kubeconfig", str(one.cluster.kubeconfig_path)])
        captured = capsys.readouterr()
        shown[command] = f"{code}: {captured.out}{captured.err}"
    return shown


def has_no_secret(*shown: object) -> bool:
    text = json.dumps([str(each) for each in shown], ensure_ascii=False)
    forms = (PLAIN, SECRET, quote(SECRET, safe=""), json.dumps(SECRET)[1:-1], "other-secret-88")
    return not any(form in text or json.dumps(form)[1:-1] in text for form in forms)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_secret_is_masked_wherever_the_gang_has_it(
    task: TaskMaker, capsys: pytest.CaptureFixture[str], shape: Callable[[str], dict[str, Any]]
) -> None:
    one = deferred(task, **shape(PLAIN), code=3)

    event, log = one.run_trigger(capsys)
    again = one.run_trigger(capsys)  # after a restart of the triggerer
    seen, printed = asyncio.run(readers_see(one.task)), terminal_shows(one.task, capsys)
    error, copied = one.end(event, capsys)

    assert has_no_secret(one.kwargs, event, log, again, error, copied, one.task.xcoms)
    assert has_no_secret(seen, printed)
    assert all("***" in json.dumps(each) for each in seen[:2])
    assert "***" in str(seen[2])
    without = {command for command, text in printed.items() if "***" not in text}
    assert without - {"list -o wide"} == ({"why"} if "files" in shape(PLAIN) else set())
    assert ((log + copied).count("***") > 1, "***" in json.dumps(event), "***" in error) == (True, True, True)


@pytest.mark.parametrize(
    ("script", "env"),
    [("env; sleep 2; env; env >&2; exit $CODE", PARTS), (READ_QUOTED, QUOTED)],
    ids=["plain", "quoted"],
)
def test_secret_is_masked_that_is_a_part_of_a_text(
    task: TaskMaker, capsys: pytest.CaptureFixture[str], script: str, env: dict[str, str]
) -> None:
    """A program may also read a secret from a text in which it is quoted."""
    one = deferred(task, script, code=3, env=env)

    event, log = one.run_trigger(capsys)
    seen, printed = asyncio.run(readers_see(one.task)), terminal_shows(one.task, capsys)
    error, copied = one.end(event, capsys)

    assert has_no_secret(one.kwargs, event, log, error, copied, one.task.xcoms, seen, printed)
    assert "***" in error


def test_adopted_gang_keeps_its_secrets(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    adopted = Deferred.of(deferred(task, **variable(PLAIN), code=3).task)

    event, log = adopted.run_trigger(capsys)

    assert has_no_secret(adopted.kwargs, event, log)
    assert len(adopted.task.jobs) == 1
    assert "***" in log


def test_places_stay_when_a_variable_changes(task: TaskMaker) -> None:
    one = deferred(task, **variable(PLAIN)).task
    before = one.jobs[0]["metadata"]

    reset_secrets_masker()
    Deferred.of(one, "another-value-1")

    assert one.jobs[0]["metadata"]["annotations"][ANNOTATION_SECRETS] == before["annotations"][ANNOTATION_SECRETS]
    assert PLAIN not in before["annotations"][ANNOTATION_SECRETS]


@pytest.fixture
def streamed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream the logs of programs that run for a moment only."""
    monkeypatch.setattr(log_streaming, "STREAM_AFTER_S", 0.0)


@pytest.mark.usefixtures("streamed_at_once")
def test_gang_with_roles_has_secrets_in_each_of_its_jobs(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    roles = {
        name: {"image": "i", "command": ["sh", "-c", f"echo $TEXT; sleep 2; exit {code}"], "env": {"TEXT": secret}}
        for name, secret, code in (("driver", "driver-secret-1", 0), ("worker", PLAIN, 3))
    }
    given = {"image": None, "command": None, "workers": None, "resources": None, "roles": roles}
    one = Deferred.of(task("", **given, deferrable=True, logs="all", stream_logs=[0, 1]), PLAIN, "driver-secret-1")

    _, log = one.run_trigger(capsys)

    assert has_no_secret(one.kwargs, log)
    shown = f"{one.kwargs}{log}{asyncio.run(readers_see(one.task))}{terminal_shows(one.task, capsys)}"
    assert has_no_secret(shown)
    assert "driver-secret-1" not in shown
    assert log.count("***") > 1


def test_gang_without_secrets_costs_no_request_and_no_argument(task: TaskMaker) -> None:
    one = deferred(task, **variable("public"))
    assert "secrets" not in one.kwargs
    assert ANNOTATION_SECRETS not in one.task.jobs[0]["metadata"]["annotations"]


def test_gang_whose_secrets_cannot_be_read_is_shown_by_a_worker_only(
    task: TaskMaker, embedded: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    one = deferred(task, **SHAPES["file"](PLAIN), code=3)
    (job,) = one.task.jobs
    embedded.call(lambda it: it.registry.delete(CONFIGMAPS, f"{job['metadata']['name']}-files", "default"))

    event, log = one.run_trigger(capsys)

    assert has_no_secret(event, log)
    assert HIDDEN in event["message"]
    assert "[rank 0]" not in log
    assert "are not known here" in log
    seen, printed = asyncio.run(readers_see(one.task)), terminal_shows(one.task, capsys)
    assert has_no_secret(seen, printed)
    assert HIDDEN in seen[0]["logs"][0]["text"]
    assert printed["logs --all"].startswith("1: ")
    assert HIDDEN in printed["logs --all"]


def test_trigger_whose_worker_did_not_know_the_places_shows_nothing(
    task: TaskMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    event, log = deferred(task, **variable(PLAIN), code=3).run_trigger(capsys, secrets=None)

    assert has_no_secret(event, log)
    assert (event["message"], "[rank 0]" in log) == (HIDDEN, False)


@pytest.mark.parametrize("text", ["no secret", f"{PLAIN}", f"a{PLAIN}{PLAIN}***b", f"*** {PLAIN}"])
def test_places_of_secrets_are_exact(text: str) -> None:
    worker_knows()
    places = find_secrets(text)
    assert [text[start:end] for start, end in places] == [PLAIN] * text.count(PLAIN)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_secret_is_masked_across_the_chunks_of_a_log(size: int) -> None:
    """The chunks of a log end anywhere, also in a secret, and a secret may begin as another one does."""
    mask = SecretMask(("begin-middle", "middle-end", "begin", "two\nlines", "abcd"))
    text = b"begin-middle-end begin-begin-middleend two\nlines two\n abcd beg"

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(text), size):
            yield text[at : at + size]

    masked = b"".join([chunk async for chunk in mask.chunks(chunks())])

    assert masked == mask(text.decode()).encode() == b"***-end ***-***end *** two\n abcd beg"


@pytest.mark.usefixtures("streamed_at_once")
def test_lines_of_a_key_are_masked_one_by_one(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    """A program may write a key line by line, and the last lines of a log may begin in a key."""
    lines = [f"key-line-{number:02}-of-a-private-key" for number in range(12)]
    key = "\n".join(["-----BEGIN KEY-----", *lines, "-----END KEY-----"])
    slowly = 'printf "%s\\n" "$KEY" | while read line; do echo "$line"; sleep 0.1; done; echo done; exit 3'
    worker_knows(key)

    one = Deferred.of(
        task(slowly, deferrable=True, logs="all", stream_logs=True, workers=1, env={"KEY": key}),
        key,
    )
    event, log = one.run_trigger(capsys)
    seen, printed = asyncio.run(readers_see(one.task)), terminal_shows(one.task, capsys)

    assert "[rank 0] done" in log
    assert "of-a-private-key" not in json.dumps([event, log, seen, printed], default=str)

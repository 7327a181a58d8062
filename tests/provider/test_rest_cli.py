"""`gangjobs submit --server`, against the REST interface over HTTP."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import uvicorn
import yaml
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from airflow_provider_gangjobs.cli import submit as cli_rest
from airflow_provider_gangjobs.cli.main import main
from scripts.ports import free_port
from tests.cluster.certificates import write_certificate
from tests.provider.rest_client import RestClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.middleware.base import RequestResponseEndpoint

CLIENT = Path(__file__).parents[2] / "docs" / "samples" / "rest_client.py"
SPEC = {"image": "i", "command": ["true"], "workers": 2, "resources": {"cpu": "100m"}, "files": {"a": b"\x00\xff"}}


@pytest.fixture
def rest(connection: str, monkeypatch: pytest.MonkeyPatch) -> RestClient:
    monkeypatch.setenv("AIRFLOW__GANGJOBS__REST_WRITE_CONNECTIONS", connection)
    monkeypatch.setenv("GANGJOBS_TOKEN", "t")
    monkeypatch.setattr(cli_rest, "POLL_S", 0.1)
    return RestClient(connection)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gang.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    return path


@asynccontextmanager
async def airflow(rest: RestClient, tls: Path | None = None, answers: Sequence[int] = ()) -> AsyncIterator[str]:
    """Serve the interface at its address in Airflow. Yield the URL of Airflow.

    :param tls: The folder of a certificate and its key; `None` for plain HTTP.
    :param answers: The statuses of the first GETs, as a proxy answers them.
    """
    statuses = iter(answers)
    certificate = {} if tls is None else {"ssl_certfile": str(tls / "tls.crt"), "ssl_keyfile": str(tls / "tls.key")}
    async with rest.running() as app:
        whole = FastAPI()
        whole.mount("/gangjobs/api/v1", app)
        whole.add_api_route("/moved/{path:path}", lambda: RedirectResponse("http://127.0.0.1:1/"), methods=["PUT"])

        @whole.middleware("http")
        async def answer(request: Request, call_next: RequestResponseEndpoint) -> Response:
            status = next(statuses, None) if request.method == "GET" else None
            return Response(status_code=status) if status is not None else await call_next(request)

        port = free_port()
        server = uvicorn.Server(
            uvicorn.Config(whole, port=port, log_config=None, lifespan="off", ws="none", **certificate)
        )
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        try:
            yield f"http{'s' * (tls is not None)}://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def serving(body: bytes, status: int, headers: dict[str, str] | None = None) -> AsyncIterator[str]:
    """Answer each PUT alike. Yield the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        lines = [f"HTTP/1.1 {status} A", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@dataclass
class Terminal:
    """A terminal in which a file with a gang is submitted."""

    rest: RestClient
    file: Path
    capsys: pytest.CaptureFixture[str]
    id: str = field(default_factory=lambda: f"by rest {uuid4().hex}")

    async def submit(self, server: str, *options: str) -> int:
        """Run the command, and return its exit code."""
        where = ["--id", self.id, "--conn-id", self.rest.conn_id, "-n", "default", "--server", server]
        return await asyncio.to_thread(main, ["submit", str(self.file), *where, *options])

    @property
    def errors(self) -> list[str]:
        return self.capsys.readouterr().err.splitlines()


@pytest.fixture
def terminal(rest: RestClient, file: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(rest, file, capsys)


async def test_gang_is_submitted_once_and_awaited(terminal: Terminal) -> None:
    async with airflow(terminal.rest) as url:
        first = await terminal.submit(url)
        again = await terminal.submit(f"{url}/", "--wait")

    assert (first, again) == (0, 0)
    shown = terminal.capsys.readouterr().out.splitlines()  # among lines of the log, which begin with a date
    created, adopted, ended = (line for line in shown if not line[:1].isdecimal())
    assert created.startswith("Created gang default/by-rest-")
    assert adopted.startswith("Adopted gang default/by-rest-")
    assert ended.endswith(" succeeded All 2 ranks succeeded.")


async def test_wait_outlives_a_restart_of_airflow(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    async with airflow(terminal.rest, answers=[503, 502, 429]) as url:
        assert await terminal.submit(url, "--wait") == 0
    monkeypatch.setattr(cli_rest, "UNANSWERED_FOR_S", 0.2)
    async with airflow(terminal.rest, answers=[503] * 1000) as url:
        assert await terminal.submit(url, "--wait") == 3  # unlike that of a gang that has failed
    assert "Airflow answered 503" in terminal.errors[-1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [(401, "Airflow answered 401"), (200, "whether a proxy asks for a login")],
    ids=["the token has expired", "the answer is another document"],
)
async def test_wait_for_a_gang_that_may_run_on_does_not_tell_its_end(
    terminal: Terminal, answer: int, message: str
) -> None:
    async with airflow(terminal.rest, answers=[answer]) as url:
        assert await terminal.submit(url, "--wait") == 3
    assert message in terminal.errors[-1]


async def test_documented_client_works(
    rest: RestClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = CLIENT.read_text().replace("/gpu/namespaces/batch", f"/{rest.conn_id}/namespaces/default")
    program = program.replace("nightly", "documented-client")  # other tests submit to this namespace, too
    async with airflow(rest) as url:
        monkeypatch.setenv("AIRFLOW_URL", url)
        await asyncio.to_thread(exec, program.replace("sleep(5)", "sleep(0.1)"), {})

    assert "succeeded All 2 ranks succeeded. {}\n" in capsys.readouterr().out
    assert (await rest.get("documented-client")).status_code == 404


async def test_server_is_trusted_by_the_certificates_of_the_system(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = write_certificate(tmp_path, "airflow").decode()

    def load(context: ssl.SSLContext, *_: object) -> None:
        context.load_verify_locations(cadata=authority)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)
    async with airflow(terminal.rest, tmp_path) as url:
        assert await terminal.submit(url) == 0


async def test_proxy_that_cannot_be_used_is_named(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    assert await terminal.submit("http://a") == 3
    assert "SOCKS proxy" in terminal.errors[-1]


async def test_refusals_are_one_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.file.write_text("image: a\nwokers: 2\n")
    async with airflow(terminal.rest) as url:
        refused = await terminal.submit(url)
        terminal.file.write_text("image: a\n")
        forbidden = await terminal.submit(url, "-n", "other")
        moved = await terminal.submit(f"{url}/moved")
    silent = await terminal.submit(f"http://127.0.0.1:{free_port()}")
    nowhere = await terminal.submit("http://a", "-n", "")
    monkeypatch.delenv("GANGJOBS_TOKEN")
    unknown = await terminal.submit("http://a")

    assert (refused, forbidden, moved, silent, nowhere, unknown) == (1, 1, 1, 3, 1, 1)
    lines = terminal.errors
    expected = (
        "wokers: is no parameter of a GangSpec. Did you mean workers?",
        "does not name 'embedded/other'",
        "Airflow answered 307",
        "Airflow did not answer",
        "--server needs --conn-id, the connection of that Airflow, and -n, the namespace",
        "Set GANGJOBS_TOKEN to a token of Airflow",
    )
    assert len(lines) == len(expected)
    assert all(text in line for text, line in zip(expected, lines, strict=True))


UNUSABLE = {
    "the page of a login": (200, b"<html>", "Check --server, and whether a proxy asks for a login"),
    "another document": (200, b'{"gang": {}}', "Check --server, and whether a proxy asks for a login"),
    "a mistake that Airflow itself reports": (422, b'{"detail": [{"loc": ["body"]}]}', "Airflow answered 422"),
    "text that would set the title": (403, rb'{"detail": "\u001b]0;no"}', r"gangjobs: \x1b]0;no."),
}


@pytest.mark.parametrize(("status", "body", "shown"), UNUSABLE.values(), ids=UNUSABLE)
async def test_answer_of_something_else_is_one_line(terminal: Terminal, status: int, body: bytes, shown: str) -> None:
    async with serving(body, status) as url:
        assert await terminal.submit(url) == 1
    assert [shown in line for line in terminal.errors] == [True]


async def test_answer_that_is_not_compressed_as_it_says_is_one_line(terminal: Terminal) -> None:
    async with serving(b"no gzip", 200, {"Content-Encoding": "gzip"}) as url:
        assert await terminal.submit(url) == 3
    (line,) = terminal.errors
    assert line.startswith("gangjobs: Airflow did not answer: ")


async def test_token_is_in_no_error(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("hidden\rhidden", "hidden\u00e9"):
        monkeypatch.setenv("GANGJOBS_TOKEN", token)
        assert await terminal.submit("http://127.0.0.1:1") == 1
    shown = terminal.capsys.readouterr().err
    assert shown.count("GANGJOBS_TOKEN has a character that no token of Airflow has") == 2
    assert "hidden" not in shown


@pytest.mark.parametrize("option", [("--server", "http://["), ("--id", "\udcff")], ids=["half an address", "no text"])
async def test_options_that_make_no_address_are_one_line(terminal: Terminal, option: tuple[str, str]) -> None:
    assert await terminal.submit("http://a", *option) == 1
    assert len(terminal.errors) == 1

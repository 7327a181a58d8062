"""A PostgreSQL server in a temporary folder. It listens on a socket in this folder, and on no port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg2

from tests.airflow.polling import wait_for
from tests.airflow.postgres.programs import ADVICE, RELEASES, find

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = "airflow"
UNPRIVILEGED = ("postgres", "nobody")
"""Users that can run the server, because it refuses to run as root. The first user that exists is taken."""
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",  # each process of Airflow keeps up to 15 connections
    "fsync": "off",  # the data may be lost in a crash of the machine
}


@dataclass
class Postgres:
    """A server that can be stopped and started again, and that keeps its data."""

    programs: Path
    folder: Path
    account: dict[str, Any]
    """The user and the group of the server, as arguments of `subprocess`."""
    _server: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Postgres]:
        programs = find()
        assert programs is not None, ADVICE.format(releases=f"{RELEASES[0]} to {RELEASES[-1]}")
        folder = Path(tempfile.mkdtemp(prefix="gangjobs-postgres-"))  # only its owner may enter the folder of pytest
        server = cls(programs, folder, unprivileged(folder))
        try:
            server._make()
            server.start()
            yield server
        finally:
            server.stop()
            shutil.rmtree(folder)

    def _make(self) -> None:
        """Create a database cluster."""
        options = ["--username", USER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
        command = [self.programs / "initdb", "--pgdata", self.folder / "data", *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False, **self.account)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = {**SETTINGS, "unix_socket_directories": str(self.folder)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "server.log").open("a") as log:
            self._server = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
                **self.account,
            )
        wait_for("the database", self._answers)

    def stop(self) -> None:
        """Stop the server at once, as a crash does. All connections break, also in the middle of a transaction."""
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait()

    def create_database(self, name: str) -> str:
        """Create a database, and return its URL for Airflow."""
        with closing(self.connect("postgres")) as connection:
            connection.autocommit = True  # a transaction cannot create a database
            connection.cursor().execute(f'CREATE DATABASE "{name}"')
        return f"postgresql+psycopg2://{USER}@/{name}?host={self.folder}"

    def rows(self, database: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    @property
    def pid(self) -> int:
        """The process id of the server, which leads a session of its own."""
        assert self._server is not None, "the server was never started"
        return self._server.pid

    def connect(self, database: str) -> Any:
        """A new connection to a database."""
        return psycopg2.connect(host=str(self.folder), user=USER, dbname=database)

    def _answers(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, (self.folder / "server.log").read_text()
        try:
            self.connect("postgres").close()
        except psycopg2.OperationalError as error:
            raise ConnectionError(error) from error
        return True


def unprivileged(folder: Path) -> dict[str, Any]:
    """Return options that run a program as a user other than root, who then owns the folder; none if not root."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = next(known[name] for name in UNPRIVILEGED if name in known)
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

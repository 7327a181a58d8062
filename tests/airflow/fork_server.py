"""A server that runs commands of Airflow in processes that it forks, so that Airflow is imported only once.

The first `dag.test()` of a process needs seven seconds of CPU time, nearly all of them for imports and for the API that
Airflow builds in that process. A process that is forked afterwards needs none of them. Each command still has a process
and an environment of its own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM: Final = Path(__file__).parent / "fork_server_program.py"
END_S: Final = 30.0
"""How long the server may take to end when nobody uses it any more."""


@dataclass
class ForkServer:
    """The server, which starts with the first command.

    Attributes:
        folder: the current folder of all commands.
        environment: the environment in which Airflow is imported. Home and database of all commands are those.
    """

    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def run(self, command: tuple[str, ...], environment: Mapping[str, str], output: Path, timeout_s: float) -> int:
        """Run a command to its end, with its output in a file, and return its exit code.

        `command` is `airflow` or the path of a Python program, and its arguments.

        Raises:
            subprocess.TimeoutExpired: the command did not end in time. It and the server were killed.
        """
        server = self._process = self._process or self._start()
        assert server.stdin is not None
        assert server.stdout is not None
        request = {"command": command, "environment": dict(environment), "output": str(output)}
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], timeout_s)[0]:
            self._kill()
            raise subprocess.TimeoutExpired(command, timeout_s)
        reply = server.stdout.readline()
        assert reply, f"the server has ended\n{self._log.read_text()[-4000:]}"
        return int(reply)

    def stop(self) -> None:
        """End the server, if it was started."""
        if self._process is None:
            return
        try:
            self._process.communicate(timeout=END_S)  # closes its standard input
        except subprocess.TimeoutExpired:
            self._kill()

    @property
    def _log(self) -> Path:
        return self.folder / "fork-server.log"

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                env=dict(self.environment),
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def _kill(self) -> None:
        """Kill the server with the command that it runs."""
        server, self._process = self._process, None
        assert server is not None
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.communicate()

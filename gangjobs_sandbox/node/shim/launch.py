"""Starts the process of a container: fork, the set-up in the child, and exec.

The child reports a failure through a pipe that exec closes. `launch` therefore returns only when the program runs, and
raises the reason otherwise.
"""

import os
import signal
from typing import NamedTuple, NoReturn

from .kernel import IS_LINUX, die_with_parent
from .root import isolate, join
from .spec import Spec

_RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
"""Python ignores the first two signals, and the shim handles the others. Ignored signals stay ignored after exec."""


class StartError(Exception):
    """The process could not be started. The message is for the container's status."""


class Process(NamedTuple):
    """A started process, and the read ends of its output pipes."""

    pid: int
    stdout: int
    stderr: int


def launch(spec: Spec) -> Process:
    """Start the process in its own session.

    Raises:
        StartError: the isolation, the working directory or the program is not available.
    """
    (stdout, stdout_end), (stderr, stderr_end), (report, report_end) = os.pipe(), os.pipe(), os.pipe()
    shim = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run_child(spec, shim, stdout_end, stderr_end, report_end)
    for fd in (stdout_end, stderr_end, report_end):
        os.close(fd)
    with os.fdopen(report, encoding="utf-8", errors="replace") as file:
        failure = file.read()
    if failure:
        os.waitpid(pid, 0)
        os.close(stdout)
        os.close(stderr)
        raise StartError(failure)
    return Process(pid, stdout, stderr)


def _run_child(spec: Spec, shim: int, stdout: int, stderr: int, report: int) -> NoReturn:
    """Run the container's program in the child process, or report the failure and exit."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        _enter_isolation(spec)
        if IS_LINUX:
            # The request must follow the change of namespaces, because a change of credentials cancels it.
            die_with_parent(signal.SIGKILL)
            if os.getppid() not in (shim, 0):
                os._exit(1)
        os.umask(0o022)
        _change_directory(spec.cwd)
        for number in _RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _execute(spec)
    except StartError as error:
        os.write(report, str(error).encode())
    except BaseException as error:
        os.write(report, f"unable to start container process: {type(error).__name__}: {error}".encode())
    finally:
        os._exit(127)


def _enter_isolation(spec: Spec) -> None:
    if spec.join_pid:
        join(spec.join_pid)
    elif spec.mounts is not None:
        isolate(spec)


def _change_directory(path: str) -> None:
    try:
        os.chdir(path)
    except OSError as error:
        raise StartError(f"unable to start container process: chdir to cwd ({path!r}): {error.strerror}") from error


def _execute(spec: Spec) -> NoReturn:
    """Execute the program. StartError has the wording of common container runtimes, which users search for."""
    program = spec.argv[0]
    try:
        os.execvpe(program, spec.argv, spec.env)  # noqa: S606 - this is what a container is
    except FileNotFoundError as error:
        where = f"stat {program}: no such file or directory" if "/" in program else "executable file not found in $PATH"
        raise StartError(f'unable to start container process: exec: "{program}": {where}') from error
    except OSError as error:
        detail = (error.strerror or "").lower()
        raise StartError(f'unable to start container process: exec: "{program}": {detail}') from error

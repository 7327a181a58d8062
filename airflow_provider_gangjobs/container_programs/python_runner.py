"""The program of every rank of a `@task.gang_job`: it calls the function and writes the result or the error.

The pods mount this file beside the function and its arguments, and the Python of the image runs it. The file therefore
uses only the standard library of Python 3.8. A DAG file imports `Gang` from this file through `decorators.gang_job`.

The runner writes the result as JSON to the file that GANG_RESULT_PATH names. After a failure it writes
`{"error": ..., "at": ...}` to that file, which the task's error quotes, and prints a traceback to the rank's log.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import io
import json
import linecache
import os
import platform
import signal
import sys
import time
import traceback
import types
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

if TYPE_CHECKING:
    from airflow_provider_gangjobs.container_programs.gangjobs_rank import Checkpoints

RUNNER_FILE = "gangjobs.run.py"
"""The name of this file on a rank."""
FUNCTION_FILE = "gang_function.py"
ARGUMENTS_FILE = "gang_arguments.json"
RESULT_HELPER_FILE = "gangjobs_result.py"
"""The file that checks results, and writes large ones."""
RANK_HELPER_FILE = "gangjobs_rank.py"
"""The file that reports progress and keeps checkpoints. It exists if a supervisor runs this program."""
TASK_FILE = "gangjobs.task.json"
"""The origin of the function and the parameter `results`. A change of this file does not make another gang."""

RESULT_BYTES_MAX = 4095
"""The kubelet truncates the result to 4096 bytes, so a result of exactly 4096 bytes may have been longer."""
ERROR_CHARACTERS_MAX = 600
"""A character needs up to six bytes in JSON, so the whole JSON text stays within RESULT_BYTES_MAX."""
MASTER_PORT = 29500
SIGTERM_EXIT_CODE = 128 + signal.SIGTERM
"""The exit code of a program that SIGTERM has ended."""
EXIT_CODE_MAX = 255
"""The operating system keeps only the low byte of an exit code."""
ENCODING = "utf-8"


@dataclass(frozen=True)
class Gang:
    """A rank's view of its gang. The runner passes an instance to a function that has the parameter `gang`."""

    rank: int
    world_size: int
    attempt: int = 0
    """The number of this attempt of the task, from 0."""
    master_addr: str = "localhost"
    """The host name of rank 0; `localhost` for a single rank, empty for several ranks without a rendezvous."""
    master_port: int = MASTER_PORT
    files: Path = Path("/gang/files")
    """The directory of the task's `files`. The function can import modules from this directory."""

    @property
    def hosts(self) -> List[str]:
        """The host name of every rank, by rank. DNS resolves a name shortly after its pod has started.

        Raises:
            RuntimeError: the gang has several ranks and no rendezvous.
        """
        if self.world_size == 1:
            return [self.master_addr]
        first, dot, service = self.master_addr.partition(".")
        if not first.endswith("-0"):
            raise RuntimeError("The ranks of this gang have no names: it runs without a rendezvous")
        return [first[:-1] + str(rank) + dot + service for rank in range(self.world_size)]

    @property
    def host(self) -> str:
        """The host name of this rank."""
        return self.hosts[self.rank]

    def progress(self, step: int, total: Optional[int] = None, metrics: Optional[Mapping[str, Any]] = None) -> None:
        """Report how far this rank is, as `gangjobs_rank.progress` does. Without a supervisor nothing happens."""
        helper = load_helper(self.files, RANK_HELPER_FILE)
        if helper is not None:
            helper.progress(step, total, metrics)

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of this rank, in the place that `checkpoints` of the task names.

        Raises:
            Exception: the task has no `checkpoints`, or the image lacks a library for them.
        """
        helper = load_helper(self.files, RANK_HELPER_FILE)
        if helper is None:
            raise RuntimeError("No place for checkpoints is known: set checkpoints of the task")
        found: Checkpoints = helper.checkpoints()
        return found

    @classmethod
    def of(cls, environ: Mapping[str, str], files: Path) -> Gang:
        """Build the gang from the environment of this process.

        Raises:
            RuntimeError: the Job is not an Indexed Job, so its pods have no ranks.
        """
        rank = read_rank(environ)
        if rank is None:
            raise RuntimeError("This pod has no rank: give its Job completionMode Indexed, or give `workers`")
        world_size = int(environ.get("GANG_SIZE") or environ.get("WORLD_SIZE") or 1)
        return cls(
            rank=rank,
            world_size=world_size,
            attempt=int(environ.get("GANG_ATTEMPT") or 0),
            master_addr=environ.get("MASTER_ADDR") or ("localhost" if world_size == 1 else ""),
            master_port=int(environ.get("MASTER_PORT") or MASTER_PORT),
            files=files,
        )


class Terminated(SystemExit):
    """The rank received SIGTERM: its gang is stopped or deleted, or another rank has failed."""


class ResultError(Exception):
    """The value that the function returned cannot be a result."""


def read_rank(environ: Mapping[str, str]) -> Optional[int]:
    """Return the rank that the Job controller has assigned to this pod, or `None`."""
    index = environ.get("JOB_COMPLETION_INDEX") or environ.get("RANK")
    return int(index) if index else None


def encode_result(value: Any, function_name: str, helper: Any) -> bytes:
    """Return the result as JSON text.

    Raises:
        ResultError: Airflow cannot store the value.
    """
    try:
        text: bytes = helper.encode(value)
    except ValueError as error:
        raise ResultError(f"{function_name} returned what is no result. {error}") from None
    return text


def shorten_result(text: bytes, function_name: str, helper: Any, environ: Mapping[str, str]) -> bytes:
    """Return the text or, if it is too long and the task has `result_storage`, the address of the stored text.

    Raises:
        ResultError: the text is longer than RESULT_BYTES_MAX and was not stored.
    """
    if len(text) <= RESULT_BYTES_MAX:
        return text
    what = f"{function_name} returned {len(text)} bytes of JSON, {RESULT_BYTES_MAX} are kept."
    if not environ.get("GANG_RESULT_STORAGE"):
        raise ResultError(what + " Set result_storage of the task, or write it to storage and return its address")
    try:
        stored: bytes = helper.store_if_large(text, environ)
    except Exception as error:  # a storage may raise anything
        raise ResultError(f"{what} result_storage could not be written: {format_error(error)}") from error
    return stored


def load_helper(folder: Path, name: str) -> Any:
    """Return the module of a file of the provider, or `None` if the task has no such file.

    The function imports the same module by its name.
    """
    path = folder / name
    if path.stem in sys.modules:
        return sys.modules[path.stem]
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def check_result_storage(helper: Any, environ: Mapping[str, str]) -> None:
    """Find out before the function runs whether its result could be stored, as far as the image shows it.

    Raises:
        ResultError: the storage cannot be written.
    """
    try:
        helper.check_storage(environ)
    except Exception as error:
        raise ResultError(f"result_storage cannot be written: {format_error(error)}") from error


def load_function(folder: Path, origin: Mapping[str, Any], name: str) -> Callable[..., Any]:
    """Return the function, compiled so that a traceback shows the lines of the DAG file, which is not in the pod."""
    path = folder / FUNCTION_FILE
    source = path.read_text(ENCODING)
    source = "\n" * max(0, origin["line"] - 1) + source
    linecache.cache[origin["file"]] = (len(source), None, source.splitlines(True), origin["file"])
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    module.__dict__["Gang"] = Gang
    # A process that the function spawns imports the function from this module.
    sys.modules[path.stem] = module
    exec(compile(source, origin["file"], "exec"), module.__dict__)  # noqa: S102 - running the user's function is the purpose of this file
    function: Callable[..., Any] = getattr(module, name)
    return function


def call_function(
    function: Callable[..., Any], arguments: Mapping[str, Any], environ: Mapping[str, str], folder: Path
) -> Any:
    """Return the result of the function, or of the coroutine that the function returns."""
    kwargs: Dict[str, Any] = dict(arguments["kwargs"])
    if arguments["gang"]:
        kwargs["gang"] = Gang.of(environ, folder)
    value = function(*arguments["args"], **kwargs)
    return asyncio.run(_await(value)) if inspect.isawaitable(value) else value


async def _await(value: Any) -> Any:
    return await value


def main(folder: Path, environ: Mapping[str, str]) -> int:
    """Call the function and return the exit code: 0 if the function returned, else 1 to 255.

    For any exception the exit code is 1, also for a `BaseException` such as `KeyboardInterrupt`. For `sys.exit` the
    function `exit_code` determines the code.
    """
    arguments = json.loads((folder / ARGUMENTS_FILE).read_text(ENCODING))
    task = json.loads((folder / TASK_FILE).read_text(ENCODING))
    try:
        name, is_requested = arguments["function"], is_result_requested(task["results"], read_rank(environ))
        helper = load_helper(folder, RESULT_HELPER_FILE) if is_requested else None
        if helper is not None:
            check_result_storage(helper, environ)
        value = call_function(load_function(folder, task, name), arguments, environ, folder)
        if value is not None and is_requested:
            write_result(environ, shorten_result(encode_result(value, name, helper), name, helper, environ))
    except Terminated:
        # Running threads of the function would keep the rank alive until the kubelet kills it.
        print("ended by SIGTERM", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(SIGTERM_EXIT_CODE)
    except SystemExit as error:
        code, reason = exit_code(error.code)
        if reason:
            print(reason, file=sys.stderr)
        if code:
            write_error(environ, f"SystemExit: {reason or code}")
        return code
    except ResultError as error:
        print(error, file=sys.stderr)
        write_error(environ, str(error))
        return 1
    except BaseException as error:
        traceback.print_exception(type(error), error, _user_traceback(error))
        write_error(environ, format_error(error))
        return 1
    return 0


def exit_code(code: object) -> Tuple[int, str]:
    """Return the rank's exit code after `sys.exit(code)`, and the text that the rank prints.

    The rules are Python's: `None` and 0 mean success, an integer is the code, and any other object is printed and means
    1. Python passes an integer to the operating system, which keeps only the low byte, so 256 would mean success.
    Here an integer outside 0 to 255 means 1.
    """
    if code is None:
        return 0, ""
    if not isinstance(code, int):
        return 1, str(code)
    if 0 <= code <= EXIT_CODE_MAX:
        return int(code), ""
    return 1, f"sys.exit({code}): exit codes are 0 to {EXIT_CODE_MAX}, so the rank exits with code 1"


def is_result_requested(results: str, rank: Optional[int]) -> bool:
    """Return whether the task returns the result of this rank."""
    return results == "all" or (results == "rank0" and not rank)


def format_error(error: BaseException) -> str:
    """Return the last line of the traceback."""
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    if isinstance(error, SyntaxError):
        text += f" ({error.filename}, line {error.lineno}; the image has Python {platform.python_version()})"
    return text


def _user_traceback(error: BaseException) -> Optional[types.TracebackType]:
    """Return the traceback without the frames of this file, which are the same for every function."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__ and frames.tb_next is not None:
        frames = frames.tb_next
    return frames


def write_error(environ: Mapping[str, str], error: str) -> None:
    """Write the error to the result file, which the kubelet reads. If the file cannot be written, print that."""
    if len(error) > ERROR_CHARACTERS_MAX:
        error = error[: ERROR_CHARACTERS_MAX - 3] + "..."
    content = {"error": error, "at": time.time()}
    try:
        write_result(environ, json.dumps(content, ensure_ascii=False).encode(ENCODING, "replace"))
    except OSError as problem:
        print(f"The reason could not be written to GANG_RESULT_PATH: {problem}", file=sys.stderr)


def write_result(environ: Mapping[str, str], content: bytes) -> None:
    """Write the rank's result. The result replaces a result that the function has written itself."""
    path = environ.get("GANG_RESULT_PATH")
    if path:
        with open(path, "wb") as file:
            file.write(content)


def handle_sigterm(number: int, frame: Optional[types.FrameType]) -> None:
    """Raise `Terminated` in the function, so that its `finally` blocks run within the grace period.

    The kernel drops a signal to a container's first process if that process has no handler for the signal. Without this
    handler the rank, and with it the gang, would run until the kubelet kills the rank at the end of the grace period.
    """
    signal.signal(number, signal.SIG_IGN)
    raise Terminated(SIGTERM_EXIT_CODE)


def reset_sigterm_in_children() -> None:
    """Restore the default action of SIGTERM in each process that the function forks.

    SIGTERM is blocked during the fork, because Python discards signals that a child receives before the child's
    interpreter is ready.
    """
    block_sigterm = partial(signal.pthread_sigmask, signal.SIG_BLOCK, [signal.SIGTERM])
    unblock_sigterm = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, [signal.SIGTERM])

    def restore_default() -> None:
        if signal.getsignal(signal.SIGTERM) is handle_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock_sigterm()

    os.register_at_fork(before=block_sigterm, after_in_parent=unblock_sigterm, after_in_child=restore_default)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, handle_sigterm)
    reset_sigterm_in_children()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # The kubelet may kill a rank at any time, and the log must contain every line that the rank has printed.
            stream.reconfigure(line_buffering=True)
    sys.exit(main(Path(os.path.abspath(__file__)).parent, os.environ))

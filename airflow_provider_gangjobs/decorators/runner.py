"""What runs on every rank of a `@task.gang_job`: it calls the function, and writes down its result or its error.

This file travels. It is mounted beside the function and its arguments and run by the Python of the image, so it uses
nothing but the standard library of Python 3.8. A DAG file imports `Gang` from it, by way of `decorators.gang_job`.

The result is JSON in the file that GANG_RESULT_PATH names. What failed is told there as `{"error": ...}`, so that the
task's error can say it, and as a traceback in the rank's log.
"""

from __future__ import annotations

import asyncio
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
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

RUNNER = "gangjobs.run.py"
"""Name of this file where it is mounted."""
FUNCTION = "gang_function.py"
ARGUMENTS = "gang_arguments.json"
TASK = "gangjobs.task.json"
"""Where the function comes from and whose result is wanted: what does not make it another gang."""

RESULT_BYTES_MAX = 4095
"""The kubelet keeps 4096 bytes; a result of just as many may have been longer."""
ERROR_CHARACTERS_MAX = 600
"""Of up to six bytes each, so that the JSON around them is kept whole, too."""
MASTER_PORT = 29500
TERMINATED = 128 + signal.SIGTERM
"""Exit code of a program that a signal has ended."""
EXIT_CODE_MAX = 255
"""The operating system keeps one byte of an exit code."""
ENCODED = "utf-8"


@dataclass(frozen=True)
class Gang:
    """What a rank knows of its gang. A function that has a parameter `gang` is given it."""

    rank: int
    world_size: int
    attempt: int = 0
    """Which attempt of the task this gang is, from 0."""
    master_addr: str = "localhost"
    """Name of rank 0; `localhost` for a single rank, empty for several ones without a rendezvous."""
    master_port: int = MASTER_PORT
    files: Path = Path("/gang/files")
    """Folder of the task's `files`. Modules in it can be imported."""

    @property
    def hosts(self) -> List[str]:
        """Name of every rank, by rank. A name is known a moment after its pod has started.

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
        """This rank's own name."""
        return self.hosts[self.rank]

    @classmethod
    def of(cls, environ: Mapping[str, str], files: Path) -> Gang:
        """The gang that this process is a rank of.

        Raises:
            RuntimeError: the Job has no indexes, so its pods are no ranks.
        """
        rank = rank_in(environ)
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
    """The rank is asked to end: its gang is halted or deleted, or another rank has failed."""


class ResultError(Exception):
    """What a function returned cannot be a result."""


def rank_in(environ: Mapping[str, str]) -> Optional[int]:
    """The rank that the Job controller gave this pod, if any."""
    index = environ.get("JOB_COMPLETION_INDEX") or environ.get("RANK")
    return int(index) if index else None


def no_json(value: Any, path: str) -> Iterator[Tuple[str, str]]:
    """Parts of a value that JSON does not hold, as path and what is there."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, (str, int, float, bool, type(None))):
                yield path, f"has the key {key!r:.80}"
            for found in no_json(item, f"{path}[{key!r}]"):
                yield found
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            for found in no_json(item, f"{path}[{index}]"):
                yield found
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        yield path, f"is {value}"
    elif not isinstance(value, (str, int, float, bool, type(None))):
        yield path, f"is of type {name_of(type(value))}"


def name_of(kind: type) -> str:
    """How Python itself would print it: builtins without their module."""
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__
    )


def encoded(value: Any, who: str) -> bytes:
    """A result as it is written.

    Raises:
        ResultError: JSON cannot hold it, or it is too large.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(ENCODED)
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultError(f"{who} returned what JSON does not hold: {_where(value, error)}") from None
    if len(text) > RESULT_BYTES_MAX:
        raise ResultError(
            f"{who} returned {len(text)} bytes of JSON, {RESULT_BYTES_MAX} are kept."
            " Write it to storage and return its address"
        )
    return text


def _where(value: Any, error: Exception) -> str:
    try:
        return next((path + " " + what for path, what in no_json(value, "the value")), str(error))
    except RecursionError:
        return "it contains itself"


def load(folder: Path, origin: Mapping[str, Any], name: str) -> Callable[..., Any]:
    """The function, compiled so that a traceback has the lines of the DAG file, which is not here."""
    path = folder / FUNCTION
    source = path.read_text(ENCODED)
    source = "\n" * max(0, origin["line"] - 1) + source
    linecache.cache[origin["file"]] = (len(source), None, source.splitlines(True), origin["file"])
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    module.__dict__["Gang"] = Gang
    # A process that the function starts finds it by this name, as any module beside this file.
    sys.modules[path.stem] = module
    exec(compile(source, origin["file"], "exec"), module.__dict__)  # noqa: S102 - that is what it is for
    function: Callable[..., Any] = getattr(module, name)
    return function


def call(function: Callable[..., Any], arguments: Mapping[str, Any], environ: Mapping[str, str], folder: Path) -> Any:
    """What the function returns, or the coroutine that it returned."""
    kwargs: Dict[str, Any] = dict(arguments["kwargs"])
    if arguments["gang"]:
        kwargs["gang"] = Gang.of(environ, folder)
    value = function(*arguments["args"], **kwargs)
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


def main(folder: Path, environ: Mapping[str, str]) -> int:
    """Call the function and return the exit code: 0 if it returned, else from 1 to 255.

    Every exception ends the rank with 1, also one that is no `Exception`, such as `KeyboardInterrupt`. `sys.exit` gives
    the code that `exit_code` says.
    """
    arguments = json.loads((folder / ARGUMENTS).read_text(ENCODED))
    task = json.loads((folder / TASK).read_text(ENCODED))
    try:
        function = load(folder, task, arguments["function"])
        value = call(function, arguments, environ, folder)
        if value is not None and wanted(task["results"], rank_in(environ)):
            write(environ, encoded(value, arguments["function"]))
    except Terminated:
        # Threads that the function has left behind would keep the rank alive until it is killed.
        print("ended by SIGTERM", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(TERMINATED)
    except SystemExit as error:
        code, reason = exit_code(error.code)
        if reason:
            print(reason, file=sys.stderr)
        if code:
            tell(environ, f"SystemExit: {reason or code}")
        return code
    except ResultError as error:
        print(error, file=sys.stderr)
        tell(environ, str(error))
        return 1
    except BaseException as error:
        traceback.print_exception(type(error), error, _of_the_function(error))
        tell(environ, said(error))
        return 1
    return 0


def exit_code(code: object) -> Tuple[int, str]:
    """The rank's exit code after `sys.exit(code)`, and what is printed of it.

    As Python itself does it: `None` and 0 are a success, an integer is the code, and any other object is printed and
    counts as 1. Python passes an integer on to the operating system, which keeps the low byte alone, so that 256 would
    be a success. Here an integer outside 0 to 255 counts as 1.
    """
    if code is None:
        return 0, ""
    if not isinstance(code, int):
        return 1, str(code)
    if 0 <= code <= EXIT_CODE_MAX:
        return int(code), ""
    return 1, f"sys.exit({code}): exit codes are 0 to {EXIT_CODE_MAX}, so the rank exits with code 1"


def wanted(results: str, rank: Optional[int]) -> bool:
    """Whether this rank's result is one that the task returns."""
    return results == "all" or (results == "rank0" and not rank)


def said(error: BaseException) -> str:
    """The last line of its traceback."""
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    if isinstance(error, SyntaxError):
        text += f" ({error.filename}, line {error.lineno}; the image has Python {platform.python_version()})"
    return text


def _of_the_function(error: BaseException) -> Optional[types.TracebackType]:
    """The traceback without the frames of this file, which are the same for every function."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__ and frames.tb_next is not None:
        frames = frames.tb_next
    return frames


def tell(environ: Mapping[str, str], error: str) -> None:
    """Leave the reason of a failure where the kubelet keeps it. If that is not possible, the log says so."""
    if len(error) > ERROR_CHARACTERS_MAX:
        error = error[: ERROR_CHARACTERS_MAX - 3] + "..."
    said = {"error": error, "at": time.time()}
    try:
        write(environ, json.dumps(said, ensure_ascii=False).encode(ENCODED, "replace"))
    except OSError as problem:
        print(f"The reason could not be written to GANG_RESULT_PATH: {problem}", file=sys.stderr)


def write(environ: Mapping[str, str], content: bytes) -> None:
    """Write the rank's result, in place of one that the function has written itself."""
    path = environ.get("GANG_RESULT_PATH")
    if path:
        with open(path, "wb") as file:
            file.write(content)


def end(number: int, frame: Optional[types.FrameType]) -> None:
    """Raise out of the function, so that its `finally` blocks run in the time of grace.

    A container's first process gets no signal that it does not handle: without this, a rank that is to end would go
    on until the time of grace has passed and it is killed, and its gang with it.
    """
    signal.signal(number, signal.SIG_IGN)
    raise Terminated(TERMINATED)


def end_children_as_anywhere() -> None:
    """Keep `end` to this process: one that the function forks has Python's own way with the signal.

    The signal waits while a fork is made. Python forgets what has come to a child before it has come to itself.
    """

    def hold() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def let_come() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def forget() -> None:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        let_come()

    os.register_at_fork(before=hold, after_in_parent=let_come, after_in_child=forget)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    end_children_as_anywhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A rank may be killed at any time, and what it has printed shall be in its log.
            stream.reconfigure(line_buffering=True)
    sys.exit(main(Path(os.path.abspath(__file__)).parent, os.environ))

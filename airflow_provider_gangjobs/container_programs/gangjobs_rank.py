"""Reports the progress of a rank, and keeps its checkpoints.

The provider mounts this file into the pods of a task with `restarts`, `progress_timeout` or `checkpoints`, beside
`gangjobs_result.py`. The Python of the image runs it, so it uses only the standard library of Python 3.8. A program
imports it:

    from gangjobs_rank import checkpoints, progress

    newest = checkpoints().newest()
    first = 0 if newest is None else newest.step
    for step in range(first, 1000):
        ...
        progress(step=step + 1, total=1000, metrics={"loss": loss})
        if (step + 1) % 100 == 0:
            with checkpoints().write(step + 1) as folder:
                torch.save(model.state_dict(), folder / "model.pt")

A checkpoint of a gang has a part of each rank, which is a folder. It is complete if all parts are there, and each part
appears at once, when it is complete. So whoever reads decides whether a checkpoint is complete, by the names of its
parts, and the ranks need not talk to each other:

    step-000000000100/rank-00000-of-00002-5f3a9c01-0/model.pt
    step-000000000100/rank-00001-of-00002-5f3a9c01-0/model.pt

The end of the name says which gang and which restart have written the part. Parts of two restarts are no checkpoint,
also if a rank begins so late that another rank has written its next part: both find the same newest checkpoint.

On a volume, a part appears by a rename. In an object store, the object `rank-00000-of-00002-5f3a9c01-0.json` is written
last.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this file has files of the user, which could have the name of a module, so it is searched last.
    sys.path[:] = [*sys.path[1:], __file__.rpartition("/")[0]]

import atexit
import faulthandler
import hashlib
import json
import math
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple, Union

ENV_PROGRESS_PATH = "GANG_PROGRESS_PATH"
ENV_DIR = "GANG_CHECKPOINT_DIR"
ENV_URL = "GANG_CHECKPOINT_URL"
ENV_RESULT_PATH = "GANG_RESULT_PATH"
WRITE_INTERVAL_S = 0.1
"""How often the progress is written at most, so that a program may report each of its steps."""
METRICS_MAX = 8
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
"""The number of a process in its pod, as torchrun, Open MPI, and MPICH and Intel MPI say it."""
STACKS_FILE = "stacks"
KEEP = 3
STEPS_MAX = 10**18
Part = Tuple[int, int, str]
"""A rank, how many ranks write a part of the same checkpoint, and the restart that has written the part."""


class CheckpointError(Exception):
    """The checkpoints cannot be read or written by this rank."""


# -- progress --------------------------------------------------------------------------------------------------


def progress(step: int, total: Optional[int] = None, metrics: Optional[Mapping[str, Any]] = None) -> None:
    """Report how far this rank is. Outside of a gang, and in all but the first process of a rank, nothing happens.

    Never raises: what is no finite number is left out, with one warning.

    :param step: The steps that are done.
    :param total: The number of steps of the whole program, if it is known.
    :param metrics: At most eight numbers by name, such as the loss.
    """
    _reporter.report(step, total, metrics)


class _Reporter:
    """Writes the progress of this process to the file that the supervisor of the rank reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: Optional[Tuple[Any, Any, Any]] = None
        self._pid = 0
        self._written_at = -math.inf
        self._is_written = True
        self._stacks: Any = None
        self._has_warned = False
        self._checkpoint_at: Optional[float] = None

    def report(self, step: Any, total: Any, metrics: Any) -> None:
        path = os.environ.get(ENV_PROGRESS_PATH)
        if not path or any(os.environ.get(name, "0") != "0" for name in LOCAL_RANKS):
            return
        with self._lock:
            if self._latest is None:
                self._begin(path)
            self._latest, self._is_written = (step, total, {} if metrics is None else metrics), False
            if time.monotonic() - self._written_at >= WRITE_INTERVAL_S:
                self._write(path)

    def note_checkpoint(self) -> None:
        """Remember that a checkpoint was written now. If this process reports progress, it is told at once."""
        with self._lock:
            self._checkpoint_at = time.time()
            path = os.environ.get(ENV_PROGRESS_PATH)
            if path and self._latest is not None:
                self._write(path)

    def _begin(self, path: str) -> None:
        self._pid = os.getpid()
        atexit.register(self._write_last)
        try:
            if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
                stacks = os.path.join(os.path.dirname(path), STACKS_FILE)
                self._stacks = open(stacks, "w")  # noqa: SIM115 - faulthandler writes it later
                faulthandler.register(signal.SIGUSR2, file=self._stacks, all_threads=True)
        except (OSError, RuntimeError, ValueError):
            self._stacks = None

    def _write_last(self) -> None:
        path = os.environ.get(ENV_PROGRESS_PATH)
        if path and not self._is_written and self._pid == os.getpid():
            self._write(path)

    def _write(self, path: str) -> None:
        assert self._latest is not None, "the callers have checked this"
        step, total, metrics = self._latest
        numbers: Dict[str, Any] = {}
        try:
            numbers = {str(name): _number(value, float) for name, value in metrics.items()}
        except Exception:  # the program goes on, whatever its values raise
            self._warn("The metrics of the progress are left out: they are no numbers by name")
        content = {
            "step": _number(step, int),
            "total": None if total is None else _number(total, int),
            "metrics": dict([item for item in numbers.items() if item[1] is not None][:METRICS_MAX]),
            "pid": os.getpid(),
            "stacks": self._stacks is not None,
            "checkpoint_at": self._checkpoint_at,
        }
        self._written_at, self._is_written = time.monotonic(), True
        part = f"{path}.{os.getpid()}.part"
        try:
            with open(part, "w") as file:
                json.dump(content, file)
            os.replace(part, path)
        except OSError as error:
            self._warn(f"The progress cannot be written: {error}")
            with suppress(OSError):  # works on a full disk, too, so that this rank does not count as silent
                os.utime(path)
        left_out = [name for name, number in [("step", content["step"]), *numbers.items()] if number is None]
        if left_out:
            self._warn(f"The progress is no finite number, and left out: {left_out!r:.200}")

    def _warn(self, message: str) -> None:
        """Print the first warning."""
        if not self._has_warned:
            with suppress(Exception):  # the program may have closed or replaced its standard error
                print(message, file=sys.stderr)
        self._has_warned = True


def _number(value: Any, kind: Callable[[Any], Any]) -> Any:
    """Return the value as a number; `None` if it is no finite number."""
    with suppress(Exception):  # a tensor of several numbers raises what its library wants
        return kind(value) if math.isfinite(value) else None
    return None


_reporter = _Reporter()


# -- checkpoints -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=None)
def checkpoints() -> Checkpoints:
    """Return the checkpoints of this rank, in the place that `checkpoints` of the task names.

    Raises:
        CheckpointError: no place is known.
        gangjobs_result.StorageError: the image lacks a library for it.
    """
    return Checkpoints.of(os.environ)


class Checkpoint:
    """A complete checkpoint."""

    def __init__(self, step: int, ranks: int, restart: str, rank: int, size: int, store: _Store) -> None:
        self.step = step
        self.ranks = ranks
        """How many ranks have written a part."""
        self._restart = restart
        self._rank, self._size = rank, size
        self._store = store

    @property
    def folder(self) -> Path:
        """The files that this rank has written, or the only part of the checkpoint.

        Raises:
            CheckpointError: another number of ranks has written the checkpoint, so no part is all that a rank needs.
        """
        if self.ranks not in (1, self._size):
            raise CheckpointError(
                f"The checkpoint of step {self.step} has parts of {self.ranks} ranks, and {self._size} ranks run now:"
                f" run {self.ranks} ranks, or read all parts with part()"
            )
        return self.part(0 if self.ranks == 1 else self._rank)

    def part(self, rank: int) -> Path:
        """Return the folder with the files of a rank. From an object store, they are downloaded first."""
        return self._store.read(self.step, (rank, self.ranks, self._restart))


class Checkpoints:
    """The checkpoints of a gang, as one of its ranks reads and writes them.

    :param rank: The rank. A process of torchrun or MPI counts as a rank.
    :param size: How many ranks the gang has.
    :param restart: The name of the gang and of the restart, which all ranks have in common.
    """

    def __init__(self, place: str, rank: int, size: int, restart: str = "") -> None:
        self.place = place
        """The folder, or its URL."""
        self._rank, self._size, self._restart = rank, size, restart
        self._store: _Store = _ObjectStore(place, rank) if "://" in place else _Folder(Path(place))
        self._has_begun = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Checkpoints:
        """Return the checkpoints that the variables of a rank name. A shard has its own, because it restarts alone."""
        place = environ.get(ENV_DIR) or environ.get(ENV_URL)
        if not place:
            raise CheckpointError("No place for checkpoints is known: set checkpoints of the task")
        if environ.get("SHARD_INDEX"):
            return cls("{}/shard-{:05}".format(place.rstrip("/"), int(environ["SHARD_INDEX"])), 0, 1)
        if environ.get("TORCHELASTIC_RUN_ID"):
            return cls(place, int(environ["RANK"]), int(environ["WORLD_SIZE"]), _restart_name(environ))
        for mpi in ("OMPI_COMM_WORLD", "PMI") if environ.get("GANG_MPI_FOLDER") else ():
            if f"{mpi}_RANK" in environ:
                return cls(place, int(environ[f"{mpi}_RANK"]), int(environ[f"{mpi}_SIZE"]), _restart_name(environ))
        rank = int(environ.get("JOB_COMPLETION_INDEX") or 0) + int(environ.get("GANG_RANK_OFFSET") or 0)
        return cls(place, rank, int(environ.get("GANG_SIZE") or 1), _restart_name(environ))

    def newest(self) -> Optional[Checkpoint]:
        """Return the newest complete checkpoint; `None` if there is none.

        Each rank calls this when its program begins, before it works with other ranks. So all ranks find the same one.
        """
        complete = self._begin()
        if not complete:
            return None
        step = max(complete)
        return Checkpoint(step, *complete[step], self._rank, self._size, self._store)

    @contextmanager
    def write(self, step: int, ranks: Optional[int] = None, keep: int = KEEP) -> Iterator[Path]:
        """Give an empty folder to the block, whose files become the part of this rank at the end of the block.

        The files are on the disk before the part appears. If the block fails, no part appears.

        :param step: The steps that are done.
        :param ranks: How many ranks write a part, from rank 0 on. 1 for a state that all ranks have in common. All
            ranks of the gang by default.
        :param keep: How many complete checkpoints are kept. Rank 0 removes the older ones.

        Raises:
            TypeError: the step is no whole number, which 200.0 is.
            CheckpointError: this rank writes no part.
        """
        if isinstance(step, bool) or int(step) != step:
            raise TypeError(f"The step of a checkpoint is a whole number, and not {step!r:.80}")
        step = int(step)
        ranks = self._size if ranks is None else ranks
        if not 0 <= self._rank < ranks or keep < 1 or not 0 <= step < STEPS_MAX:
            raise CheckpointError(f"Rank {self._rank} cannot write a part of {ranks}, for step {step} and keep={keep}")
        if not self._has_begun:
            self._begin()
        part = (self._rank, ranks, self._restart)
        folder = self._store.new_folder(step, part)
        try:
            yield folder
            self._store.commit(folder, step, part)
        finally:
            shutil.rmtree(str(folder), ignore_errors=True)
        _reporter.note_checkpoint()
        if self._rank == 0:
            self._remove_old(keep)

    def _begin(self) -> Dict[int, Tuple[int, str]]:
        """Return how many ranks, and in which restart, have written each complete checkpoint, by step.

        The first time, this rank removes its parts of checkpoints after the newest complete one, which the program of
        an earlier restart has written.
        """
        parts = self._store.parts()
        complete = _complete(parts)
        if not self._has_begun:
            if self._rank == 0:
                self._store.remove_rests()
            newest = max(complete, default=-1)
            for step, part in [(step, part) for step, of_step in parts.items() for part in of_step]:
                if step > newest and part[0] == self._rank:
                    self._store.remove_part(step, part)
            self._has_begun = True
        return complete

    def _remove_old(self, keep: int) -> None:
        parts = self._store.parts()
        kept = sorted(_complete(parts))[-keep:]
        if len(kept) == keep:
            for step in parts:
                if step < kept[0]:
                    self._store.remove_step(step)


def _restart_name(environ: Mapping[str, str]) -> str:
    """Return the name of this restart of this gang; empty for a program without a supervisor."""
    restart = environ.get("GANG_RESTART")
    if restart is None:
        return ""
    try:
        key = Path(environ.get("GANG_SUPERVISOR_KEY_FILE") or "/gang/files/gangjobs.key").read_bytes()
    except OSError:
        key = b""
    return hashlib.sha256(key).hexdigest()[:8] + "-" + restart


def _complete(parts: Mapping[int, Set[Part]]) -> Dict[int, Tuple[int, str]]:
    """Return the number of parts of each complete checkpoint, and the restart that has written them, by step."""
    found = {}
    for step, of_step in parts.items():
        for ranks, restart in sorted({(ranks, restart) for _, ranks, restart in of_step}):
            if all((rank, ranks, restart) in of_step for rank in range(ranks)):
                found[step] = (ranks, restart)
    return found


_STEP = re.compile(r"step-(\d{12,})")
_PART = re.compile(r"rank-(\d{5,})-of-(\d{5,})(?:-([0-9a-f]{8}-\d+))?")


def _step_name(step: int) -> str:
    return f"step-{step:012}"


def _part_name(part: Part) -> str:
    rank, ranks, restart = part
    return f"rank-{rank:05}-of-{ranks:05}" + (f"-{restart}" if restart else "")


def _part_named(name: str) -> Optional[Part]:
    match = _PART.fullmatch(name)
    return (int(match[1]), int(match[2]), match[3] or "") if match else None


class _Folder:
    """Checkpoints in a folder of a volume. Names that begin with a dot are not complete."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def parts(self) -> Dict[int, Set[Part]]:
        found = {}
        for name in _names(self._path):
            step = _STEP.fullmatch(name)
            if step:
                found[int(step[1])] = {part for part in map(_part_named, _names(self._path / name)) if part}
        return found

    def read(self, step: int, part: Part) -> Path:
        return self._path / _step_name(step) / _part_name(part)

    def new_folder(self, step: int, part: Part) -> Path:
        of_step = self._path / _step_name(step)
        folder = of_step / f".{_part_name(part)}.part"
        shutil.rmtree(str(folder), ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def commit(self, folder: Path, step: int, part: Part) -> None:
        for parent, _, files in os.walk(str(folder)):
            for name in files:
                _sync(os.path.join(parent, name))
            _sync(parent, is_folder=True)
        final = self.read(step, part)
        if final.exists():
            self.remove_part(step, part)
        os.rename(str(folder), str(final))
        _sync(str(final.parent), is_folder=True)
        _sync(str(self._path), is_folder=True)

    def remove_part(self, step: int, part: Part) -> None:
        _remove_tree(self.read(step, part))

    def remove_step(self, step: int) -> None:
        _remove_tree(self._path / _step_name(step))

    def remove_rests(self) -> None:
        """Remove what is left of steps that rank 0 was removing when it was killed."""
        for name in _names(self._path):
            if name.startswith(_REMOVED):
                shutil.rmtree(str(self._path / name), ignore_errors=True)


def _names(folder: Path) -> List[str]:
    try:
        return os.listdir(str(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


_REMOVED = ".removed-"


def _remove_tree(path: Path) -> None:
    """Remove a folder, which disappears at once."""
    removed = path.with_name(f"{_REMOVED}{path.name}-{os.getpid()}")
    shutil.rmtree(str(removed), ignore_errors=True)
    try:
        os.rename(str(path), str(removed))
    except FileNotFoundError:
        return
    shutil.rmtree(str(removed), ignore_errors=True)


def _sync(path: str, is_folder: bool = False) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not is_folder:  # some file systems of networks have no fsync for folders
            raise
    finally:
        os.close(descriptor)


class _ObjectStore:
    """Checkpoints in an object store. The list of the objects of a part is written after them, as the sign of its end.

    Files go through local folders with fixed names, so that killed programs do not fill the disk.
    """

    def __init__(self, url: str, rank: int) -> None:
        import gangjobs_result

        self._files, self._root = gangjobs_result.open_file_system(url)
        self._write = gangjobs_result.write_object
        self._local = Path(tempfile.gettempdir()) / f"gangjobs-checkpoint-{rank}"

    def parts(self) -> Dict[int, Set[Part]]:
        self._files.invalidate_cache()
        found: Dict[int, Set[Part]] = {}
        for path in self._files.glob(self._root + "/step-*/rank-*.json"):
            step, part = _STEP.fullmatch(path.split("/")[-2]), _part_named(path.split("/")[-1][: -len(".json")])
            if step and part:
                found.setdefault(int(step[1]), set()).add(part)
        return found

    def read(self, step: int, part: Part) -> Path:
        folder = _empty(self._local / "read" / _part_name(part))
        for name in json.loads(self._files.cat_file(self._address(step, part) + ".json")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(self._address(step, part) + "/" + name, str(folder / name))
        return folder

    def new_folder(self, step: int, part: Part) -> Path:
        return _empty(self._local / "write")

    def commit(self, folder: Path, step: int, part: Part) -> None:
        address = self._address(step, part)
        self.remove_part(step, part)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        for name in names:
            self._write(self._files, address + "/" + name, folder / name)
        self._write(self._files, address + ".json", json.dumps(names).encode())

    def remove_part(self, step: int, part: Part) -> None:
        address = self._address(step, part)
        self._remove(address + ".json", address)

    def remove_step(self, step: int) -> None:
        folder = self._root + "/" + _step_name(step)
        signs = [f"{folder}/{_part_name(part)}.json" for part in sorted(self.parts().get(step, ()))]
        self._remove(*signs, folder)

    def remove_rests(self) -> None:
        """Do nothing: an object whose step is not complete is removed with a later step of its name."""

    def _remove(self, *paths: str) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self._files.rm(path, recursive=True)

    def _address(self, step: int, part: Part) -> str:
        return "/".join([self._root, _step_name(step), _part_name(part)])


def _empty(folder: Path) -> Path:
    shutil.rmtree(str(folder), ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


_Store = Union[_Folder, _ObjectStore]


# -- what the entry point of a rank and its supervisor call ------------------------------------------------------


def prepare(environ: Mapping[str, str]) -> str:
    """Make the folder, and return why this rank cannot write it; empty if it can, or if only the program can tell."""
    folder, url = environ.get(ENV_DIR), environ.get(ENV_URL)
    name = ".write-test-{}".format(environ.get("HOSTNAME", os.getpid()))
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
            probe = os.path.join(folder, name)
            with open(probe, "w"):
                pass
            with suppress(FileNotFoundError):  # pods in the network of one node have the same host name
                os.remove(probe)
    except OSError as error:
        problem = f"The checkpoints cannot be written to {folder}: {error.strerror} for user {os.geteuid()}."
        if isinstance(error, PermissionError):
            problem += " Give a volume that this user may write, for example by fsGroup in security_context"
        return problem
    if not url:
        return ""
    from gangjobs_result import StorageError, open_file_system, write_object

    try:
        file_system, root = open_file_system(url)
    except StorageError:
        return ""  # the program may have a library of its own
    try:
        write_object(file_system, root + "/" + name, b"\n")
        with suppress(FileNotFoundError):
            file_system.rm_file(root + "/" + name)
    except Exception as error:
        return f"The checkpoints cannot be written to {url}: {type(error).__name__}: {error}"
    return ""


def remove(environ: Mapping[str, str]) -> str:
    """Remove the folder of the task, and return why that failed; empty if it is gone."""
    folder, url = environ.get(ENV_DIR), environ.get(ENV_URL)
    try:
        if folder and os.path.exists(folder):
            shutil.rmtree(folder)
        if url:
            from gangjobs_result import open_file_system

            file_system, root = open_file_system(url)
            file_system.rm(root, recursive=True)
    except FileNotFoundError:
        pass
    except Exception as error:
        return f"The checkpoints in {folder or url} could not be removed: {error}"
    return ""


def main(action: str, environ: Mapping[str, str]) -> int:
    problem = {"prepare": prepare, "remove": remove}[action](environ)
    if not problem:
        return 0
    print(problem, file=sys.stderr)
    if action == "prepare" and environ.get(ENV_RESULT_PATH):
        with open(environ[ENV_RESULT_PATH], "w") as file:
            json.dump({"error": problem, "at": time.time()}, file)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], os.environ))

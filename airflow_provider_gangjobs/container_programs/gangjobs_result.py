"""Writes the result of a rank, also if the result is too large for the termination message of its pod.

The provider mounts this file into the pods of a task with `result_storage`, and beside `gangjobs_rank.py`, which opens
object stores with it. The Python of the image runs it, so it uses only the standard library of Python 3.8. A program in
Python calls it, and another program pipes its result into it:

    from gangjobs_result import write_result
    write_result({"rows": rows})

    produce_json | python "$GANG_FILES/gangjobs_result.py"

A result of at most `RESULT_BYTES_MAX` bytes goes to the file that GANG_RESULT_PATH names. A larger result is written to
the folder that GANG_RESULT_STORAGE names, for the installation of Airflow that GANG_INSTALLATION names, and its address
goes to GANG_RESULT_PATH. A folder with the protocol `file` needs only a volume. Every other protocol needs the library
fsspec with its implementation in the image, and credentials in the environment of the pod.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from typing import Any, Mapping, Optional, Tuple

ENV_PATH = "GANG_RESULT_PATH"
ENV_STORAGE = "GANG_RESULT_STORAGE"
ENV_INSTALLATION = "GANG_INSTALLATION"
ADDRESS = "gang_result"
"""Key of the address in the place of a result that is stored elsewhere."""
SIZE = "bytes"
RESULT_BYTES_MAX = 4095
"""The kubelet truncates the result to 4096 bytes, so a result of exactly 4096 bytes may have been longer."""
LOCAL_PROTOCOLS = ("", "file", "local")
DEPTH_MAX = 100
"""How deep lists and objects of a result may be nested. Airflow's own limit depends on its process."""
INT_MIN, INT_MAX = -(2**63), 2**64 - 1
"""Airflow's processes send each other no other integers."""
_RESERVED_KEYS = ("__classname__", "__id__")
"""Airflow stores no object with these keys, because its own objects have them."""
_REFUSED_CHARACTER = re.compile("[\x00\ud800-\udfff]")
"""PostgreSQL stores no U+0000 in JSON, and no half of a character."""


class StorageError(Exception):
    """The storage cannot be used from this image."""


def write_result(value: Any, environ: Optional[Mapping[str, str]] = None) -> None:
    """Write a JSON value as the result of this rank.

    Raises:
        ValueError: Airflow cannot store the value.
        StorageError, OSError: the value is large, and the storage cannot be written.
    """
    _write_result(encode(value), os.environ if environ is None else environ)


def write_content(content: bytes, environ: Mapping[str, str]) -> None:
    """Write JSON or other text as the result of this rank, as `write_result` does."""
    _, problem = parse(content.decode("utf-8"))
    if problem:
        raise ValueError(f"Airflow cannot store this result: {problem}")
    _write_result(content, environ)


def _write_result(content: bytes, environ: Mapping[str, str]) -> None:
    short = store_if_large(content, environ)
    with open(environ[ENV_PATH], "wb") as file:
        file.write(short)


def encode(value: Any) -> bytes:
    """Return the value as JSON text.

    Raises:
        ValueError: Airflow cannot store the value.
    """
    problem = find_problem(value)
    if problem:
        raise ValueError(f"Airflow cannot store this result: result{problem}")
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def parse(text: str) -> Tuple[Any, str]:
    """Return the value of a result, which is text if it is not JSON, and what Airflow cannot store of it, if anything.

    The place is part of the problem, such as `result["loss"] is NaN`.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    except (RecursionError, ValueError):
        return None, "result is nested too deep, or has an integer of too many digits"
    problem = find_problem(value)
    return value, f"result{problem}" if problem else ""


def find_problem(value: Any, depth: int = 0) -> str:
    """Return what Airflow cannot store of a value, as text that follows the name of the value: `["loss"] is NaN`.

    Empty if Airflow can store the value.
    """
    if depth > DEPTH_MAX:
        return f" is nested more than {DEPTH_MAX} deep"
    if not isinstance(value, (dict, list, tuple)):
        return _scalar_problem(value)
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        problem = " is reserved by Airflow" if key in _RESERVED_KEYS else _scalar_problem(key)
        if problem:
            return f" has the key {key!r:.80}, which{problem}"
        problem = find_problem(item, depth + 1)
        if problem:
            return f"[{json.dumps(key)}]{problem}"
    return ""


def _scalar_problem(value: Any) -> str:
    if isinstance(value, str):
        found = _REFUSED_CHARACTER.search(value)
        return f" has the character U+{ord(found.group()):04X}" if found else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f" is {json.dumps(value)}"
    if isinstance(value, int):
        return "" if INT_MIN <= value <= INT_MAX else f" is an integer of {value.bit_length()} bits"
    return "" if value is None else f" is of type {type(value).__qualname__}"


def store_if_large(content: bytes, environ: Mapping[str, str]) -> bytes:
    """Return the content, or the address of the object that now has the content.

    Raises:
        StorageError, OSError: the content is large, and the storage cannot be written.
    """
    if len(content) <= RESULT_BYTES_MAX:
        return content
    folder = environ.get(ENV_STORAGE)
    if not folder:
        raise StorageError(
            f"The result has {len(content)} bytes, and {RESULT_BYTES_MAX} fit: set result_storage of the task"
        )
    address = folder.rstrip("/") + "/" + result_object_name(environ)
    _write(address, content)
    return json.dumps({ADDRESS: address, SIZE: len(content)}, ensure_ascii=False).encode("utf-8")


def check_storage(environ: Mapping[str, str]) -> None:
    """Find out whether a result could be stored, as far as this is known before anything is written.

    Raises:
        StorageError, OSError: the folder cannot be written, or the image lacks the library of the protocol.
    """
    folder = environ.get(ENV_STORAGE)
    if not folder:
        return
    protocol, path = _split(folder)
    if protocol not in LOCAL_PROTOCOLS:
        open_file_system(folder)
        return
    os.makedirs(path, exist_ok=True)
    if not os.access(path, os.W_OK):
        raise StorageError(f"The folder {path} cannot be written by user {os.getuid()}")


def result_object_name(environ: Mapping[str, str]) -> str:
    """Return the name of the object of this rank in the folder of its task.

    Each installation of Airflow has objects of its own, and so has each attempt.
    """
    installation = environ.get(ENV_INSTALLATION)
    folder = f"installation-{installation}/" if installation else ""
    index = environ.get("JOB_COMPLETION_INDEX")  # with roles, the rank in the role
    offset = int(environ.get("GANG_RANK_OFFSET") or 0)
    name = f"rank-{int(index) + offset:05}" if index else "pod-" + environ.get("HOSTNAME", "unknown")
    return f"{folder}attempt-{environ.get('GANG_ATTEMPT') or 0}/{name}.json"


def _split(address: str) -> Tuple[str, str]:
    """Return the protocol and the rest of an address. The protocol of a path is empty."""
    protocol, mark, rest = address.partition("://")
    return (protocol, rest) if mark else ("", address)


def _write(address: str, content: bytes) -> None:
    protocol, path = _split(address)
    if protocol in LOCAL_PROTOCOLS:
        _write_file(path, content)
        return
    write_object(*open_file_system(address), content)


def _write_file(path: str, content: bytes) -> None:
    """Write a file that is either absent or complete, whenever the rank is killed."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def open_file_system(url: str) -> Tuple[Any, str]:
    """Return the file system of an object store, and the path in it. Airflow's connection id is not part of the path.

    Raises:
        StorageError: the image lacks a library.
    """
    protocol, path = _split(url)
    host, slash, rest = path.partition("/")
    try:
        from fsspec.core import url_to_fs

        file_system, path = url_to_fs(protocol + "://" + host.rpartition("@")[2] + slash + rest)
    except (ImportError, ValueError) as error:
        raise StorageError(
            f"This image cannot use {protocol}:// ({error}). Install fsspec and its library for this protocol in the"
            " image, or give a folder on a volume"
        ) from None
    return file_system, path.rstrip("/")


def write_object(file_system: Any, path: str, content: bytes | os.PathLike[str]) -> None:
    """Write an object, or copy a file. Folders are made only if the store has some, because that may need a right."""

    def write() -> None:
        if isinstance(content, bytes):
            file_system.pipe_file(path, content)
        else:
            file_system.put_file(str(content), path)

    try:
        write()
    except FileNotFoundError:
        file_system.makedirs(path.rpartition("/")[0], exist_ok=True)
        write()


def main() -> int:
    """Write the result that is piped into this program."""
    try:
        write_content(sys.stdin.buffer.read(), os.environ)
    except (StorageError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

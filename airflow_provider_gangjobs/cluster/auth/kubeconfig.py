"""Reads and merges kubeconfigs and selects the cluster and user of a context. Blocking: call it in a thread.

The format is that of client-go (`k8s.io/client-go/tools/clientcmd/api/v1`). Several files are merged as kubectl merges
them: the first file that sets current-context, or that has a cluster, user, or context of a name, determines its value.
Errors name the file and the field, and contain no secret; `credentials` adds the connection.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from msgspec import Struct

from airflow_provider_gangjobs.kube.yaml_errors import YAML_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ConfigError(Exception):
    """The kubeconfig or service account cannot be used until somebody corrects it."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(problem)


class TokenUnavailableError(Exception):
    """The exec plugin or the token file did not give a token. A later attempt may succeed."""


_PATH_CHARACTERS_MAX = 250
_NUMBER_BITS_MAX = 256


class Section(Struct, frozen=True):
    """A mapping in a kubeconfig, such as one user. An empty text or null means that a field is not set, as in kubectl.

    :param source: The kubeconfig as an error names it: "the kubeconfig /home/me/.kube/config".
    :param path: The path of the mapping within the kubeconfig, such as "users[me].user".
    :param directory: The directory of relative file names.
    """

    source: str
    path: str
    directory: str = ""
    value: Mapping[object, object] = {}

    def __repr__(self) -> str:
        return f"Section(source={self.source!r}, path={self.path!r}, directory={self.directory!r})"

    @classmethod
    def of(cls, value: object, *, source: str, path: str, directory: str = "") -> Section:
        """Return the mapping `value` as a section. Null is an empty section.

        Raises:
            ConfigError: `value` is neither a mapping nor null.
        """
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{source} cannot be used: {path} is not a mapping", "Correct this field.")
        return cls(source, path, directory, value or {})

    def error(self, name: str, problem: str, remedy: str = "Correct this field.") -> ConfigError:
        """Return the error of a field. `problem` follows the name of the field and contains no secret."""
        return ConfigError(f"{self.source} cannot be used: {self.field_path(name)} {problem}", remedy)

    def field_path(self, name: str) -> str:
        """Return how messages name a field: its path from the top of the file, such as `users[0].user.token`."""
        return f"{self.path}.{name}" if self.path else name

    def is_set(self, name: str) -> bool:
        """Return whether the field has a value. An empty text counts as none."""
        return self.value.get(name) not in (None, "")

    def text(self, name: str) -> str | None:
        """Return a text, or None if the field is not set. A number is its decimal digits, as in the official client."""
        value = self.value.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= _NUMBER_BITS_MAX:
            return str(value)
        raise self.error(name, "is not a string", "Write it as a string in quotes.")

    def required_text(self, name: str) -> str:
        """Return a text, as `text` does.

        Raises:
            ConfigError: the field is not set, or is no text.
        """
        value = self.text(name)
        if value is None:
            raise self.error(name, "is not set", "Set this field.")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean, which is false if the field is not set.

        Raises:
            ConfigError: the field is no boolean.
        """
        value = self.value.get(name)
        if value is None:
            return False
        if isinstance(value, bool):
            return value
        raise self.error(name, "is not a boolean", "Write true or false without quotes.")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts. A field that is not set is an empty list."""
        values = self.list(name)
        if not all(isinstance(value, str) for value in values):
            raise self.error(name, "is not a list of strings", "Write each item as a string in quotes.")
        return tuple(str(value) for value in values)

    def list(self, name: str) -> list[object]:
        """Return a list, which is empty if the field is not set.

        Raises:
            ConfigError: the field is no list.
        """
        value = self.value.get(name)
        if value is None:
            return []
        if isinstance(value, list):
            return value
        raise self.error(name, "is not a list")

    def section(self, name: str) -> Section:
        """Return a mapping. A field that is not set is an empty section."""
        return self.part(self.field_path(name), self.value.get(name))

    def sections(self, name: str) -> tuple[Section, ...]:
        path = self.field_path(name)
        return tuple(self.part(f"{path}[{index}]", value) for index, value in enumerate(self.list(name)))

    def part(self, path: str, value: object) -> Section:
        """Return a mapping of the same kubeconfig as a section, as `of` does."""
        return Section.of(value, source=self.source, path=path, directory=self.directory)

    def file_content(self, name: str) -> bytes | None:
        """Return the content of the file that a field names, or None if the field is not set."""
        path = self.text(name)
        if path is None:
            return None
        try:
            return Path(self.directory, path).read_bytes()
        except (OSError, ValueError) as exc:
            reason = (exc.strerror if isinstance(exc, OSError) else None) or "it is not a file name"
            problem = f"names the file {shown_path(path, self.directory)}, which cannot be read: {reason}"
            remedy = "Correct the file name, or make the file readable for workers and triggerers."
            raise self.error(name, problem, remedy) from None

    def pem(self, name: str) -> bytes | None:
        """Return a certificate or key, embedded as `NAME-data` or from the file `NAME`, in this order as in kubectl."""
        embedded = self.text(f"{name}-data")
        if embedded is None:
            content = self.file_content(name)
            if content is not None and not content.strip():
                raise self.error(name, "names an empty file")
            return content
        try:
            return base64.b64decode("".join(embedded.split()), validate=True)
        except (binascii.Error, ValueError):
            remedy = "Encode the PEM text with base64, or name its file in the field without -data."
            raise self.error(f"{name}-data", "is not valid base64", remedy) from None


def shown_path(path: str, directory: str = "") -> str:
    """Return the name of a file for a message. A text that is no file name may be a secret in the wrong field."""
    is_token = path.startswith("eyJ")
    if len(path) > _PATH_CHARACTERS_MAX or not path.isprintable() or is_token or looks_like_content(path):
        return "(not shown, because it may be a secret)"
    return str(Path(directory, path))


def looks_like_content(path: str) -> bool:
    """Return whether a text in the place of a file name is the content of a file, in YAML or JSON or as PEM.

    A field of a form for one line takes the line breaks out of what is pasted into it.
    """
    return any(mark in path for mark in ("\n", ": ", "{", "-----"))


INLINE_SOURCE = "extra kube_config"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader of libyaml is ten times as fast, but not every installation of PyYAML has it."""


class Kubeconfig:
    """One or several merged kubeconfigs."""

    def __init__(self, source: str, documents: Iterable[Section]) -> None:
        self._source = source
        self._documents = tuple(documents)

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any]) -> Kubeconfig:
        """Return the kubeconfig of a connection."""
        return cls(INLINE_SOURCE, [Section.of(dict(content), source=INLINE_SOURCE, path="")])

    @classmethod
    def from_files(cls, paths: Iterable[str]) -> Kubeconfig:
        """Read and merge files. Empty files are skipped.

        Raises:
            ConfigError: a file cannot be read, is not YAML, or is not a mapping, or all files are empty.
        """
        paths = tuple(paths)
        source = f"the kubeconfig {os.pathsep.join(paths)}"
        documents = [document for document in map(_read, paths) if document.value]
        if not documents:
            raise ConfigError(f"{source} is empty", "Write a kubeconfig to it.")
        return cls(source, documents)

    def select(self, context_name: str | None) -> tuple[Section, Section]:
        """Return the cluster and user of a context. The default is the current context.

        The user is empty if the context has none.

        Raises:
            ConfigError: the context, its cluster, or its user does not exist, or a field has another type.
        """
        name = context_name or self._current_context()
        context = self._required("contexts", "context", name, "Correct current-context or extra cluster_context.")
        cluster_name, user_name = context.required_text("cluster"), context.text("user")
        remedy = f"Correct {context.path} or add the entry."
        cluster = self._required("clusters", "cluster", cluster_name, remedy)
        user = None if user_name is None else self._required("users", "user", user_name, remedy)
        return cluster, user or Section(context.source, "user")

    def _current_context(self) -> str:
        for document in self._documents:
            if name := document.text("current-context"):
                return name
        remedy = "Set current-context, or extra cluster_context of the connection."
        raise ConfigError(f"{self._source} cannot be used: current-context is not set", remedy)

    def _required(self, plural: str, singular: str, name: str, remedy: str) -> Section:
        found = None
        for document in self._documents:
            for item in document.sections(plural):
                if item.required_text("name") != name:
                    continue
                if found is None:
                    found = document.part(f"{plural}[{_shown_name(name)}].{singular}", item.value.get(singular))
                elif document.source == INLINE_SOURCE:  # of several files, the first one counts
                    problem = f"has several entries with the name {_shown_name(name)}"
                    raise document.error(plural, problem, "Keep one of them.")
        if found is None:
            problem = f"{self._source} cannot be used: {plural} has no entry with the name {_shown_name(name)}"
            raise ConfigError(problem, remedy)
        return found


def default_paths() -> list[str]:
    """Return the existing files of $KUBECONFIG, or of kubectl's default location."""
    return existing_paths(os.environ.get("KUBECONFIG") or "~/.kube/config")


def existing_paths(listed: str) -> list[str]:
    """Return the existing files of a list that is separated as in $KUBECONFIG."""
    return [path for path in map(os.path.expanduser, listed.split(os.pathsep)) if path and os.path.exists(path)]


def _read(path: str) -> Section:
    source = f"the kubeconfig {path}"
    try:
        content = yaml.load(Path(path).read_bytes(), Loader=_LOADER)  # noqa: S506 - it constructs only plain values
    except OSError as exc:
        remedy = "Make the file readable for workers and triggerers."
        raise ConfigError(f"{source} cannot be read: {exc.strerror}", remedy) from None
    except YAML_ERRORS as exc:
        # Not chained: the parser's message quotes the malformed line, which may contain a token.
        mark = getattr(exc, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise ConfigError(f"{source} is not valid YAML{line}", "Correct the file.") from None
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"{source} is not a mapping", "Replace it with a kubeconfig.")
    directory = os.path.dirname(os.path.abspath(path))
    return Section.of(content, source=source, path="", directory=directory)


def _shown_name(name: str) -> str:
    return name if len(name) <= 100 and name.isprintable() else "(not shown)"

"""Reads and merges kubeconfigs and selects the cluster and user of a context. Blocking: call it in a thread.

The format is that of client-go (`k8s.io/client-go/tools/clientcmd/api/v1`). Several files are merged as kubectl merges
them: the first file that sets current-context, or that has a cluster, user, or context of a name, determines its value.

The official Python client reads the same format. It is not used because its import, of 768 modules of models, takes a
task process 0.24 to 0.38 s of CPU on a quiet machine, a fifth of all that it uses.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from msgspec import Struct

from airflow_provider_gangjobs.cluster.auth.errors import ConfigError
from airflow_provider_gangjobs.cluster.auth.kubeconfig_fields import Section

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INLINE_SOURCE = "extra kube_config"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader of libyaml is ten times as fast, but not every installation of PyYAML has it."""


class SelectedContext(Struct, frozen=True):
    """The cluster and user of one context."""

    cluster: Section
    user: Section
    """Empty if the context has no user."""
    namespace: str | None


class _Document(Struct, frozen=True):
    """One file, or the kubeconfig of a connection."""

    root: Section
    file: str | None


class Kubeconfig:
    """One or several merged kubeconfigs."""

    def __init__(self, source: str, documents: Iterable[_Document]) -> None:
        self._source = source
        self._documents = tuple(documents)

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any]) -> Kubeconfig:
        """Return the kubeconfig of a connection."""
        return cls(INLINE_SOURCE, [_Document(Section.of(dict(content), source=INLINE_SOURCE, path=""), None)])

    @classmethod
    def from_files(cls, paths: Iterable[str]) -> Kubeconfig:
        """Read and merge files. Empty files are skipped.

        Raises:
            ConfigError: a file cannot be read, is not YAML, or is not a mapping, or all files are empty.
        """
        paths = tuple(paths)
        source = f"the kubeconfig {os.pathsep.join(paths)}"
        documents = [document for document in map(_read, paths) if document.root.value]
        if not documents:
            raise ConfigError(f"{source} is empty", "Write a kubeconfig to it.")
        return cls(source, documents)

    def select(self, context_name: str | None) -> SelectedContext:
        """Return the cluster and user of a context. The default is the current context.

        Raises:
            ConfigError: the context, its cluster, or its user does not exist, or a field has another type.
        """
        name = context_name or self._current_context()
        context = self._required("contexts", "context", name, "Correct current-context or extra cluster_context.")
        cluster_name, user_name = context.required_text("cluster"), context.text("user")
        remedy = f"Correct {context.path} or add the entry."
        cluster = self._required("clusters", "cluster", cluster_name, remedy)
        user = None if user_name is None else self._required("users", "user", user_name, remedy)
        return SelectedContext(cluster, user or Section(context.source, "user"), context.text("namespace"))

    def _current_context(self) -> str:
        for document in self._documents:
            if name := document.root.text("current-context"):
                return name
        remedy = "Set current-context, or extra cluster_context of the connection."
        raise ConfigError(f"{self._source} cannot be used: current-context is not set", remedy)

    def _required(self, plural: str, singular: str, name: str, remedy: str) -> Section:
        found = None
        for document in self._documents:
            for item in document.root.sections(plural):
                if item.required_text("name") != name:
                    continue
                if found is None:
                    content = item.value.get(singular)
                    path, root = f"{plural}[{_shown_name(name)}].{singular}", document.root
                    found = Section.of(content, source=root.source, path=path, directory=root.directory)
                elif document.file is None:
                    problem = f"has several entries with the name {_shown_name(name)}"
                    raise document.root.error(plural, problem, "Keep one of them.")
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


def _read(path: str) -> _Document:
    source = f"the kubeconfig {path}"
    try:
        content = yaml.load(Path(path).read_bytes(), Loader=_LOADER)  # noqa: S506 - it constructs only plain values
    except OSError as exc:
        remedy = "Make the file readable for workers and triggerers."
        raise ConfigError(f"{source} cannot be read: {exc.strerror}", remedy) from None
    except yaml.YAMLError as exc:
        # Not chained: the parser's message quotes the malformed line, which may contain a token.
        mark = getattr(exc, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise ConfigError(f"{source} is not valid YAML{line}", "Correct the file.") from None
    except (ValueError, OverflowError, RecursionError):
        raise ConfigError(f"{source} is not valid YAML", "Correct the file.") from None
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"{source} is not a mapping", "Replace it with a kubeconfig.")
    directory = os.path.dirname(os.path.abspath(path))
    return _Document(Section.of(content, source=source, path="", directory=directory), path)


def _shown_name(name: str) -> str:
    return name if len(name) <= 100 and name.isprintable() else "(not shown)"

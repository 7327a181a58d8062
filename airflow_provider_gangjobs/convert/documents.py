"""Reads the objects of files, with the line of each, and says in one line what is wrong with a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.convert.secrets import without_secrets
from airflow_provider_gangjobs.gang.render.user_manifest import (
    TEXT_CHARACTERS_MAX,
    iter_scalars,
    kind_of,
    parse_documents,
)
from airflow_provider_gangjobs.gang.validation.parsed_spec import not_json_problems
from airflow_provider_gangjobs.kube.text import cut_end, to_printable_line

if TYPE_CHECKING:
    from airflow_provider_gangjobs.exceptions import Problem

PROBLEM_CHARACTERS_MAX: Final = 300
"""A value of a file may be in a message. The cure behind it stays whole."""
_TEMPLATE: Final = re.compile(
    r"\{\{-?\s*(?:\.(?:Values|Release|Chart|Files|Capabilities|Template)\b"
    r"|(?:include|if|else|end|range|with|define|template|tpl|toYaml|required|block)\b|/\*)"
)
"""The beginning of an action of Helm. Other braces may be text of a program."""


_PLACEHOLDER: Final = re.compile(r"\$\{?[A-Za-z_]\w*\}?|<[A-Za-z][\w -]{0,100}>|\b__[A-Z_]{1,100}__\b")
"""What `envsubst`, or a person, replaces before the manifest can be used. `$(NAME)` is of Kubernetes."""
_FREE_TEXT: Final = re.compile(r"(?:^|\.)(?:command|args|env|annotations|description)\b")
"""The paths of texts in which a program may have a placeholder of its own."""


_JSON_LINE: Final = re.compile(r"(?<=\})(\s*\n)\{")
"""Between two objects of JSON, which `kubectl` also reads without a separator. No YAML and no JSON has it elsewhere."""


class ConversionError(Exception):
    """A file cannot be converted. The message is one line with the file, the line, and what to do."""


class Document(Struct, frozen=True):
    """One object of a file."""

    file: str
    line: int
    data: dict[str, Any]
    text: str
    """The whole file, in which lines are looked up."""
    beside: Sequence[Mapping[str, Any]] = ()
    """The objects of all files."""

    @property
    def kind(self) -> str:
        """The version and the kind, such as `batch/v1 Job`."""
        return kind_of(self.data)

    @property
    def name(self) -> str:
        metadata = self.data.get("metadata", {})
        return str(metadata.get("name") or str(metadata.get("generateName", "")).rstrip("-"))

    def line_of(self, *parts: str) -> int:
        """Return the first line of the object that has one of the texts, or else the line where the object begins."""
        lines = enumerate(self.text.splitlines()[self.line - 1 :], self.line)
        return next((number for number, line in lines if any(part in line for part in parts)), self.line)

    def require_values(self) -> None:
        """Check that no field has a placeholder in place of its value.

        Raises:
            ConversionError: one has.
        """
        for path, value in iter_scalars(self.data, ""):
            found = _PLACEHOLDER.search(value) if isinstance(value, str) and not _FREE_TEXT.search(path) else None
            if found:
                remedy = "Write the value in its place, as `envsubst` does with variables"
                raise self.error(f"{path} has the placeholder {found[0]}", remedy, found[0])

    def error(self, what: str, remedy: str, part: str = "") -> ConversionError:
        """Return the error about a part of the object."""
        return error_at(self.file, self.line_of(part), what, remedy)

    def refusal(self, problem: Problem) -> ConversionError:
        """Return the error about a field of the Job, or about a parameter that has its name."""
        path = problem.path.removeprefix("manifest.spec.")
        return self.error(f"{path} {problem.what}", problem.remedy, path.rpartition(".")[2].partition("[")[0])


def error_at(file: str, line: int, what: str, remedy: str) -> ConversionError:
    where, problem, cure = (
        to_printable_line(without_secrets(text, "${}".format)) for text in (f"{file}: line {line}", what, remedy)
    )
    return ConversionError(f"{where}: {cut_end(problem, PROBLEM_CHARACTERS_MAX)}. {cure}")


def read_documents(file: str, text: str) -> tuple[Document, ...]:
    """Return the objects of a YAML or JSON text, each item of a List on its own.

    :param file: The name of the file, for messages.

    Raises:
        ConversionError: the text cannot be read, or has something that is no object of Kubernetes.
    """
    if len(text) <= TEXT_CHARACTERS_MAX and (found := _TEMPLATE.search(text)):
        line = text.count("\n", 0, found.start()) + 1
        raise error_at(file, line, "is a template of Helm", "Give what `helm template` prints")
    documents: list[Document] = []
    separated = _JSON_LINE.sub(r"\1--- {", text)
    for each in parse_documents(separated, parameter="manifest"):
        for problem in (*each.problems, *not_json_problems(each)):
            what = f"{problem.path} {problem.what}".removeprefix("manifest").lstrip(" .")
            written = re.search(r"line (\d+)", what)
            line = int(written[1]) if written else each.line
            has_braces = any("{{" in text for text in text.splitlines()[line - 1 : line])
            remedy = "Render the template first" if has_braces else problem.remedy
            raise error_at(file, line, re.sub(r"line \d+:? ", "", what), remedy)
        documents += _objects(Document(file, each.line, each.data, text))
    return tuple(documents)


def _objects(document: Document) -> Iterator[Document]:
    data, metadata = document.data, document.data.get("metadata", {})
    if str(data.get("kind", "")).endswith("List") and data.get("items") and isinstance(data["items"], list):
        for item in data["items"]:
            if not isinstance(item, dict):
                raise document.error("has an item that is no object", "Correct the List", "items")
            for each in _objects(replace(document, data=item)):
                yield replace(each, line=each.line_of(f"name: {each.name}", f'"{each.name}"'))
    elif (
        isinstance(data.get("kind"), str) and isinstance(data.get("apiVersion"), str) and isinstance(metadata, Mapping)
    ):
        yield document
    else:
        raise document.error("is no object of Kubernetes", "Give manifests, as `kubectl kustomize` prints them")

"""Reads the objects of files, with the line of each, and says in one line what is wrong with a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from airflow_provider_gangjobs.convert.secrets import has_secret_value, variable_of, without_secrets
from airflow_provider_gangjobs.gang.render.pod_template import CONTAINER_FIELDS, POD_FIELDS
from airflow_provider_gangjobs.gang.render.user_manifest import UserManifest, iter_scalars, kind_of, parse_documents
from airflow_provider_gangjobs.gang.validation.parsed_spec import not_json_problems, parameter_in
from airflow_provider_gangjobs.kube.text import cut_end, to_printable_line

if TYPE_CHECKING:
    from airflow_provider_gangjobs.exceptions import Problem

PROBLEM_CHARACTERS_MAX: Final = 300
"""A value of a file may be in a message. The cure behind it stays whole."""
_OF_HELM: Final = r"\{\{[^{}]{0,256}\.(?:Values|Release|Chart|Files|Capabilities|Template)\b"
_HELM: Final = re.compile(_OF_HELM)
"""An action that reads an object of Helm. Other programs have templates, too, such as `kubectl` and Vault."""
_TEMPLATE: Final = re.compile(
    rf"{_OF_HELM}|\{{\{{-?\s*(?:(?:include|if|else|end|range|with|define|template|tpl|toYaml|required|block)\b|/\*)"
)
"""Any action of Helm, in a place where no other program has templates."""
_IS_OF_HELM: Final = ("is a template of Helm", "Give what `helm template` prints")
_PLACEHOLDER: Final = re.compile(r"\$\{?[A-Za-z_]\w*\}?|<[A-Za-z][\w -]{0,100}>|\b__[A-Z_]{1,100}__\b")
"""What `envsubst`, or a person, replaces before the manifest can be used. `$(NAME)` is of Kubernetes."""
_FREE_TEXT: Final = re.compile(r"(?:^|\.)(?:command|args|env|annotations|description)\b")
"""The paths of texts in which a program may have a placeholder or a template of its own."""
_TEXT: Final = re.compile(
    r"(?:^|\.)(?:(?:command|args)\[\d+\]|env\[\d+\]\.value|(?:labels|annotations|nodeSelector)\..{1,1000}"
    r"|name|namespace|image|workingDir|mountPath|subPath)$"
)
"""The paths of values that Kubernetes takes only as text, and people write without quotation marks."""
_FIELDS: Final = {
    **CONTAINER_FIELDS,
    **POD_FIELDS,
    "volume_mounts": "volumeMounts",
    "image_pull_secrets": "imagePullSecrets",
}
"""The field of a file by the parameter that has its value, if the two have other names."""


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
    source: UserManifest
    """The document of the text that has the object, or a List with it."""
    path: str = "manifest"
    """Where the object is in the document."""
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
        """Check that no field has a placeholder or a template in place of its value, or a number in place of a text.

        Raises:
            ConversionError: one has.
        """
        scalars = dict(iter_scalars(self.data, ""))
        for path, value in scalars.items():
            text, is_free = value if isinstance(value, str) else "", _FREE_TEXT.search(path)
            if found := (_HELM if is_free else _TEMPLATE).search(text):
                raise self.error(*_IS_OF_HELM, found[0])
            name = variable_of(str(scalars.get(f"{path.removesuffix('value')}name")))
            is_number = isinstance(value, (bool, int, float)) and not has_secret_value(name, str(value))
            if is_number and _TEXT.search(path):
                problem = self.source.not_text_problem(f"{self.path}.{path}", value)
                line, what = _line_of(problem, self.line)
                raise error_at(self.file, line, what, problem.remedy)
            if not is_free and (found := _PLACEHOLDER.search(text)):
                remedy = "Write the value in its place, as `envsubst` does with variables"
                raise self.error(f"{path} has the placeholder {found[0]}", remedy, found[0])

    def error(self, what: str, remedy: str, part: str = "") -> ConversionError:
        """Return the error about a part of the object."""
        return error_at(self.file, self.line_of(part), what, remedy)

    def refusal(self, problem: Problem) -> ConversionError:
        """Return the error about a field of the Job, or about a parameter that has its name."""
        name = parameter_in(problem.path)
        path = problem.path.removeprefix("manifest.spec.").replace(name, _FIELDS.get(name, name), 1)
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
    documents: list[Document] = []
    lines = text.splitlines()
    separated = _JSON_LINE.sub(r"\1--- {", text)
    for each in parse_documents(separated, parameter="manifest"):
        for problem in (*each.problems, *not_json_problems(each)):
            line, what = _line_of(problem, each.line)
            # YAML fails at an action of a template, or at the beginning of the line behind it.
            for number in (line - 1, line) if what.startswith("is not YAML") else ():
                if any(map(_TEMPLATE.search, lines[max(number - 1, 0) : number])):
                    raise error_at(file, number, *_IS_OF_HELM)
            has_braces = any("{{" in each for each in lines[line - 1 : line])
            raise error_at(file, line, what, "Render the template first" if has_braces else problem.remedy)
        documents += _objects(Document(file, each.line, each.data, text, each))
    return tuple(documents)


def _line_of(problem: Problem, default: int) -> tuple[int, str]:
    """Return the line that a problem names, and its text without the line."""
    what = f"{problem.path} {problem.what}".removeprefix("manifest").lstrip(" .")
    written = re.search(r"line (\d+):? ", what)
    return int(written[1]) if written else default, re.sub(r"line \d+:? ", "", what)


def _objects(document: Document) -> Iterator[Document]:
    data, metadata = document.data, document.data.get("metadata", {})
    if str(data.get("kind", "")).endswith("List") and data.get("items") and isinstance(data["items"], list):
        for index, item in enumerate(data["items"]):
            if not isinstance(item, dict):
                raise document.error("has an item that is no object", "Correct the List", "items")
            for each in _objects(replace(document, data=item, path=f"{document.path}.items[{index}]")):
                yield replace(each, line=each.line_of(f"name: {each.name}", f'"{each.name}"'))
    elif (
        isinstance(data.get("kind"), str) and isinstance(data.get("apiVersion"), str) and isinstance(metadata, Mapping)
    ):
        yield document
    else:
        raise document.error("is no object of Kubernetes", "Give manifests, as `kubectl kustomize` prints them")

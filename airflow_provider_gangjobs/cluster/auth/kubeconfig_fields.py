"""Typed access to the fields of a kubeconfig, with errors that name the file and the field."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.auth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATH_CHARACTERS_MAX = 250
_NUMBER_BITS_MAX = 256


@dataclass(frozen=True)
class Section:
    """A mapping in a kubeconfig, such as one user. An empty text or null means that a field is not set, as in kubectl.

    :param source: The kubeconfig as an error names it: "the kubeconfig /home/me/.kube/config".
    :param path: The path of the mapping within the kubeconfig, such as "users[me].user".
    :param directory: The directory of relative file names.
    """

    source: str
    path: str
    directory: str = ""
    value: Mapping[object, object] = field(default_factory=dict, repr=False)

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
        return Section.of(
            self.value.get(name), source=self.source, path=self.field_path(name), directory=self.directory
        )

    def sections(self, name: str) -> tuple[Section, ...]:
        """Return a list of mappings."""
        return tuple(
            Section.of(value, source=self.source, path=f"{self.field_path(name)}[{index}]", directory=self.directory)
            for index, value in enumerate(self.list(name))
        )

    def file_content(self, name: str) -> bytes | None:
        """Return the content of the file that a field names, or None if the field is not set."""
        path = self.text(name)
        if path is None:
            return None
        try:
            return Path(self.directory, path).read_bytes()
        except (OSError, ValueError) as exc:
            reason = (exc.strerror if isinstance(exc, OSError) else None) or "it is not a file name"
            problem = f"names the file {_shown_path(self.directory, path)}, which cannot be read: {reason}"
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


def _shown_path(directory: str, path: str) -> str:
    """Return the name of a file for a message. A text that is no file name may be a secret in the wrong field."""
    if len(path) > _PATH_CHARACTERS_MAX or not path.isprintable() or path.startswith("eyJ"):
        return "(not shown, because it may be a secret)"
    return f"'{Path(directory, path)}'"

"""Secret values of a file never reach the DAG: programs read them from a Secret, and other fields are left out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.convert.secrets import has_secret_value, is_secret, variable_of, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_gangjobs.convert.task import Task


def move_secrets(task: Task, container: dict[str, Any]) -> None:
    """Replace secret values of a container by variables from a Secret, which the kubelet expands in a command."""
    found: dict[str, None] = {}

    def reference(name: str) -> str:
        found[name] = None
        return f"$({name})"

    before: list[Any] = []
    for field in ("command", "args"):
        if words := container.get(field):
            container[field] = before = _without_secret_words(words, reference, before)
    env = container.get("env", ())
    known = {item.get("name") for item in env}
    added = [_from_secret(task, name) for name in found if name not in known]
    if env or added:
        container["env"] = [*added, *(_without_value(task, item) for item in env)]


def _without_value(task: Task, variable: dict[str, Any]) -> dict[str, Any]:
    name, value = str(variable.get("name")), str(variable.get("value", ""))
    return _from_secret(task, name) if "valueFrom" not in variable and is_secret(name, value) else variable


def _without_secret_words(
    words: Sequence[Any], reference: Callable[[str], str], before: Sequence[Any] = ()
) -> list[Any]:
    """Return the words without their secrets. A word that is no text stays: the operator refuses it.

    :param before: The words of the same command that are before these, without their secrets.
    """
    known = list(before)
    for word in words:
        known.append(_moved(known[-WORDS_BEFORE_MAX:], word, reference) if isinstance(word, str) else word)
    return known[len(before) :]


WORDS_BEFORE_MAX: Final = 8
"""How many words of a command say what the next word is."""


def _moved(before: Sequence[Any], word: str, reference: Callable[[str], str]) -> str:
    """Return a word of a command without its secrets.

    :param before: The words before. They name a program, and the last one may be an option whose value is the word.
    """
    option = str(before[-1]) if before else ""
    is_option = option.startswith("-") and not re.search(r"[\s=]", option)
    if is_option and not re.match(r"[$/-]", word) and has_secret_value(variable_of(option), word):
        return reference(variable_of(option))
    command = "".join(f"{each} " for each in before)
    if not option.endswith("-file"):  # its value may name a file, as in password=FILE
        word = without_secrets(word, reference)
    cleaned = without_secrets(command + word, reference)
    return cleaned.removeprefix(command) if cleaned.startswith(command) else word


def _from_secret(task: Task, name: str) -> dict[str, Any]:
    """Return a variable with a value of a Secret, which a person has to create."""
    task.secret_variables.append(name)
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": f"{task.task_id}-env", "key": name}}}


def leave_secrets_out(task: Task, value: Any, name: str = "") -> Any:
    """Return a copy of a parameter in which no field and no text is secret, or None if nothing is left of it.

    What is left out is named.

    :param name: The name of the parameter.
    """
    match value:
        case dict():
            kept = {}
            for key, item in value.items():
                label = str(value.get("name", key)) if key == "value" else key
                if isinstance(item, str) and is_secret(label, item):
                    task.note(f"The value of {label} is secret and left out: it must come from a Secret")
                else:
                    kept[key] = leave_secrets_out(task, item, key)
            return kept if kept or not value else None
        case [str(), *_]:
            words = _without_secret_words(value, "${}".format)
            if words != value:
                task.note(f"A secret in {name} is left out: it must come from a Secret")
            return words
        case list():
            return [leave_secrets_out(task, item, name) for item in value]
    return value

"""Writes the DAG file, in the form that `ruff format` gives to it.

Text that Jinja would read as a template is written so that Airflow renders it to itself. A text of several lines is a
constant of the module.
"""

from __future__ import annotations

import re
import textwrap
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.convert.host_names import map_texts
from airflow_provider_gangjobs.convert.task import Code
from airflow_provider_gangjobs.gang.spec import Rendezvous
from airflow_provider_gangjobs.kube.text import to_printable_line
from airflow_provider_gangjobs.parameters.checks import TEMPLATE_MARKS
from airflow_provider_gangjobs.parameters.declaration import PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider_gangjobs.convert.task import Task

WIDTH: Final = 88
"""The default of ruff. Code of this width stays as it is with a longer one, because broken lists end with a comma."""
_MODES: Final = ("defaultMode", "mode")
"""Fields with the permissions of a file, which people read as octal numbers."""
_UNITS: Final = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
_IMPORTS: Final = {
    "timedelta(": "from datetime import timedelta\n\n",
    "DAG(": "from airflow.sdk import DAG\n",
    "CronTriggerTimetable(": "from airflow.timetables.trigger import CronTriggerTimetable\n",
    "Rendezvous(": "from airflow_provider_gangjobs.gang.spec import Rendezvous\n",
    "GangJobOperator(": "from airflow_provider_gangjobs.operators.gang_job import GangJobOperator\n",
}


def write_dags(tasks: Sequence[Task]) -> str:
    """Return the text of a DAG file: a DAG for each CronJob, and one for all other tasks."""
    writer = _Writer()
    manual = [task for task in tasks if not task.dag]
    dags = [writer.dag(manual)] if manual else []
    dags += [writer.dag([task]) for task in tasks if task.dag]
    constants = "".join(f"{name} = {text}\n" for text, name in writer.constants.items())
    body = "\n".join(filter(None, [constants, *dags]))
    names = ", ".join(task.task_id for task in tasks)
    files = ", ".join(dict.fromkeys(to_printable_line(task.document.file) for task in tasks))
    summary = textwrap.fill(f"Run {names}.", WIDTH - 3)
    origin = textwrap.fill(
        f"`gangjobs convert` has written this file from {files}.", WIDTH, break_long_words=False, break_on_hyphens=False
    )
    imports = "".join(line for mark, line in _IMPORTS.items() if mark in body)
    docstring = f"{summary}\n\n{origin}\n".replace("\\", "/").replace('"', "'")
    return f'"""{docstring}"""\n\n{imports}\n{body}'


class _Writer:
    """Writes the DAGs of one file, which share their constants."""

    def __init__(self) -> None:
        self.constants: dict[str, str] = {}
        """The name of each text of several lines, by its literal."""

    def dag(self, tasks: Sequence[Task]) -> str:
        given = {"schedule": None, **tasks[0].dag}
        arguments = [quoted(tasks[0].task_id), *(f"{name}={self._flat(value)}" for name, value in given.items())]
        head = f"with DAG({', '.join(arguments)}):"
        if len(head) > WIDTH:
            head = "\n".join(["with DAG(", *(f"    {each}," for each in arguments), "):"])
        return f"{head}\n" + "\n".join(self._task(task) for task in tasks)

    def _task(self, task: Task) -> str:
        order = ["task_id", *PARAMETERS, *task.parameters]
        given = {"task_id": task.task_id, **task.parameters}
        comments: dict[str, list[str]] = {}
        for parameter, text in task.notes:
            comments.setdefault(parameter if parameter in given else "", []).append(text)
        lines = [*_comments(comments.get("", ()), 4), "    GangJobOperator("]
        for name in sorted(given, key=order.index):
            is_template = name in PARAMETERS and PARAMETERS[name].is_template
            value = map_texts(given[name], _as_template) if is_template else given[name]
            begin = f"        {name}="
            lines += _comments(comments.get(name, ()), 8)
            lines.append(f"{begin}{self._value(value, name, 8, len(begin) + 1)},")
        return "\n".join([*lines, "    )\n"])

    def _value(self, value: Any, hint: str, indent: int, used: int) -> str:
        """Return a value, on several lines if it does not fit on one.

        :param hint: The name of the value, for a constant.
        :param used: How many characters of the line are not for the value.
        """
        flat = self._flat(value, hint)
        if not isinstance(value, (dict, list)) or not value or used + len(flat.encode(errors="replace")) <= WIDTH:
            return flat
        named = value.items() if isinstance(value, dict) else ((None, item) for item in value)
        lines = []
        for key, item in named:
            begin = " " * (indent + 4) + ("" if key is None else f"{quoted(key)}: ")
            name = hint if key is None else key
            lines.append(f"{begin}{self._value(item, name, indent + 4, len(begin) + 1)},")
        brackets = "{}" if isinstance(value, dict) else "[]"
        return "\n".join([brackets[0], *lines, " " * indent + brackets[1]])

    def _flat(self, value: Any, hint: str = "") -> str:
        match value:
            case Code():
                return str(value)
            case Rendezvous():
                return f"Rendezvous(port={value.port})"
            case timedelta():
                unit = next(name for name, seconds in _UNITS.items() if value.total_seconds() % seconds == 0)
                return f"timedelta({unit}={int(value.total_seconds()) // _UNITS[unit]})"
            case str():
                return self._constant(value, hint) if "\n" in value.rstrip("\n") else quoted(value)
            case dict():
                return "{" + ", ".join(f"{quoted(k)}: {self._flat(item, k)}" for k, item in value.items()) + "}"
            case list():
                return "[" + ", ".join(self._flat(item, hint) for item in value) + "]"
            case int() if hint in _MODES:
                return f"0o{value:03o}"
        return repr(value)

    def _constant(self, text: str, hint: str) -> str:
        escaped = "".join(each if each in "\n\t" else _escape(each) for each in text).replace('"""', '\\"\\"\\"')
        escaped = re.sub(r'"\Z', r"\\" + '"', escaped)
        name = re.sub(r"\W+", "_", hint.rpartition("/")[2], flags=re.ASCII).strip("_").upper() or "TEXT"
        name = f"TEXT_{name}" if name[0].isdigit() else name
        literal = f'"""\\\n{escaped}"""'
        if literal not in self.constants:
            taken = {"DAG", *self.constants.values()}
            names = [name, *(f"{name}_{number}" for number in range(2, len(taken) + 3))]
            self.constants[literal] = next(each for each in names if each not in taken)
        return self.constants[literal]


def _comments(texts: Iterable[str], indent: int) -> list[str]:
    pad = " " * indent + "# "
    lines = (
        textwrap.wrap(f"{text}.", WIDTH - len(pad), break_long_words=False, break_on_hyphens=False) for text in texts
    )
    return [f"{pad}{line}" for each in lines for line in each]


def _escape(character: str) -> str:
    if character == "\\":
        return "\\\\"
    return character if character.isprintable() else repr(character)[1:-1]


def quoted(text: str) -> str:
    """Return the literal with the quotation marks that need fewer escapes."""
    quote = "'" if text.count('"') > text.count("'") else '"'
    escaped = "".join(map(_escape, text)).replace(quote, f"\\{quote}")
    return f"{quote}{escaped}{quote}"


def _as_template(text: str) -> str:
    """Return the template that Airflow renders to the text."""
    if "\r" in text or "endraw" in text:
        return re.sub(r"\{[{%#]|\r", lambda found: f"{{{{ {found[0]!r} }}}}", text)
    return f"{{% raw %}}{text}{{% endraw %}}" if any(mark in text for mark in TEMPLATE_MARKS) else text

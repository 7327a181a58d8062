"""Environment variables: every value is text, every name is unique, and no variable of the gang is set.

Kubernetes accepts text only. YAML 1.1 reads some unquoted texts as booleans, octal numbers or sexagesimal numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.labels import (
    ENV_ATTEMPT,
    ENV_FILES,
    ENV_INSTALLATION,
    ENV_RANK_OFFSET,
    ENV_RESULT_PATH,
    ENV_ROLE,
    ENV_ROLE_RANK,
    ENV_ROLE_SIZE,
    ENV_SIZE,
)
from airflow_provider_gangjobs.gang.render.rendezvous import RENDEZVOUS_ENV
from airflow_provider_gangjobs.gang.render.shape import rendezvous_of
from airflow_provider_gangjobs.kube import names

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.validation.parsed_spec import ParsedSpec

_SET_BY_THE_PROVIDER: Final = frozenset(
    {
        *(ENV_RESULT_PATH, ENV_FILES, ENV_ATTEMPT, ENV_SIZE, ENV_INSTALLATION),
        *(ENV_ROLE, ENV_ROLE_RANK, ENV_ROLE_SIZE, ENV_RANK_OFFSET),
    }
)
_FIELDS: Final = frozenset({"name", "value", "valueFrom", "$patch"})


def check_env(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check the `env` parameter, and env, command and args of every container that the user wrote."""
    env = parsed.spec.env
    if isinstance(env, Mapping):
        for name, value in env.items():
            yield from _name(parsed, f"env.{name}", name)
            yield from _value_of_mapping(parsed, f"env.{name}", value)
    elif env is not None:
        yield from _list(parsed, "env", env)
    for path, container in parsed.user_containers():
        yield from _list(parsed, f"{path}.env", container.get("env") or ())
    for path, container in parsed.user_containers():
        for field in ("command", "args"):
            for index, item in enumerate(container.get(field) or ()):
                if not isinstance(item, str):
                    yield parsed.user_manifest.not_text_problem(f"{path}.{field}[{index}]", item)


def _value_of_mapping(parsed: ParsedSpec, path: str, value: Any) -> Iterator[Problem]:
    if isinstance(value, Mapping):
        if set(value) != {"valueFrom"} or not isinstance(value["valueFrom"], Mapping):
            yield Problem(path, f"is a dict of {', '.join(map(str, value)) or 'nothing'}", _VALUE_REMEDY)
    elif value is None:
        yield Problem(path, "is None", 'Leave it out, or write "" for an empty text')
    elif not isinstance(value, str):
        yield parsed.user_manifest.not_text_problem(path, value)


_VALUE_REMEDY: Final = 'Give text, or {"valueFrom": {"secretKeyRef": ...}} or another source'


def _list(parsed: ParsedSpec, path: str, env: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    seen: set[Any] = set()
    for index, item in enumerate(env):
        at = f"{path}[{index}]"
        name = item.get("name")
        if name is None:
            yield Problem(f"{at}.name", "is missing", "Name the variable")
            continue
        if not isinstance(name, str):
            yield parsed.user_manifest.not_text_problem(f"{at}.name", name)
            continue
        if name in seen:
            yield Problem(at, f"defines {name} a second time", "Keep one of the two")
        seen.add(name)
        yield from _name(parsed, at, name)
        value = item.get("value")
        if value is not None and not isinstance(value, str):
            yield parsed.user_manifest.not_text_problem(f"{at}.value", value)
        if value is not None and "valueFrom" in item:
            yield Problem(at, f"gives {name} both a value and a source", "Keep value or valueFrom")
        if unknown := sorted(set(item) - _FIELDS):
            yield Problem(
                at, f"has {', '.join(unknown)}, which is not a field of an environment variable", _VALUE_REMEDY
            )


def _name(parsed: ParsedSpec, path: str, name: Any) -> Iterator[Problem]:
    if wrong := names.problem_with_env_name(name):
        yield Problem(path, wrong, "Rename the variable")
    elif name in _SET_BY_THE_PROVIDER:
        yield Problem(path, f"{name} is set by the provider for every rank", "Remove it")
    elif name in RENDEZVOUS_ENV and rendezvous_of(parsed.spec, parsed.shape):
        yield Problem(path, f"{name} is set by the rendezvous", "Remove it, or set rendezvous=False")

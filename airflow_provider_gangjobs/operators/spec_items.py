"""Additions to the parameters of a `GangSpec`. A value that is known only when the task runs stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def append_item(spec: dict[str, Any], parameter: str, item: Mapping[str, Any]) -> None:
    """Add an item to a parameter that is a list."""
    items = spec.get(parameter) or ()
    if isinstance(items, (list, tuple)):  # otherwise known only when the task runs
        spec[parameter] = [*items, item]


def add_env(spec: dict[str, Any], variables: Mapping[str, Any]) -> None:
    """Add variables to `env` in its own form. A variable that the user gives stays."""
    env = spec.get("env") or {}
    if isinstance(env, Mapping):
        spec["env"] = {**variables, **env}
    if not isinstance(env, (list, tuple)):  # a mapping, or known only when the task runs
        return
    given = {item.get("name") for item in env}
    added = [
        {"name": name, **(value if isinstance(value, Mapping) else {"value": value})}
        for name, value in variables.items()
        if name not in given
    ]
    spec["env"] = [*env, *added]


__all__ = ["add_env", "append_item"]

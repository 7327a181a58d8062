"""The description of the provider is valid for Airflow and matches the code."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_gangjobs.get_provider_info import get_provider_info

REPOSITORY = Path(__file__).parents[2]
KINDS = ("hooks", "operators", "sensors", "triggers")


def airflow_schema() -> dict[str, Any]:
    """The schema by which Airflow judges providers at run time, found without importing Airflow."""
    spec = importlib.util.find_spec("airflow")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    found = (Path(place, "provider_info.schema.json") for place in spec.submodule_search_locations)
    schema: dict[str, Any] = json.loads(next(path for path in found if path.exists()).read_text())
    return schema


def test_info_fits_the_schema_of_airflow() -> None:
    jsonschema.validate(get_provider_info(), airflow_schema())


def test_info_has_only_keys_that_airflow_reads() -> None:
    read_elsewhere = {"versions"}  # by the documentation tooling

    assert set(get_provider_info()) - read_elsewhere <= set(airflow_schema()["properties"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_module_named_exists(kind: str) -> None:
    modules = [name for entry in get_provider_info()[kind] for name in entry["python-modules"]]

    assert modules
    assert all((REPOSITORY / Path(*name.split("."))).with_suffix(".py").exists() for name in modules)


def test_every_decorator_named_exists() -> None:
    (decorator,) = get_provider_info()["task-decorators"]
    module, _, function = decorator["class-name"].rpartition(".")
    text = (REPOSITORY / Path(*module.split("."))).with_suffix(".py").read_text()

    assert decorator["name"] == "gang_job"
    assert f"\ndef {function}(" in text


def test_every_integration_named_is_described() -> None:
    info = get_provider_info()
    described = {integration["integration-name"] for integration in info["integrations"]}

    assert {entry["integration-name"] for kind in KINDS for entry in info[kind]} <= described


def test_entry_point_names_the_function() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    entry = project["entry-points"]["apache_airflow_provider"]["provider_info"]

    assert entry == f"{get_provider_info.__module__}:{get_provider_info.__name__}"
    assert get_provider_info()["package-name"] == project["name"]

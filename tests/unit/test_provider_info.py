"""What Airflow and the Airflow Registry read of the provider matches the code."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.version import Version

from airflow_provider_gangjobs import __version__
from airflow_provider_gangjobs.get_provider_info import get_provider_info
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

# -- The description of the provider is valid for Airflow and matches the code ---------------------------------------

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


# -- What the Airflow Registry reads: the list of classes, and the mark of operators whose work survives a lost
#    worker ----------------------------------------------------------------------------------------------------------

REGISTRY: dict[str, Any] = yaml.safe_load((REPOSITORY / ".airflow-registry.yaml").read_text())
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
SEARCHED = ("kueue", "distributed training", "multi-node", "torchrun", "mpi", "jobset")
REGISTRY_KINDS = ("operators", "sensors", "hooks", "triggers")


@pytest.mark.parametrize("path", [entry["module"] for kind in REGISTRY_KINDS for entry in REGISTRY[kind]])
def test_each_class_exists(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert isinstance(getattr(import_module(module), name), type)


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks"])
def test_modules_are_those_that_airflow_knows(kind: str) -> None:
    known = [module for group in get_provider_info()[kind] for module in group["python-modules"]]
    assert sorted({entry["module"].rpartition(".")[0] for entry in REGISTRY[kind]}) == sorted(known)


def test_package_is_the_one_that_airflow_knows() -> None:
    assert REGISTRY["package-name"] == get_provider_info()["package-name"]


def test_addresses_are_those_of_the_distribution() -> None:
    assert (REGISTRY["docs-url"], REGISTRY["source-url"]) == (
        PROJECT["urls"]["Documentation"],
        PROJECT["urls"]["Source"],
    )
    assert (REPOSITORY / REGISTRY["logo"].partition("/main/")[2]).exists()


@pytest.mark.parametrize("option", get_provider_info()["config"]["gangjobs"]["options"].values(), ids=str)
def test_option_was_added_in_a_version_that_exists(option: dict[str, Any]) -> None:
    assert Version(option["version_added"]) <= Version(__version__)


@pytest.mark.parametrize("word", SEARCHED)
def test_package_is_found_by_the_words_that_people_search(word: str) -> None:
    first_sentence = " ".join((REPOSITORY / "README.md").read_text().split("\n\n")[1].split()).partition(". ")[0]
    descriptions = (PROJECT["description"], REGISTRY["description"], get_provider_info()["description"], first_sentence)
    assert word in PROJECT["keywords"]
    assert [text for text in descriptions if word not in text.lower()] == []


def test_operator_is_marked_as_durable() -> None:
    # The registry looks for the name that Python gives to a private attribute of the class (apache/airflow#70291).
    assert vars(GangJobOperator)["_GangJobOperator__supports_durable_execution"] is True

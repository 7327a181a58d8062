"""What the Airflow Registry reads: the list of classes, and the mark of operators whose work survives a lost worker."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_gangjobs.get_provider_info import get_provider_info
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

REPOSITORY = Path(__file__).resolve().parents[2]
REGISTRY: dict[str, Any] = yaml.safe_load((REPOSITORY / ".airflow-registry.yaml").read_text())
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
SEARCHED = ("kueue", "distributed training", "multi-node", "torchrun", "mpi", "jobset")
KINDS = ("operators", "sensors", "hooks", "triggers")


@pytest.mark.parametrize("path", [entry["module"] for kind in KINDS for entry in REGISTRY[kind]])
def test_each_class_exists(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert isinstance(getattr(import_module(module), name), type)


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks"])
def test_modules_are_those_that_airflow_knows(kind: str) -> None:
    known = [module for group in get_provider_info()[kind] for module in group["python-modules"]]
    assert sorted({entry["module"].rpartition(".")[0] for entry in REGISTRY[kind]}) == sorted(known)


def test_package_is_the_one_that_airflow_knows() -> None:
    assert REGISTRY["package-name"] == get_provider_info()["package-name"]


@pytest.mark.parametrize("word", SEARCHED)
def test_package_is_found_by_the_words_that_people_search(word: str) -> None:
    first_sentence = " ".join((REPOSITORY / "README.md").read_text().split("\n\n")[1].split()).partition(". ")[0]
    descriptions = (PROJECT["description"], REGISTRY["description"], get_provider_info()["description"], first_sentence)
    assert word in PROJECT["keywords"]
    assert [text for text in descriptions if word not in text.lower()] == []


def test_operator_is_marked_as_durable() -> None:
    # The registry looks for the name that Python gives to a private attribute of the class (apache/airflow#70291).
    assert vars(GangJobOperator)["_GangJobOperator__supports_durable_execution"] is True

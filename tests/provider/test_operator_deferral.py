"""An operator without the parameter deferrable defers, unless a user has set the default of Airflow to false."""

from __future__ import annotations

import configparser

import pytest
from airflow.configuration import conf

from airflow_provider_gangjobs.airflow_api.configuration import (
    DEFERRABLE_OPTION,
    DEFERRABLE_VARIABLE,
    GENERATED_OPTIONS,
    OPERATORS_SECTION,
    default_deferrable,
)
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator

SOUND = {"task_id": "t", "image": "i", "command": ["c"], "workers": 2}


def file_with(**options: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser[OPERATORS_SECTION] = options
    return parser


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, True, id="not set"),
        pytest.param({DEFERRABLE_OPTION: "false"}, False, id="set to false"),
        pytest.param({DEFERRABLE_OPTION: "true"}, True, id="set to true"),
        pytest.param({DEFERRABLE_OPTION: "false", "default_owner": "me"}, False, id="set to false, with other options"),
        pytest.param(
            {DEFERRABLE_OPTION: "false", **dict.fromkeys(GENERATED_OPTIONS, "1")},
            True,
            id="file that Airflow generated",
        ),
    ],
)
def test_file_decides_if_a_user_wrote_it(options: dict[str, str], expected: bool) -> None:
    assert default_deferrable(file_with(**options)) is expected


@pytest.mark.parametrize(("value", "expected"), [("False", False), ("True", True)])
def test_environment_variable_decides(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv(DEFERRABLE_VARIABLE, value)

    assert GangJobOperator(**SOUND).deferrable is expected


def test_generated_file_has_the_options_that_identify_it() -> None:
    """If a release of Airflow dropped one of them, its generated file would look like a choice of the user."""
    assert all(conf.has_option(OPERATORS_SECTION, option) for option in (*GENERATED_OPTIONS, DEFERRABLE_OPTION))


def test_parameter_takes_precedence() -> None:
    assert GangJobOperator(**SOUND, deferrable=False).deferrable is False

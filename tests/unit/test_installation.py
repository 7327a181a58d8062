"""The id of an Airflow installation: the same in all of its processes, and another one for each Airflow."""

from __future__ import annotations

from configparser import ConfigParser

import pytest

from airflow_provider_gangjobs.airflow_api.configuration import id_of_url, installation_id
from airflow_provider_gangjobs.kube.names import problem_with_label_value

PRODUCTION = "https://airflow.example.com"


def config(**options: str) -> ConfigParser:
    made = ConfigParser(interpolation=None)
    for name, value in options.items():
        section, _, option = name.partition("__")
        made.read_dict({section: {option: value}})
    return made


def test_the_chosen_id_is_used_as_it_is() -> None:
    assert installation_id(config(gangjobs__installation_id="prod", api__base_url=PRODUCTION)) == "prod"


def test_a_chosen_id_that_no_label_can_hold_is_refused_with_the_option() -> None:
    with pytest.raises(ValueError, match=r"\[gangjobs\] installation_id 'our prod' .*Correct it"):
        installation_id(config(gangjobs__installation_id="our prod"))


@pytest.mark.parametrize(
    "same",
    ["http://airflow.example.com/", "https://AIRFLOW.example.com:443", "https://airflow.example.com/execution/"],
)
def test_scheme_case_and_default_port_make_no_other_installation(same: str) -> None:
    assert id_of_url(same) == id_of_url(PRODUCTION)


def test_ids_differ_where_host_port_or_path_differ() -> None:
    others = ["https://airflow.example.com/staging", "https://airflow.example.com:8443", "https://airflow2.example.com"]
    assert len({id_of_url(url) for url in [PRODUCTION, *others]}) == 4


@pytest.mark.parametrize("url", ["", "/", "http://localhost:8080", "http://127.0.0.1:8080/execution/", "http://[::1]"])
def test_a_url_that_every_machine_has_gives_no_id(url: str) -> None:
    assert installation_id(config(api__base_url=url)) == ""


def test_without_a_base_url_the_url_of_the_workers_is_used() -> None:
    assert installation_id(config(core__execution_api_server_url=f"{PRODUCTION}/execution/")) == id_of_url(PRODUCTION)


def test_a_derived_id_is_a_label_and_holds_no_credential() -> None:
    derived = id_of_url(f"https://user:secret@{'a' * 60}.example.com:9999/{'path/' * 20}")
    assert problem_with_label_value(derived) is None
    assert "secret" not in derived


def test_an_airflow_without_settings_has_no_id() -> None:
    assert installation_id(ConfigParser()) == ""

"""`gangjobs rbac` prints the Roles of the package, and bindings to the ServiceAccounts that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import airflow_provider_gangjobs
from airflow_provider_gangjobs.cli.main import main

FILES = {path.stem: path for path in (Path(airflow_provider_gangjobs.__file__).parent / "rbac").glob("*.yaml")}
OPTIONS = sorted(f"--{name.removeprefix('rbac-')}" for name in FILES if name != "rbac")


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def test_role_of_workers_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rbac"]) == 0
    assert capsys.readouterr().out == FILES["rbac"].read_text()


def test_every_role_has_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    main(["rbac", *OPTIONS])
    printed = documents(capsys.readouterr().out)
    assert sorted(map(str, printed)) == sorted(
        map(str, (d for path in FILES.values() for d in documents(path.read_text())))
    )


def test_each_role_is_bound_to_each_account(capsys: pytest.CaptureFixture[str]) -> None:
    main(["rbac", "--kueue", "--service-account", "airflow:worker", "--service-account", "airflow:triggerer"])
    printed = documents(capsys.readouterr().out)
    roles = {(d["kind"], d["metadata"]["name"]) for d in printed if not d["kind"].endswith("Binding")}
    bindings = [d for d in printed if d["kind"].endswith("Binding")]
    assert {(b["roleRef"]["kind"], b["roleRef"]["name"]) for b in bindings} == roles
    assert [b["kind"] == f"{b['roleRef']['kind']}Binding" for b in bindings] == [True] * len(roles)
    assert {tuple((s["namespace"], s["name"]) for s in b["subjects"]) for b in bindings} == {
        (("airflow", "worker"), ("airflow", "triggerer"))
    }


@pytest.mark.parametrize("account", ["worker", ":worker", "airflow:"])
def test_account_without_namespace_is_refused(account: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rbac", "--service-account", account])
    assert "is no NAMESPACE:NAME" in capsys.readouterr().err

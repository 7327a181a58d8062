"""The rules of a check-up: what was read goes in, and findings come out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_gangjobs.gang.checkup import (
    RIGHTS,
    Health,
    judge_controller,
    judge_held_pods,
    judge_installations,
    judge_pods_ready,
    judge_queues,
    judge_rights,
    judge_schedulers,
    judge_skew,
    judge_workload_api,
    parse_go_duration,
    wanted_rights,
)

ROLES = Path(__file__).parents[2] / "airflow_provider_gangjobs" / "rbac"
BASE = tuple(right for right in wanted_rights(()) if not right.in_all_namespaces)


def rules_of(role: str) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((ROLES / f"{role}.yaml").read_text())
    return [rule for document in documents for rule in document["rules"]]


def triples(role: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules_of(role)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("role", sorted({right.role for right in RIGHTS}))
def test_rights_are_those_of_the_documented_roles(role: str) -> None:
    ours = {(right.group, right.resource, verb) for right in RIGHTS if right.role == role for verb in right.verbs}
    assert ours == triples(role)


def test_every_documented_role_is_known() -> None:
    assert {path.stem for path in ROLES.glob("rbac*.yaml")} == {right.role for right in RIGHTS}


def missing(rules: list[dict[str, Any]]) -> dict[Any, tuple[str, ...]]:
    return {right: verbs for right in BASE if (verbs := right.missing_verbs(rules))}


def test_documented_role_lacks_nothing() -> None:
    (finding,) = judge_rights(missing(rules_of("rbac")), BASE, "ml")
    assert (finding.health, finding.what) == (Health.OK, "all given")


def test_administrator_lacks_nothing() -> None:
    assert missing([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]) == {}


def test_right_on_named_objects_is_not_enough() -> None:
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "resourceNames": ["one"]}]
    assert missing(rules).keys() == set(BASE)


def test_missing_right_is_told_with_its_purpose() -> None:
    rules = [rule for rule in rules_of("rbac") if "pods/log" not in rule["resources"]]
    (finding,) = judge_rights(missing(rules), BASE, "ml")
    assert finding.what == "missing: get pods/log (to copy the logs of the ranks)"
    assert finding.remedy.startswith("gangjobs rbac | kubectl -n ml apply -f -")


def test_missing_optional_right_is_no_problem() -> None:
    rules = [rule for rule in rules_of("rbac") if "namespaces" not in rule["resources"]]
    assert {finding.health for finding in judge_rights(missing(rules), BASE, "ml")} == {Health.OK}


@pytest.mark.parametrize(
    ("ahead_s", "health"),
    [(0.4, Health.OK), (-29.0, Health.OK), (31.0, Health.PROBLEM), (-400.0, Health.PROBLEM), (None, Health.UNKNOWN)],
)
def test_clocks_may_differ_by_half_a_minute(ahead_s: float | None, health: Health) -> None:
    assert judge_skew(ahead_s).health is health


@pytest.mark.parametrize(
    ("holds", "health"), [(True, Health.OK), (False, Health.PROBLEM), (None, Health.UNKNOWN)], ids=str
)
def test_server_that_drops_the_link_is_a_problem(holds: bool | None, health: Health) -> None:
    finding = judge_workload_api(holds, ("v1beta1",), "a dry run drops spec.template.spec.schedulingGroup", "1.37")
    assert finding.health is health
    assert ("GenericWorkload" in finding.remedy) is (health is Health.PROBLEM)


def test_scheduler_of_the_connection_must_be_installed() -> None:
    served = {"volcano": "the cluster does not serve scheduling.volcano.sh", "coscheduling": ""}
    assert judge_schedulers(served, "volcano").health is Health.PROBLEM
    assert judge_schedulers(served, None).what == "also installed: coscheduling"


def test_jobs_that_nobody_looks_at_name_the_controller_manager() -> None:
    assert judge_controller([]).health is Health.OK
    assert "kube-controller-manager" in judge_controller(["a", "b"]).remedy


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300.0), ("1h30m0s", 5400.0), ("1.5h", 5400.0), ("300", None), ("", None)]
)
def test_durations_of_go_are_read(text: str, seconds: float | None) -> None:
    assert parse_go_duration(text) == seconds


FIRST_API = {"apiVersion": "config.kueue.x-k8s.io/v1beta1"}
IS_OFF = "is off: a gang that does not assemble keeps its quota until its assemble_timeout"
STOPS = "Kueue stops a gang that is not ready after {}"
LATE = "kueue:v0.19.2"


@pytest.mark.parametrize(
    ("configuration", "image", "what"),
    [
        ({}, "registry.k8s.io/kueue/kueue:v0.18.1", IS_OFF),
        ({}, "mirror:5000/kueue@sha256:0a1", "the image 'mirror:5000/kueue@sha256:0a1' names no release"),
        ({}, LATE, STOPS.format("30m")),
        ({}, "kueue:1.0.0", STOPS.format("30m")),
        ({"featureGates": {"DisableWaitForPodsReady": True}}, LATE, IS_OFF),
        ({"waitForPodsReady": {"timeout": "5m"}}, "kueue:v0.15.0", STOPS.format("5m")),
        ({"waitForPodsReady": {"timeout": "soon"}}, LATE, "the timeout 'soon' is no duration"),
        (FIRST_API, LATE, IS_OFF),
        ({**FIRST_API, "waitForPodsReady": {"enable": False, "timeout": "1m"}}, LATE, IS_OFF),
        ({**FIRST_API, "waitForPodsReady": {"enable": True}}, "", STOPS.format("5m")),
    ],
)
def test_whether_kueue_stops_gangs_depends_on_its_configuration_and_release(
    configuration: dict[str, Any], image: str, what: str
) -> None:
    finding = judge_pods_ready(configuration, image, None)
    assert finding.what.endswith(what)
    assert (finding.health is Health.UNKNOWN) == (what not in (IS_OFF, STOPS.format("5m"), STOPS.format("30m")))


@pytest.mark.parametrize(("timeout_s", "health"), [(None, Health.OK), (299.0, Health.OK), (600.0, Health.PROBLEM)])
def test_kueue_must_leave_a_gang_its_time_to_assemble(timeout_s: float | None, health: Health) -> None:
    assert judge_pods_ready({"waitForPodsReady": {"timeout": "5m"}}, LATE, timeout_s).health is health


def queue(name: str, *, stopped: str = "None", active: str = "True") -> dict[str, Any]:
    condition = {"type": "Active", "status": active, "message": "ClusterQueue missing does not exist"}
    return {"metadata": {"name": name}, "spec": {"stopPolicy": stopped}, "status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("queues", "named", "what"),
    [
        pytest.param([queue("a")], "b", "b is no LocalQueue of namespace ml: the namespace has a", id="misspelt"),
        pytest.param([], "b", "b is no LocalQueue of namespace ml: the namespace has none", id="no queue"),
        pytest.param([queue("a", stopped="Hold")], "a", "LocalQueue a is held: its stopPolicy is Hold", id="held"),
        pytest.param(
            [queue("a", active="False")],
            "a",
            "LocalQueue a is not active: ClusterQueue missing does not exist",
            id="no ClusterQueue",
        ),
    ],
)
def test_queue_that_takes_no_gang_is_a_problem(queues: list[dict[str, Any]], named: str, what: str) -> None:
    finding = judge_queues(queues, named, "ml")
    assert (finding.health, finding.what) == (Health.PROBLEM, what)


def test_other_queue_that_is_held_does_not_matter() -> None:
    assert judge_queues([queue("a"), queue("b", stopped="Hold")], "a", "ml").health is Health.OK


def test_held_pods_of_vanished_gangs_are_a_problem() -> None:
    assert judge_held_pods(["train-0-x"]).what == "1 pod of gangs that are gone (train-0-x)"


@pytest.mark.parametrize(
    ("gangs", "health"),
    [
        (Counter({"prod": 3}), Health.OK),
        (Counter(), Health.OK),
        (Counter({"prod": 3, "test": 1}), Health.OK),
        (Counter({"prod": 3, "": 1}), Health.PROBLEM),
    ],
)
def test_installations_need_an_id_each(gangs: Counter[str], health: Health) -> None:
    assert judge_installations(gangs).health is health

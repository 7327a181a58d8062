"""What a gang is called and found by: names, installations, the hash of its spec, selectors, and words of people."""

from __future__ import annotations

import string
from configparser import ConfigParser
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.airflow_api.configuration import id_of_url, installation_id
from airflow_provider_gangjobs.gang.gang_lists import GangName, find_named
from airflow_provider_gangjobs.gang.identity import (
    ALL_GANGS,
    DIGEST_LENGTH,
    JOB_NAME_MAX,
    SLUG_MAX,
    VALUES_CHARACTERS_MAX,
    Claim,
    GangRef,
    OperationKey,
    TaskKey,
    build_attempt,
    gang_selector,
    gang_selectors,
    job_name,
    ledger_selector,
    roles_selectors,
    slug_of,
    submission_selector,
    task_selector,
    tasks_selectors,
)
from airflow_provider_gangjobs.gang.spec import GangPolicy, GangSpec, Rendezvous
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.names import is_dns_label, problem_with_dns_label_1035, problem_with_label_value
from airflow_provider_gangjobs.kube.well_known import (
    LABEL_ATTEMPT,
    LABEL_DROPPED,
    LABEL_GANG,
    LABEL_GANG_ROLE,
    LABEL_JOB_UID,
    LABEL_PURPOSE,
    LABEL_TASK,
)
from gangjobs_sandbox.apimachinery.selectors import parse
from tests.unit.builders import job, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.gang.identity import SubmissionKey
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang


# -- Names of gangs: the same on every machine, and never too long ---------------------------------------------------

TRAIN = TaskKey("etl", "manual__2026-01-01", "train")


def test_name_is_the_same_on_every_machine():
    assert build_attempt(TRAIN, Claim("c"), namespace="ml", number=2).name == "etl-train-k3oeyqz65w-2"


def test_digest_is_a_label_value():
    assert problem_with_label_value(TRAIN.digest) is None
    assert len(TRAIN.digest) == DIGEST_LENGTH


@pytest.mark.parametrize(
    "other",
    [
        TaskKey("etl2", "manual__2026-01-01", "train"),
        TaskKey("etl", "manual__2026-01-02", "train"),
        TaskKey("etl", "manual__2026-01-01", "train2"),
        TaskKey("etl", "manual__2026-01-01", "train", 0),
        TaskKey("etl", "manual__2026-01-01", "train", installation="prod"),
    ],
    ids=["dag", "run", "task", "map index", "installation"],
)
def test_every_part_of_the_key_distinguishes_tasks(other):
    assert other.digest != TRAIN.digest


def test_two_installations_share_no_digest_with_each_other():
    prod, staging = (replace(TRAIN, installation=name) for name in ("prod", "staging"))
    assert len({prod.digest, staging.digest, TRAIN.digest}) == 3


def test_parts_of_a_key_are_separated():
    assert TaskKey("a|b", "c", "d").digest != TaskKey("a", "b|c", "d").digest


@given(st.text(), st.text(), st.integers(0, 10**9))
def test_any_task_gets_a_valid_name(dag_id, task_id, attempt):
    key = TaskKey(dag_id, "run", task_id)
    name = job_name(key.slug, key.digest, attempt)
    assert len(name) <= JOB_NAME_MAX
    assert problem_with_dns_label_1035(name) is None
    assert is_dns_label(f"{name}-99999")
    assert name.endswith(f"-{attempt}")


@given(st.text(string.ascii_letters + string.digits + "-_. ", max_size=80))
def test_slug_is_short_and_starts_with_a_letter(text):
    slug = slug_of(text)
    assert 0 < len(slug) <= SLUG_MAX
    assert problem_with_dns_label_1035(slug) is None


def test_attempts_differ_only_in_their_number():
    first, second = (build_attempt(TRAIN, Claim("c"), namespace="ml", number=n) for n in (0, 1))
    assert first.key.digest == second.key.digest
    assert first.name[:-1] == second.name[:-1]
    assert first.submission_id != second.submission_id


def test_users_name_replaces_the_slug():
    assert build_attempt(TRAIN, Claim("c"), namespace="ml", number=0, name="digits").name.startswith("digits-")


def test_ref_reads_as_namespace_and_name():
    assert str(GangRef("ml", "train-0", "u1")) == "ml/train-0"


# -- The id of an Airflow installation: the same in all of its processes, and another one for each Airflow -----------

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


# -- The hash of a spec says whether two submissions are the same gang -----------------------------------------------

BASE = GangSpec(image="trainer:1", workers=4, env={"A": "1", "B": "2"})


def test_hash_is_the_same_on_every_machine():
    assert BASE.hash == "cb5f7fb36c15b23b"


def test_order_of_keys_does_not_matter():
    assert replace(BASE, env={"B": "2", "A": "1"}).hash == BASE.hash


def test_lists_and_tuples_are_alike():
    assert GangSpec(image="a", args=["x"]).hash == GangSpec(image="a", args=("x",)).hash


def test_a_default_that_is_written_out_changes_nothing():
    assert replace(BASE, gang="required", labels={}).hash == BASE.hash


@pytest.mark.parametrize(
    "change",
    [
        {"image": "trainer:2"},
        {"workers": 5},
        {"env": {"A": "1", "B": "3"}},
        {"files": {"a.py": "pass"}},
        {"gang": GangPolicy.OFF},
        {"rendezvous": Rendezvous(1234)},
        {"manifest": {"spec": {"parallelism": 2}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_parameter_that_defines_the_gang_changes_the_hash(change):
    other = replace(BASE, **change)
    assert other.hash != BASE.hash
    differing = {name for name, digest in other.field_digests.items() if BASE.field_digests.get(name) != digest}
    assert differing == set(change)


def test_files_of_the_provider_are_not_part_of_the_hash():
    ours = replace(BASE, files={"gangjobs.run.py": "of this release"})
    assert (ours.hash, ours.field_digests) == (BASE.hash, BASE.field_digests)


def test_namespace_and_time_limits_are_not_part_of_the_hash():
    assert replace(BASE, namespace="ml", run_timeout_s=5, assemble_timeout_s=7).hash == BASE.hash


def test_digests_name_only_the_given_parameters():
    assert set(BASE.field_digests) == {"env", "image", "workers"}


# -- Label selectors of gangs match what they name, and nothing else -------------------------------------------------

JOB = {LABEL_GANG: "train-0", LABEL_TASK: "digest", LABEL_ATTEMPT: "0"}
DROPPED = JOB | {LABEL_DROPPED: "true"}
LEDGER = {LABEL_GANG: "train-0", LABEL_PURPOSE: "ledger", LABEL_JOB_UID: "uid"}
PICKED = {
    "a gang": (gang_selector("train-0"), [JOB, DROPPED, LEDGER], [{LABEL_GANG: "train-1"}, {}]),
    "a ledger": (ledger_selector("train-0", "uid"), [LEDGER], [LEDGER | {LABEL_JOB_UID: "earlier"}, JOB]),
    "a task": (task_selector("digest"), [JOB, DROPPED], [LEDGER]),
    "a submission": (submission_selector("digest"), [JOB], [DROPPED, LEDGER]),
    "an attempt": (submission_selector("digest", 0), [JOB], [JOB | {LABEL_ATTEMPT: "1"}, DROPPED]),
    "all submissions": (ALL_GANGS, [JOB], [DROPPED, LEDGER]),
}


@pytest.mark.parametrize(("selector", "picked", "left"), PICKED.values(), ids=PICKED)
def test_selector_picks_its_own(selector: str, picked: list[dict[str, str]], left: list[dict[str, str]]) -> None:
    matches = parse(selector).matches
    assert [matches(labels) for labels in (*picked, *left)] == [True] * len(picked) + [False] * len(left)


MANY = {
    "names": (gang_selectors, LABEL_GANG, {}),
    "names of gangs with roles": (roles_selectors, LABEL_GANG, {LABEL_GANG_ROLE: "worker"}),
    "tasks": (tasks_selectors, LABEL_TASK, {}),
}


@pytest.mark.parametrize(("selectors_of", "label", "others"), MANY.values(), ids=MANY)
@pytest.mark.parametrize("count", [0, 1, 2, 90, 5000])
@pytest.mark.parametrize("length", [5, 63])
def test_selectors_of_many_values_pick_each_value_once_and_fit_into_a_url(
    selectors_of: Callable[..., tuple[str, ...]], label: str, others: dict[str, str], count: int, length: int
) -> None:
    values = [f"{number:0{length}}" for number in range(count)]
    selectors = selectors_of([*values, *values])

    assert all(len(quote(selector, safe="")) < VALUES_CHARACTERS_MAX + 200 for selector in selectors)
    requirements = [parse(selector).requirements[-1] for selector in selectors]
    assert sorted(value for each in requirements for value in each.values) == values
    assert all(parse(selectors[0]).matches({label: value, **others}) for value in values[:1])
    assert len(selectors) == -(-count // (VALUES_CHARACTERS_MAX // (length + 3)))


# -- Which gangs a person means by a name ----------------------------------------------------------------------------


def gang(key: SubmissionKey, attempt: int = 0, created: float = 0, namespace: str = "team") -> StoredGang:
    made = build_attempt(key, Claim("c"), namespace=namespace, number=attempt)
    builder = job(uid=f"uid-{made.name}").label(LABEL_TASK, key.digest).label(LABEL_ATTEMPT, str(attempt))
    builder.record(submission_id=made.submission_id, task=key if isinstance(key, TaskKey) else None)
    builder.obj["metadata"] |= {"name": made.name, "namespace": namespace, "creationTimestamp": text(created)}
    return read_job(builder.obj)


TRAIN_1, TRAIN_2 = gang(TaskKey("etl", "run1", "train"), 0, 1), gang(TaskKey("etl", "run2", "train"), 0, 2)
RETRY = gang(TaskKey("etl", "run2", "train"), 1, 3)
MAPPED = [gang(TaskKey("etl", "run1", "shard", index), 0, 4 + index) for index in range(3)]
NIGHTLY = gang(OperationKey("nightly"), 0, 9)
SLASH = gang(OperationKey("team/nightly"), 0, 10)
DAG_OF_THE_SAME_NAME = gang(TaskKey("nightly", "run1", "train"), 0, 11)
ALL = [TRAIN_1, TRAIN_2, RETRY, *MAPPED, NIGHTLY, SLASH, DAG_OF_THE_SAME_NAME]

NAMES = {
    "a Job with its namespace": ((str(TRAIN_2.ref),), [TRAIN_2]),
    "a Job of another namespace": ((f"other/{TRAIN_2.ref.name}",), []),
    "a Job, also of an earlier attempt": ((TRAIN_2.ref.name,), [TRAIN_2]),
    "a submission id before a DAG": (("nightly",), [NIGHTLY]),
    "a submission id with a slash": (("team/nightly",), [SLASH]),
    "a DAG": (("etl",), [*reversed(MAPPED), RETRY, TRAIN_1]),
    "a task with two runs": (("etl", "train"), [RETRY, TRAIN_1]),
    "a task and a run": (("etl", "train", "run2"), [RETRY]),
    "a mapped task": (("etl", "shard", "run1"), [*reversed(MAPPED)]),
    "a map index": (("etl", "shard", "run1", "2"), [MAPPED[2]]),
    "an unmapped task has no index": (("etl", "train", "run1", "0"), []),
    "nothing": (("nosuch",), []),
    "a part of an id": (("et",), []),
}


@pytest.mark.parametrize(("words", "expected"), NAMES.values(), ids=NAMES)
def test_name_means(words: tuple[str, ...], expected: list[StoredGang]) -> None:
    assert [job.ref for job in find_named(ALL, GangName(words))] == [job.ref for job in expected]


def test_namespace_of_a_name_is_that_of_its_job() -> None:
    assert [GangName(words).namespace for words in (("a/b",), ("a",), ("a", "b"))] == ["a", None, None]

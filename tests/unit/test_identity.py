"""Names of gangs: the same on every machine, and never too long."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.identity import (
    DIGEST_LENGTH,
    JOB_NAME_MAX,
    SLUG_MAX,
    Claim,
    GangRef,
    TaskKey,
    build_attempt,
    job_name,
    slug_of,
)
from airflow_provider_gangjobs.kube.names import is_dns_label, problem_with_dns_label_1035, problem_with_label_value

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


def test_key_is_read_back_from_its_json():
    key = replace(TRAIN, map_index=3, installation="prod")
    assert TaskKey.from_json(key.to_json(), installation="prod") == key


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"dag_id": 1, "run_id": "r", "task_id": "t", "map_index": 0}'])
def test_json_that_is_no_key_is_none(text):
    assert TaskKey.from_json(text) is None


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


def test_task_key_is_readable_as_json():
    assert TRAIN.to_json() == '{"dag_id": "etl", "map_index": -1, "run_id": "manual__2026-01-01", "task_id": "train"}'


def test_ref_reads_as_namespace_and_name():
    assert str(GangRef("ml", "train-0", "u1")) == "ml/train-0"

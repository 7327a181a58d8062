"""The hash of a spec says whether two submissions are the same gang."""

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.spec import GangPolicy, GangSpec, Rendezvous

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

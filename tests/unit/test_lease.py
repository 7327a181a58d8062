"""The Lease in which a process names the gangs that it follows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.ending.leases import GANGS_MAX, lease_body, read_lease
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_FOLLOWS

NOW = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
DURATION = timedelta(minutes=7)
OTHER = GangRef("ml", "other", "d1b7a2ad-0000-4000-8000-000000000000")


def ref(number: int) -> GangRef:
    return GangRef("ml", f"gang-{number}", f"uid-{number}")


def stored(*refs: GangRef) -> dict[str, Any]:
    body = lease_body("gangjobs-follower-1", "host/7", "prod", refs, NOW, DURATION)
    return {**body, "metadata": body["metadata"] | {"resourceVersion": "1"}}


@given(st.sets(st.integers(0, 10**6), max_size=50))
def test_lease_names_every_gang_that_is_followed(numbers: set[int]) -> None:
    lease = read_lease(stored(*map(ref, numbers)))
    assert all(lease.names(ref(number)) for number in numbers)
    assert not lease.names(OTHER)


@pytest.mark.parametrize(
    ("age", "valid"),
    [(timedelta(0), True), (DURATION, True), (DURATION + timedelta(seconds=1), False), (-timedelta(hours=1), True)],
    ids=["new", "just valid", "expired", "from the future"],
)
def test_lease_is_valid_for_its_duration(age: timedelta, valid: bool) -> None:
    assert read_lease(stored()).is_valid(NOW + age) is valid


def test_names_of_ten_thousand_gangs_are_short() -> None:
    text = stored(*map(ref, range(10_000)))["metadata"]["annotations"][ANNOTATION_FOLLOWS]
    assert len(text) < 54_000


def test_a_process_that_follows_very_many_gangs_follows_all() -> None:
    assert read_lease(stored(*map(ref, range(GANGS_MAX + 10)))).names(OTHER)


@pytest.mark.parametrize("text", ["no base64!", "AAAA", None], ids=["no base64", "three bytes", "missing"])
def test_names_that_cannot_be_read_stand_for_all_gangs(text: str | None) -> None:
    lease = stored()
    lease["metadata"]["annotations"] = {} if text is None else {ANNOTATION_FOLLOWS: text}
    assert read_lease(lease).names(OTHER)


def test_lease_of_another_version_is_valid_for_its_own_duration() -> None:
    lease = stored()
    lease["spec"]["leaseDurationSeconds"] = 720
    assert read_lease(lease).is_valid(NOW + timedelta(minutes=12))
    assert not read_lease(lease).is_valid(NOW + timedelta(minutes=12), within=timedelta(0))


@pytest.mark.parametrize("spec", [{}, {"renewTime": None}, {"renewTime": "yesterday"}, {"renewTime": NOW.isoformat()}])
def test_lease_without_a_time_or_duration_is_not_valid(spec: dict[str, Any]) -> None:
    assert not read_lease({**stored(), "spec": spec}).is_valid(NOW)

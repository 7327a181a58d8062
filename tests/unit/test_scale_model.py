"""The simulation of the page on scale is reproducible, and linear where the page states this."""

from __future__ import annotations

import pytest

from benchmarks.scale_model import DESIGNS, Load, cost, simulate

TODAY, SHARDS, METADATA = DESIGNS
LARGE = Load(gangs=20_000, pods_per_gang=10, run_s=600, triggerers=10)


def test_same_seed_gives_the_same_traffic() -> None:
    assert simulate(LARGE, minutes=5, seed=7) == simulate(LARGE, minutes=5, seed=7)


def test_traffic_is_that_of_gangs_that_end() -> None:
    traffic = simulate(LARGE, minutes=20, seed=1)

    assert traffic.pods_ended == pytest.approx(LARGE.gangs * LARGE.pods_per_gang / 10, rel=0.05)


def test_shards_divide_what_each_triggerer_sees() -> None:
    traffic = simulate(LARGE, minutes=5, seed=1)
    today, shards = cost(LARGE, TODAY, traffic), cost(LARGE, SHARDS, traffic)

    assert today["first_list_mb"] == pytest.approx(10 * shards["first_list_mb"], rel=0.01)
    assert today["events_per_min_and_triggerer"] == pytest.approx(10 * shards["events_per_min_and_triggerer"], rel=0.01)


def test_metadata_alone_takes_less_memory() -> None:
    traffic = simulate(LARGE, minutes=5, seed=1)

    assert cost(LARGE, METADATA, traffic)["triggerer_memory_mb"] < cost(LARGE, SHARDS, traffic)["triggerer_memory_mb"]

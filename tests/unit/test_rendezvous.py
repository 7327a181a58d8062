"""How ranks find each other."""

import pytest

from airflow_provider_gangjobs.gang.render.placement import Shape, rendezvous_of
from airflow_provider_gangjobs.gang.render.pod_template import RENDEZVOUS_ENV, env_of, service_of
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous

ENV = {item["name"]: item for item in env_of(Rendezvous(1234), address="train-0-0.peers", size=4)}


def test_every_rank_knows_the_master_and_the_size():
    values = {name: item["value"] for name, item in ENV.items() if "value" in item}
    assert values == {
        "MASTER_ADDR": "train-0-0.peers",
        "MASTER_PORT": "1234",
        "WORLD_SIZE": "4",
        "NNODES": "4",
        "PET_NNODES": "4",
        "PET_MASTER_ADDR": "train-0-0.peers",
        "PET_MASTER_PORT": "1234",
    }


@pytest.mark.parametrize("name", ["RANK", "NODE_RANK", "PET_NODE_RANK"])
def test_rank_is_read_from_the_pod(name):
    source = ENV[name]["valueFrom"]["fieldRef"]["fieldPath"]
    assert source == "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def test_every_variable_is_reserved():
    assert set(ENV) == RENDEZVOUS_ENV


def test_service_publishes_ranks_before_they_are_ready():
    service = service_of(Rendezvous(1234), job="train-0", namespace="ml", owner={"uid": "u"})
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"gangjobs.airflow/gang": "train-0"},
        "ports": [{"name": "rendezvous", "port": 1234}],
    }
    assert service["metadata"]["ownerReferences"] == [{"uid": "u"}]


FOUR = Shape(parallelism=4, completions=4, indexed=True, backoff_limit=0)
ONE = Shape(parallelism=1, completions=1, indexed=True, backoff_limit=0)
QUEUE = Shape(parallelism=4, completions=None, indexed=False, backoff_limit=0)


@pytest.mark.parametrize(
    ("asked", "shape", "expected"),
    [
        (None, FOUR, Rendezvous()),
        (None, ONE, None),
        (None, QUEUE, None),
        (False, FOUR, None),
        (True, ONE, Rendezvous()),
        (Rendezvous(1), FOUR, Rendezvous(1)),
    ],
    ids=["four ranks", "one rank", "no ranks", "switched off", "switched on", "with a port"],
)
def test_rendezvous_is_on_for_numbered_peers(asked, shape, expected):
    assert rendezvous_of(GangSpec(rendezvous=asked), shape) == expected

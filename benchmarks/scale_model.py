"""A model of up to ten triggerers, 100,000 waiting gangs and 1,000,000 pods, from measured costs.

A simulation lets gangs arrive, run and end at random, and each design of the watches delivers the events. The unit
costs below come from the other benchmarks of this folder and from a comparison of clients. `docs/scale.md` has the
result.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Report, arguments

EVENT_BYTES = {"job": 3_000, "pod": 6_800}
"""The size of an event on the wire, with managedFields."""
DECODE_US = {"job": 6.0, "pod": 8.1}
METADATA_US = 5.5
METADATA_BYTES = 3_300
"""The size of a PartialObjectMetadata: half of its pod, most of which is managedFields."""
DELIVER_US = 25.0
"""The CPU time to read the line of an event, find its subscriber, and wake the subscriber."""
STORE_KB = {"job": 2.2, "pod": 1.4}
WAIT_KB = 7.0
"""The memory of the tasks and subscriptions of a waiting gang, without its objects."""
RELEASE_MS = 0.5
PODS_PER_MINUTE_OF_A_SERVER = 6_000
"""On two cores (see the harvest benchmark). A production server with ten times as many cores manages about ten times
more."""
EVENTS_OF_POD = 6
"""Added, bound, running, ended, released by the Job controller, and released by the provider. Pods are deleted
later."""
EVENTS_OF_JOB = 8
ENCODE_US = 40.0
"""The CPU time of the API server to filter one event and send it to one watch."""


@dataclass(frozen=True)
class Load:
    """A steady state of the cluster."""

    gangs: int
    pods_per_gang: int
    run_s: float
    triggerers: int


@dataclass(frozen=True)
class Design:
    """How a triggerer watches its gangs."""

    name: str
    sees_share: bool
    """Whether the watches of a triggerer select only its own gangs, by a label shard, and not all gangs."""
    pods_as_metadata: bool
    """Whether pods of running gangs are watched as metadata. The status of a pod that ends is then read with a GET."""


DESIGNS = (
    Design("today: one watch a triggerer, of all gangs", sees_share=False, pods_as_metadata=False),
    Design("label shards", sees_share=True, pods_as_metadata=False),
    Design("label shards, pods as metadata", sees_share=True, pods_as_metadata=True),
)

LOADS = (
    Load(gangs=1_000, pods_per_gang=4, run_s=3600, triggerers=1),
    Load(gangs=10_000, pods_per_gang=10, run_s=3600, triggerers=2),
    Load(gangs=100_000, pods_per_gang=10, run_s=14_400, triggerers=10),
)


@dataclass(frozen=True)
class Traffic:
    """The mean events per minute in the whole cluster, and the events of the busiest second."""

    job_events: float
    pod_events: float
    pods_ended: float
    busiest_second: int


def simulate(load: Load, *, minutes: int, seed: int) -> Traffic:
    """Simulate a load, in which each gang that ends is replaced. Durations are exponential, so ends are clustered."""
    rng = random.Random(seed)
    scale = max(1, load.gangs // 5_000)  # Only a sample is simulated, and its rates are multiplied.
    ends = [rng.expovariate(1 / load.run_s) for _ in range(load.gangs // scale)]
    heapq.heapify(ends)
    horizon_s = minutes * 60.0
    seconds = [0] * (minutes * 60)
    ended = 0
    while ends[0] < horizon_s:
        at = heapq.heappop(ends)
        ended += 1
        seconds[int(at)] += scale * (EVENTS_OF_JOB + EVENTS_OF_POD * load.pods_per_gang)
        heapq.heappush(ends, at + rng.expovariate(1 / load.run_s))
    rate = ended * scale / minutes
    pods = rate * load.pods_per_gang
    return Traffic(rate * EVENTS_OF_JOB, pods * EVENTS_OF_POD, pods, max(seconds))


def cost(load: Load, design: Design, traffic: Traffic) -> dict[str, Any]:
    """Return the cost of a design for one triggerer and for the API server."""
    share = 1 / load.triggerers if design.sees_share else 1.0
    jobs, pods = traffic.job_events * share, traffic.pod_events * share
    pod_us = METADATA_US if design.pods_as_metadata else DECODE_US["pod"]
    decode_s = (jobs * DECODE_US["job"] + pods * pod_us) / 1e6
    deliver_s = (jobs + pods) * DELIVER_US / 1e6 / (1 if design.sees_share else load.triggerers)
    own_ended = traffic.pods_ended / load.triggerers
    release_s = own_ended * RELEASE_MS / 1e3 * (2 if design.pods_as_metadata else 1)
    own_gangs = load.gangs / load.triggerers
    seen_gangs = load.gangs * share
    pod_kb = 0.7 if design.pods_as_metadata else STORE_KB["pod"]
    memory_kb = own_gangs * WAIT_KB + seen_gangs * (STORE_KB["job"] + load.pods_per_gang * pod_kb)
    pod_bytes = METADATA_BYTES if design.pods_as_metadata else EVENT_BYTES["pod"]
    sent = (traffic.job_events + traffic.pod_events) * share * load.triggerers
    list_mb = seen_gangs * (EVENT_BYTES["job"] + load.pods_per_gang * pod_bytes) / 1e6
    return {
        "triggerer_cpu_pct": round((decode_s + deliver_s + release_s) / 60 * 100, 2),
        "of_it_decoding_pct": round(decode_s / 60 * 100, 2),
        "triggerer_memory_mb": round(memory_kb / 1024),
        "events_per_min_and_triggerer": round(jobs + pods),
        "busiest_second_s_of_loop": round(traffic.busiest_second * share * (pod_us + DELIVER_US) / 1e6, 2),
        "first_list_mb": round(list_mb),
        "first_list_s_of_cpu": round(seen_gangs * (DECODE_US["job"] + load.pods_per_gang * pod_us) / 1e6, 2),
        "watches_open": 3 * load.triggerers,
        "server_watch_cores": round(sent * ENCODE_US / 1e6 / 60, 2),
        "release_writes_per_s": round(traffic.pods_ended / 60, 1),
        "small_servers_for_the_pods": round(traffic.pods_ended / PODS_PER_MINUTE_OF_A_SERVER, 2),
    }


def main() -> None:
    options = arguments(__doc__, minutes=30, seed=1)
    report = Report("scale model", "the API server: pods a minute that it can create, run and end at all")
    for load in LOADS:
        traffic = simulate(load, minutes=options.minutes or 30, seed=options.seed or 1)
        for design in DESIGNS:
            name = f"{load.gangs:,} gangs, {load.gangs * load.pods_per_gang:,} pods, {load.triggerers} triggerers"
            report.add(who=f"{name}; {design.name}", **cost(load, design, traffic))
    report.publish(options.out)


if __name__ == "__main__":
    main()

"""The settings with which each Kubernetes release has gang scheduling.

`none` is 1.37 with its default settings. The older releases run with their defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.cluster.controlplane.build import OLDER_RELEASES


@dataclass(frozen=True)
class ReleaseFlags:
    """Command line flags of one release.

    Attributes:
        api_gates: feature gates of the API server and the controller manager.
        scheduler_gates: feature gates of the scheduler.
        runtime_config: API versions that are off by default.
        controllers: controllers of the controller manager that this release has beyond the common ones.
    """

    api_gates: tuple[str, ...]
    scheduler_gates: tuple[str, ...]
    runtime_config: tuple[str, ...]
    controllers: tuple[str, ...] = ()

    @property
    def dialect(self) -> str:
        """The provider's name for the best Workload API that is enabled."""
        return self.runtime_config[0].rpartition("/")[2]


# GangScheduling was merged into GenericWorkload in 1.37 (KEP-4671, "Feature gates merge in v1.37").
RELEASES: dict[str, ReleaseFlags] = {
    "1.36": ReleaseFlags(
        api_gates=("GenericWorkload", "GangScheduling", "WorkloadWithJob"),
        scheduler_gates=("GenericWorkload", "GangScheduling"),
        runtime_config=("scheduling.k8s.io/v1alpha2",),
        controllers=("podgroup-protection-controller", "resourceclaim-controller"),
    ),
    "1.37": ReleaseFlags(
        api_gates=("GenericWorkload", "WorkloadWithJob"),
        scheduler_gates=("GenericWorkload",),
        runtime_config=("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3"),
        controllers=("podgroup-protection-controller", "resourceclaim-controller"),
    ),
}

NONE = "none"
NONE_RELEASE = "1.37"
DEFAULT_FLAGS = ReleaseFlags(api_gates=(), scheduler_gates=(), runtime_config=())
WITHOUT_GANGS = (NONE, *reversed(OLDER_RELEASES))
"""Control planes that serve no Workload API, by the names that `release_flags` knows."""


def release_flags(name: str) -> tuple[str, ReleaseFlags]:
    """The release to run for this name, and its settings."""
    if name in OLDER_RELEASES:
        return name, DEFAULT_FLAGS
    return (NONE_RELEASE, DEFAULT_FLAGS) if name == NONE else (name, RELEASES[name])


COMMON_CONTROLLERS = (
    "job-controller",
    "garbage-collector-controller",
    "ttl-after-finished-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "persistentvolume-binder-controller",
)

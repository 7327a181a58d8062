"""The state of a gang, as a pure function of its Job, pods, and PodGroup."""
